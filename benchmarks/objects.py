"""How fast objects are read and handed out, against a loop over `pread` in C.

Random bytes in documents of one size, batches of 32, globally shuffled, from the page cache. The
consumer touches every page of a batch and holds it until it has the next. Nothing is decoded:
without a decoder, documents are arrays; the identity gets a memoryview and returns it. Target, for
documents of 100 KB and one thread: 0.7 times C, which reads each batch into the same buffer.
"""

import ctypes
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import millstream
from benchmarks import corpora
from benchmarks.c_loop import compile_reference
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from millstream.formats.shard import STREAM

_BATCH_SIZE = 32
_TOTAL_BYTES = 400_000_000
_SIZES = {"10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
_TARGET_SIZE = "100 KB"

_C, _C_HELD = "C, one buffer", "C, two buffers in turn"
_ALONE = "Loader, prefetch=0"
_THREAD = "Loader, threads=1"
_IDENTITY = "Loader, threads=1, identity"
_BYTES = "Loader, threads=1, decode=bytes"
_TORCH = "Loader, threads=1, torch"
_MAPPED = "Loader, prefetch=0, mmap"


def measure(quick: bool) -> Section:
    """Time all contenders in interleaved rounds, size by size."""
    library = compile_reference()
    if library is None:
        raise RuntimeError("gcc is needed for the loop in C")
    num_rounds = 5 if quick else 15
    measured = {name: _measure(library, size, num_rounds) for name, size in _SIZES.items()}
    at_target = measured[_TARGET_SIZE]
    return Section(
        topic="objects",
        text=(
            f"{_TOTAL_BYTES / 1e6:.0f} MB of random bytes in documents of one size, batches of "
            f"{_BATCH_SIZE}, globally shuffled, in page cache; the consumer touches every page and "
            "holds its batch until it has the next. NumPy arrays unless a line says otherwise. "
            f"{num_rounds} interleaved rounds, medians (least to most); ratios round by round."
        ),
        tables=[_table(name, rounds) for name, rounds in measured.items()],
        targets=[
            Target(
                what=f"{contender}, documents of {_TARGET_SIZE} / C",
                measured=ratio(at_target[contender], at_target[_C]).median,
                limit=0.7,
                relation="at least",
            )
            for contender in (_ALONE, _THREAD, _IDENTITY)
        ],
        raw={
            f"{size}: {name}": values
            for size, of in measured.items()
            for name, values in of.items()
        },
    )


def _measure(library: ctypes.CDLL, size: int, num_rounds: int) -> dict[str, list[float]]:
    directory = corpora.objects(_TOTAL_BYTES // size, size)
    num_batches = _TOTAL_BYTES // size // _BATCH_SIZE
    loaders = {
        _ALONE: _new_loader(directory, prefetch=0),
        _THREAD: _new_loader(directory, threads=1),
        _IDENTITY: _new_loader(directory, decode=lambda content: content, threads=1),
        _BYTES: _new_loader(directory, decode=bytes, threads=1),
        _TORCH: _new_loader(directory, threads=1, output="torch"),
        _MAPPED: _new_loader(directory, access="mmap", prefetch=0),
    }
    amount = num_batches * _BATCH_SIZE * size / 1e9
    contenders = {
        name: Contender(_consumer(iter(loader), num_batches), amount)
        for name, loader in loaders.items()
    }
    for name, num_buffers in ((_C, 1), (_C_HELD, 2)):
        loop = _c_loop(library, directory, size, num_batches * _BATCH_SIZE, num_buffers)
        contenders[name] = Contender(loop, amount)
    for contender in contenders.values():
        contender.run()  # caches pages and maps memory
    measured = rates(contenders, num_rounds)
    for loader in loaders.values():
        loader.close()
    return measured


def _new_loader(
    directory: Path, *, decode: Any = None, access: Any = "pread", **options: Any
) -> millstream.Loader:
    view = millstream.open(directory, access=access).objects(decode)
    return millstream.Loader(view, _BATCH_SIZE, endless=True, **({"output": "numpy"} | options))


def _consumer(batches: Iterator[Any], num_batches: int) -> Callable[[], None]:
    """Return a function that takes batches and holds the last."""
    held = list[Any]()

    def take() -> None:
        for batch in itertools.islice(batches, num_batches):
            _touch(batch["documents"])
            held[:] = [batch]

    return take


def _touch(documents: list[Any]) -> None:
    """Touch a byte of every page, in one call for all documents that share memory."""
    first = documents[0]
    if isinstance(first, bytes):
        for each in documents:
            np.frombuffer(each, np.uint8)[::4096].sum()
        return
    if not isinstance(first, np.ndarray | memoryview):
        first = first.numpy()
    root: Any = first.obj if isinstance(first, memoryview) else first.base
    root[: len(documents) * len(first) : 4096].sum()


def _c_loop(
    library: ctypes.CDLL, directory: Path, size: int, count: int, num_buffers: int
) -> Callable[[], None]:
    descriptor = os.open(corpora.shard_file(directory, STREAM), os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    offsets = np.random.default_rng(1).permutation(count) * size
    out = np.zeros((num_buffers, _BATCH_SIZE, size), np.uint8)

    def read() -> None:
        status = library.read_documents(
            ctypes.c_int(descriptor),
            ctypes.c_void_p(offsets.ctypes.data),
            *(ctypes.c_int64(number) for number in (count, size, _BATCH_SIZE)),
            ctypes.c_void_p(out.ctypes.data),
            ctypes.c_int64(num_buffers),
        )
        if status != 0:
            raise OSError("read_documents: a read failed or came back short")

    return read


def _table(size: str, measured: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1, 2),
            f"{ratio(rounds, measured[_C]).median:.2f}x",
            f"{ratio(rounds, measured[_C_HELD]).median:.2f}x",
        ]
        for name, rounds in measured.items()
    ]
    return Table(f"Documents of {size}", ["", "GB/s", f"of {_C}", f"of {_C_HELD}"], rows)
