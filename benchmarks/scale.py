"""What size costs: a trillion tokens, and ten thousand shards.

- 1.1 T tokens in 1,000 sparse shards, in fresh processes with everything imported: `open`, the
  loader and its first batch take at most 0.3 s; 2,000 batches add at most 50 MB to the process;
  a batch takes at most 1.3 times as long as one of 2^27 tokens.
- 10,000 shards open in well under a second (limit: 0.5 s). In random order they are more than a
  thread keeps open, so rows open and close files. The same tokens in 10 shards show what that
  costs, with this process's limit of descriptors and with the usual 1,024.

Batches are compared on rows that were read before, so both sides find them in the page cache. The
first read of a hole costs a zeroed page, which is up to the file system and is listed separately.
"""

import itertools
import resource
import time
from pathlib import Path
from typing import Any

from benchmarks import corpora
from benchmarks.fresh import in_fresh_process
from benchmarks.machine import resident_bytes
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread, ratio

_SEQ_LEN, _BATCH_SIZE = 2048, 32
_USUAL_DESCRIPTORS = 1024
_TOKENS_IN_MANY = 10_000 << 14

Seconds = dict[str, list[float]]


def measure(quick: bool) -> Section:
    """Measure each dataset in its own processes."""
    num_rounds, num_batches, num_growth = (2, 200, 500) if quick else (7, 1_000, 2_000)
    trillion, small = corpora.sparse(1_000, 1_100_000_000), corpora.sparse(1, 1 << 27)
    many = corpora.sparse(10_000, _TOKENS_IN_MANY // 10_000)
    few = corpora.sparse(10, _TOKENS_IN_MANY // 10)
    firsts = [in_fresh_process(first_batch, trillion) for _ in range(num_rounds)]
    opens = [in_fresh_process(open_seconds, many) for _ in range(num_rounds)]
    growth = in_fresh_process(growth_bytes, trillion, num_growth)
    size = in_fresh_process(batch_seconds, [trillion, small], num_rounds, num_batches, None)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shards = {
        descriptors: in_fresh_process(
            batch_seconds, [many, few], num_rounds, num_batches, descriptors
        )
        for descriptors in dict.fromkeys([limit, min(limit, _USUAL_DESCRIPTORS)])
    }
    of_size = ratio(size[f"{trillion.name} warm"], size[f"{small.name} warm"])
    first = {part: Spread.of([each[part] for each in firsts]) for part in firsts[0]}
    return Section(
        topic="scale",
        text=(
            f"Sparse files; {num_rounds} fresh processes for times of opening, {num_rounds} "
            f"interleaved rounds of {num_batches} batches of {_BATCH_SIZE} x {_SEQ_LEN:,} for "
            "times per batch."
        ),
        tables=[
            Table(
                "Before the first batch, ms",
                ["", "ms"],
                [
                    *(
                        [f"1.1 T tokens, 1,000 shards: {part}", with_range(spread, 1e-3, 1)]
                        for part, spread in first.items()
                    ),
                    ["10,000 shards: open", with_range(Spread.of(opens), 1e-3, 1)],
                ],
            ),
            _batch_table({"1.1 T against 2^27 tokens": size}),
            _shard_table(shards, many.name, few.name),
        ],
        targets=[
            _at_most("first batch of 1.1 T tokens", first["in all"].median, 0.3, "s"),
            _at_most(f"memory after {num_growth:,} batches of it", growth / 1e6, 50, "MB"),
            _at_most("time per batch, 1.1 T / 2^27 tokens", of_size.median, 1.3, "x"),
            _at_most("opening 10,000 shards", Spread.of(opens).median, 0.5, "s"),
        ],
        raw={
            "first batch": firsts,
            "open 10,000": opens,
            "growth bytes": growth,
            "seconds per batch": size,
            "seconds per batch, by limit of descriptors": shards,
        },
    )


def first_batch(directory: Path) -> dict[str, float]:
    """Return the seconds from nothing open to the first batch, by part."""
    _import_all()
    import millstream

    start = time.perf_counter()
    data = millstream.open(directory)
    opened = time.perf_counter()
    loader = millstream.Loader(data.windows(_SEQ_LEN), _BATCH_SIZE)
    made = time.perf_counter()
    next(iter(loader))
    end = time.perf_counter()
    loader.close()
    return {
        "open": opened - start,
        "make the loader": made - opened,
        "first batch": end - made,
        "in all": end - start,
    }


def open_seconds(directory: Path) -> float:
    """Return the seconds to open a dataset."""
    _import_all()
    import millstream

    start = time.perf_counter()
    millstream.open(directory)
    return time.perf_counter() - start


def growth_bytes(directory: Path, num_batches: int) -> int:
    """Return how much a process grows from the first batch on, over `num_batches`."""
    _import_all()
    import millstream

    with millstream.Loader(millstream.open(directory).windows(_SEQ_LEN), _BATCH_SIZE) as loader:
        batches = iter(loader)
        next(batches)
        before = resident_bytes()
        for _ in itertools.islice(batches, num_batches):
            pass
        return resident_bytes() - before


def batch_seconds(
    directories: list[Path], num_rounds: int, num_batches: int, max_descriptors: int | None
) -> Seconds:
    """Return seconds per batch of each dataset, interleaved: first touch, then warm."""
    import millstream

    if max_descriptors is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max_descriptors, hard))
    loaders = {
        directory.name: millstream.Loader(
            millstream.open(directory).windows(_SEQ_LEN), _BATCH_SIZE, endless=True
        )
        for directory in directories
    }
    start = {name: loader.state_dict() for name, loader in loaders.items()}
    measured: Seconds = {f"{name} {state}": [] for state in ("first", "warm") for name in loaders}
    for number in range(1 + num_rounds):
        for name, loader in loaders.items():
            loader.load_state_dict(start[name])
            seconds = _seconds_per_batch(loader, num_batches)
            measured[f"{name} {'warm' if number else 'first'}"].append(seconds)
    return measured


