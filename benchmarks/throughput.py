"""How fast batches are read from the page cache, against C and against common practice.

2^27 uint16 tokens, rows of 2,048 + 1, batches of 32, globally shuffled, int64 torch batches. Every
contender feeds the same consumer, which touches all pages of inputs and labels (`consumer`). The
loader has its defaults unless the row says otherwise; C loops read and consume on one thread. Two
kinds of C loops widen: into an array of inputs and one of labels, as the loader does, or only once,
with labels as a view of the inputs' array. Targets: 0.9x the C loop that preads and fills inputs
and labels; 2x a DataLoader whose dataset fills whole batches; 5x a DataLoader in common use. What
the stored dtype gains over int64 is listed beside the gain in C.

2^27 tokens are 65,535 samples, one too few for a computed shuffle: the shuffle is a table. A corpus
with 32 more samples, which uses the computed shuffle of every larger corpus, runs beside it, so the
headline does not depend on the cheaper order.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import millstream
from benchmarks import corpora
from benchmarks.c_loop import Access, CLoop, compile_reference
from benchmarks.consumer import consume
from benchmarks.peers import BatchDataset, ItemDataset, endless_batches, nanogpt_batches
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio

SEQ_LEN, BATCH_SIZE = 2048, 32
NUM_TOKENS = 1 << 27
_WARM_EPOCHS = 2
_NUM_TOKENS_COMPUTED = NUM_TOKENS + 32 * SEQ_LEN
TOKENS_PER_BATCH = SEQ_LEN * BATCH_SIZE

PREAD, MMAP = "Loader, pread", "Loader, mmap"
_NARROW_PREAD, _NARROW_MMAP = "Loader, pread, stored dtype", "Loader, mmap, stored dtype"
_ONE_THREAD, _NO_PREFETCH = "Loader, pread, threads=1", "Loader, pread, prefetch=0"
_AGAIN = "Loader, pread, once more (what noise alone does)"
_COMPUTED = "Loader, pread, computed shuffle (65,567 samples)"
_C_PREAD, _C_MMAP = "C, pread, inputs and labels", "C, populated mmap, inputs and labels"
_C_PREAD_ONCE, _C_MMAP_ONCE = "C, pread, widened once", "C, populated mmap, widened once"
_C_PREAD_KEEP, _C_MMAP_KEEP = "C, pread, stored dtype", "C, populated mmap, stored dtype"
_TORCH_BATCH = "DataLoader, __getitems__, 0 workers"
_TORCH_ITEM = "DataLoader, ordinary, 0 workers"
_NANOGPT = "nanoGPT get_batch"


def measure(quick: bool) -> Section:
    """Time all contenders in interleaved rounds."""
    num_rounds, num_batches = (5, 512) if quick else (15, 2000)
    directory = corpora.dense(NUM_TOKENS)
    contenders = {
        PREAD: loader_contender(directory, num_batches),
        MMAP: loader_contender(directory, num_batches, access="mmap"),
        _COMPUTED: loader_contender(corpora.dense(_NUM_TOKENS_COMPUTED), num_batches),
        _AGAIN: loader_contender(directory, num_batches),
        _ONE_THREAD: loader_contender(directory, num_batches, threads=1),
        _NO_PREFETCH: loader_contender(directory, num_batches, prefetch=0),
        _NARROW_PREAD: loader_contender(directory, num_batches, dtype=None),
        _NARROW_MMAP: loader_contender(directory, num_batches, access="mmap", dtype=None),
        **_c_contenders(corpora.stream_file(directory), num_batches),
        **_peers(corpora.stream_file(directory), 128 if quick else 400),
    }
    measured = rates(contenders, num_rounds)
    return Section(
        topic="throughput",
        text=(
            f"2^27 uint16 tokens in page cache, rows of {SEQ_LEN:,} + 1, batches of {BATCH_SIZE}, "
            "globally shuffled, int64 torch batches, of which a consumer touches every page; "
            f"{num_rounds} interleaved rounds, medians (least to most). Ratios are medians of the "
            "ratios within each round."
        ),
        tables=[_rate_table(measured), *_bound_of_narrowing(measured)],
        targets=_targets(measured),
        raw=measured,
    )


def loader_contender(
    directory: Path, num_batches: int, *, access: Any = "pread", **options: Any
) -> Contender:
    """Return an endless, warmed-up loader: pages cached, maps filled."""
    view = millstream.open(directory, access=access).windows(SEQ_LEN)
    return view_contender(view, len(view), num_batches, **options)


def view_contender(view: Any, num_samples: int, num_batches: int, **options: Any) -> Contender:
    """Return the same for a view or a mixture of so many samples of SEQ_LEN tokens."""
    batches = iter(millstream.Loader(view, BATCH_SIZE, endless=True, **options))
    # Each thread fills its own map: one epoch would leave gaps in them.
    consume(batches, _WARM_EPOCHS * num_samples // BATCH_SIZE)
    return batches_contender(batches, num_batches)


def batches_contender(batches: Iterator[Any], num_batches: int) -> Contender:
    """Return a contender that counts the tokens of endless batches."""
    return Contender(lambda: consume(batches, num_batches), num_batches * TOKENS_PER_BATCH)


def _c_contenders(path: Path, num_batches: int) -> dict[str, Contender]:
    library = compile_reference()
    if library is None:
        return {}
    loop = CLoop(library, path, SEQ_LEN + 1, SEQ_LEN, BATCH_SIZE)
    num_rows, num_tokens = num_batches * BATCH_SIZE, num_batches * TOKENS_PER_BATCH
    loops: dict[str, tuple[Callable[[int, Access], None], Access]] = {
        _C_PREAD: (loop.fill_both, "pread"),
        _C_MMAP: (loop.fill_both, "mmap"),
        _C_PREAD_ONCE: (loop.widen_once, "pread"),
        _C_MMAP_ONCE: (loop.widen_once, "mmap"),
        _C_PREAD_KEEP: (loop.keep, "pread"),
        _C_MMAP_KEEP: (loop.keep, "mmap"),
    }
    contenders = {
        name: Contender(partial(read, num_rows, access), num_tokens)
        for name, (read, access) in loops.items()
    }
    for contender in contenders.values():
        contender.run()  # maps the file, faults the buffers in
    return contenders


def _peers(path: Path, num_batches: int) -> dict[str, Contender]:
    batches = {
        _TORCH_BATCH: endless_batches(BatchDataset(path, SEQ_LEN), BATCH_SIZE),
        _TORCH_ITEM: endless_batches(ItemDataset(path, SEQ_LEN), BATCH_SIZE),
        _NANOGPT: nanogpt_batches(path, SEQ_LEN, BATCH_SIZE),
    }
    for each in batches.values():
        consume(each, 1)
    return {name: batches_contender(each, num_batches) for name, each in batches.items()}


def _rate_table(measured: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1e9, 3),
            f"{ratio(measured[PREAD], rounds).median:.2f}x",
            f"{ratio(measured[MMAP], rounds).median:.2f}x",
        ]
        for name, rounds in measured.items()
    ]
    columns = ["", "G tokens/s", "Loader is (pread)", "Loader is (mmap)"]
    note = "" if _C_PREAD in measured else "gcc is not installed, so the C loops were left out."
    return Table("Rates", columns, rows, note)


def _bound_of_narrowing(measured: dict[str, list[float]]) -> list[Table]:
    """Tabulate the gain without widening, in the loader and in the bare C loops."""
    pairs = [
        ("Loader, pread", _NARROW_PREAD, PREAD),
        ("C, pread", _C_PREAD_KEEP, _C_PREAD),
        ("Loader, mmap", _NARROW_MMAP, MMAP),
        ("C, populated mmap", _C_MMAP_KEEP, _C_MMAP),
    ]
    rows = [
        [name, with_range(ratio(measured[narrow], measured[wide])) + "x"]
        for name, narrow, wide in pairs
        if wide in measured
    ]
    note = (
        "The system's own copy out of the page cache is paid either way, so the C loop's ratio is "
        "what leaving out the widening can gain."
    )
    return [Table("Stored dtype against int64", ["", "gain"], rows, note)]


def _targets(measured: dict[str, list[float]]) -> list[Target]:
    wanted = [
        ("Loader (pread) / C, pread, inputs and labels", PREAD, _C_PREAD, 0.9),
        ("Loader (pread, computed shuffle) / the same", _COMPUTED, _C_PREAD, 0.9),
        ("Loader (pread) / DataLoader with __getitems__", PREAD, _TORCH_BATCH, 2.0),
        ("Loader (pread) / DataLoader, ordinary", PREAD, _TORCH_ITEM, 5.0),
    ]
    return [
        Target(
            what=what,
            measured=ratio(measured[ours], measured[theirs]).median,
            limit=limit,
            relation="at least",
        )
        for what, ours, theirs, limit in wanted
        if theirs in measured
    ]
