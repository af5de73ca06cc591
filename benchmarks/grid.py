"""Which prefetch depth and how many threads are fastest, from the page cache.

The setting of `throughput`. No target: the result chooses the loader's defaults, together with
`cold` (which wants depth) and `gil` (which wants spare batches, not spare threads).
"""

from benchmarks import corpora
from benchmarks.report import Section, Table, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from benchmarks.throughput import NUM_TOKENS, loader_contender

_DEPTHS, _THREADS = (2, 4, 8, 16), (1, 2)
_DEFAULT = (8, 2)

Setting = tuple[int, int]


def measure(quick: bool) -> Section:
    """Time every combination, in interleaved rounds."""
    num_rounds, num_batches = (3, 256) if quick else (9, 1000)
    directory = corpora.dense(NUM_TOKENS)
    settings: list[Setting] = [(0, 1), *((depth, n) for depth in _DEPTHS for n in _THREADS)]
    tables, raw = [], {}
    for access in ("pread", "mmap"):
        contenders: dict[str, Contender] = {
            _name(depth, threads): loader_contender(
                directory, num_batches, access=access, prefetch=depth, threads=threads
            )
            for depth, threads in settings
        }
        measured = rates(contenders, num_rounds)
        default = measured[_name(*_DEFAULT)]
        rows = [
            [name, with_range(Spread.of(rounds), 1e9, 3), f"{ratio(rounds, default).median:.2f}x"]
            for name, rounds in measured.items()
        ]
        tables.append(Table(f"access={access}", ["", "G tokens/s", "of the default"], rows))
        raw[access] = measured
    return Section(
        topic="grid",
        text=f"Prefetch depth and reading threads, warm; {num_rounds} interleaved rounds.",
        tables=tables,
        raw=raw,
    )


def _name(depth: int, threads: int) -> str:
    return f"prefetch={depth}, threads={threads}" if depth else "prefetch=0"
