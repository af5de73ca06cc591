"""How fast LLMBATCH files are read: whole batches against the published reader, rows against ours.

104,829 records of 512 tokens in batches of 32, the size in ZeroBatch's specification: 215 MB, in
the page cache, more than the processor's cache. Targets: int64 batches at 2x the specification's
reader; a stored batch within 5 us; globally shuffled rows at 0.8x a Loader on the same tokens in
the Millstream format.

C loops on one thread show what memory allows: to read a batch at all, and to widen it into a buffer
that stays in the processor's cache.
"""

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import millstream
from benchmarks import corpora
from benchmarks.c_loop import compile_reference
from benchmarks.packed import Stream
from benchmarks.peers import ZeroBatchReader
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from millstream.compat.zerobatch import BatchFileReader, BatchNativeLoader
from millstream.order.block_shuffle import BlockShuffle
from millstream.order.order import make_order

_NUM_RECORDS, _SEQ_LEN, _BATCH_SIZE = 104_829, 512, 32
_BLOCK = 256
_NUM_BUFFERS = 32
_BATCH_TOKENS = _BATCH_SIZE * _SEQ_LEN

_SEED, _SEED_STORED = "as specified, int64", "as specified, stored dtype"
_READER, _LOADER, _STORED = "read_batch_torch", "BatchNativeLoader", "read_batch (stored dtype)"
_C_READ, _C_RING = "C, only read", "C, widened into 32 buffers in turn"
_C_ONE = "C, widened into one buffer"
_ROWS, _OWN = "rows of the .batch file", "windows of our own format"

Measured = dict[str, list[float]]


def measure(quick: bool) -> Section:
    """Time whole batches, then rows with both ways of access."""
    num_rounds, num_epochs, num_batches = (5, 1, 1000) if quick else (15, 5, 4000)
    path = corpora.llmbatch(_NUM_RECORDS, _SEQ_LEN, _BATCH_SIZE)
    whole = rates(_whole_batches(path, num_epochs), num_rounds)
    rows = {
        access: _time_rows(path, access, num_rounds, num_batches) for access in ("pread", "mmap")
    }
    return Section(
        topic="llmbatch",
        text=(
            f"{_NUM_RECORDS:,} records of {_SEQ_LEN} uint32 tokens in batches of {_BATCH_SIZE}, "
            f"{path.stat().st_size / 1e6:.0f} MB in page cache; whole batches in blocks of "
            f"{_BLOCK}, rows globally shuffled; {num_rounds} interleaved rounds, medians (least to "
            f"most). {_limit(whole)}"
        ),
        tables=[_whole_table(whole), _row_table(rows)],
        targets=[
            Target(
                what="BatchNativeLoader / reader as specified, int64",
                measured=ratio(whole[_LOADER], whole[_SEED]).median,
                limit=2,
                relation="at least",
            ),
            Target(
                what="read_batch, a batch as it is stored",
                measured=1e6 / Spread.of(whole[_STORED]).median,
                limit=5,
                relation="at most",
                unit="us",
            ),
            *(
                Target(
                    what=f"rows of LLMBATCH / windows of our own format, {access}",
                    measured=ratio(measured[_ROWS], measured[_OWN]).median,
                    limit=0.8,
                    relation="at least",
                )
                for access, measured in rows.items()
            ),
        ],
        raw={"whole batches": whole, "rows": rows},
    )


def _whole_batches(path: Path, num_epochs: int) -> dict[str, Contender]:
    reader = BatchFileReader(path)
    seed = ZeroBatchReader(path, _BATCH_SIZE, _SEQ_LEN)
    order = make_order(BlockShuffle(_BLOCK), reader.num_batches, 42)
    numbers = order.samples_at(np.arange(num_epochs * reader.num_batches))
    loader = BatchNativeLoader(path, _BLOCK)
    for number in (0, int(numbers[0]), reader.num_batches - 1):
        if not (seed.read_batch_torch(number) == reader.read_batch_torch(number)).all():
            raise RuntimeError(f"batch {number} is not what the specification's reader gives")

    def all_of(read: Callable[[int], Any]) -> Callable[[], None]:
        listed = numbers.tolist()

        def run() -> None:
            for number in listed:
                read(number)

        return run

    def iterate() -> None:
        for epoch in range(num_epochs):
            loader.set_epoch(epoch)
            for _ in loader:
                pass

    runs: dict[str, Callable[[], Any]] = {
        _SEED: all_of(seed.read_batch_torch),
        _LOADER: iterate,
        _READER: all_of(reader.read_batch_torch),
        _SEED_STORED: all_of(seed.read_batch),
        _STORED: all_of(reader.read_batch),
        **_c_loops(path, reader.padded_batch_bytes, numbers),
    }
    for run in runs.values():
        run()  # fills the maps
    return {name: Contender(run, numbers.size) for name, run in runs.items()}