def _seconds_per_batch(loader: Any, num_batches: int) -> float:
    batches = iter(loader)
    # Starts the threads; each opens every shard once, which is a startup cost, not per batch.
    for _ in itertools.islice(batches, num_batches // 2):
        pass
    start = time.perf_counter()
    for _ in itertools.islice(batches, num_batches):
        pass
    seconds = time.perf_counter() - start
    loader.close()
    return seconds / num_batches


def _import_all() -> None:
    """Import what a training script has imported before it opens its data."""
    import torch  # noqa: F401

    import millstream.load.loader  # noqa: F401


def _at_most(what: str, measured: float, limit: float, unit: str) -> Target:
    return Target(what=what, measured=measured, limit=limit, relation="at most", unit=unit)


def _batch_table(groups: dict[str, Seconds]) -> Table:
    rows = [
        [f"{group}: {name}", with_range(Spread.of(seconds), 1e-6, 1)]
        for group, measured in groups.items()
        for name, seconds in measured.items()
    ]
    return Table("Time per batch, us", ["", "us"], rows)


def _shard_table(by_limit: dict[int, Seconds], many: str, few: str) -> Table:
    """Tabulate what opening and closing files adds to reading a row."""
    rows = []
    for limit, measured in by_limit.items():
        slow, fast = measured[f"{many} warm"], measured[f"{few} warm"]
        extra = Spread.of([(a - b) / _BATCH_SIZE for a, b in zip(slow, fast, strict=True)])
        rows.append(
            [
                f"ulimit -n {limit:,}",
                with_range(Spread.of(slow), 1e-6, 1),
                with_range(Spread.of(fast), 1e-6, 1),
                with_range(ratio(slow, fast)) + "x",
                with_range(extra, 1e-6, 2),
            ]
        )
    columns = ["", "10,000 shards, us/batch", "10 shards, us/batch", "ratio", "extra us per row"]
    return Table("More shards than may be open", columns, rows)