def _c_loops(
    path: Path, batch_bytes: int, numbers: NDArray[np.int64]
) -> dict[str, Callable[[], Any]]:
    library = compile_reference()
    if library is None:
        return {}
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    offsets = 4096 + numbers * batch_bytes
    out = np.empty(_NUM_BUFFERS * _BATCH_TOKENS, np.int64)

    def call(function: str, *more: Any) -> Callable[[], Any]:
        counts = [ctypes.c_int64(count) for count in (offsets.size, _BATCH_TOKENS)]
        # Made for every call, to keep alive what they point to.
        return lambda: getattr(library, function)(
            *(ctypes.c_void_p(array.ctypes.data) for array in (mapped, offsets)),
            *counts,
            *(ctypes.c_void_p(out.ctypes.data) if each is out else each for each in more),
        )

    return {
        _C_READ: call("read_batches"),
        _C_RING: call("widen_batches", out, ctypes.c_int64(_NUM_BUFFERS)),
        _C_ONE: call("widen_in_steps", out),
    }


def _limit(measured: Measured) -> str:
    if _C_READ not in measured:
        return "gcc is not installed, so the C loops were left out."
    read, one, ring, seed = (
        1e6 / Spread.of(measured[name]).median for name in (_C_READ, _C_ONE, _C_RING, _SEED)
    )
    return (
        f"Reading 64 KiB from memory takes {read:.1f} us of C on one thread, "
        f"{4 * _BATCH_TOKENS / 1e3 / read:.0f} GB/s. With widening it is {one:.1f} us into a "
        f"buffer that was just used, which is what the memory allocator gives to one who asks for "
        f"one batch at a time, so read_batch_torch cannot reach {seed / one:.1f}x; and {ring:.1f} "
        f"us into {_NUM_BUFFERS} buffers in turn, which is the limit of the loader."
    )


def _time_rows(path: Path, access: Any, num_rounds: int, num_batches: int) -> Measured:
    views = {
        _ROWS: millstream.open(path, access=access).rows(),
        _OWN: millstream.open(corpora.as_own(path), access=access).windows(
            _SEQ_LEN - 1, overlap=False
        ),
    }
    streams = {name: Stream(view, num_batches) for name, view in views.items()}
    measured = rates({name: each.contender() for name, each in streams.items()}, num_rounds)
    for each in streams.values():
        each.close()
    return measured


def _whole_table(measured: Measured) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of([1e6 / rate for rate in rounds])),
            f"{Spread.of(rounds).median * _BATCH_TOKENS / 1e9:.2f}",
            f"{ratio(rounds, measured[_SEED]).median:.2f}x",
        ]
        for name, rounds in measured.items()
    ]
    columns = ["", "us a batch", "G tokens/s", "of the specified reader"]
    note = (
        f"A batch is {4 * _BATCH_TOKENS:,} bytes, or {8 * _BATCH_TOKENS:,} as int64. Reading a "
        "batch as it is stored touches no token."
    )
    return Table("Whole batches", columns, rows, note)


def _row_table(rows: dict[str, Measured]) -> Table:
    shown = [
        [
            f"{name}, {access}",
            with_range(Spread.of(rounds), 1e3),
            f"{Spread.of(rounds).median * _BATCH_TOKENS / 1e9:.2f}",
            f"{ratio(rounds, measured[_OWN]).median:.2f}x",
        ]
        for access, measured in rows.items()
        for name, rounds in measured.items()
    ]
    columns = ["", "thousand batches/s", "G tokens/s", "of our own format"]
    return Table("Row by row, a Loader with its defaults, int64", columns, shown)
