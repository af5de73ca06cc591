"""Measure how fast a dataset loads on this machine.

  millstream bench data --seq-len 2048 --batch-size 32
  millstream bench data --view packed --cold
  millstream bench mixture.toml --batch-size 32

For a URL, it compares a global shuffle with orders that keep reads large: requests and bytes per
batch, and how well rows are mixed.

  millstream bench s3://bucket/data --batches 200

Compares, in alternating rounds, the loader with a plain copy in memory, which is the upper bound,
and for windows with a NumPy loop over a memory map. Rates leave out the start-up, which is printed
below them, and batches that were ready when a round began.
"""

import argparse
import os
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine
from millstream.errors import WaitingWarning
from millstream.progress import ProgressMeter

if TYPE_CHECKING:
    from millstream.load.loader import Loader
    from millstream.mixing.mixture import Mixture
    from millstream.read.record_stream import RecordStream
    from millstream.views.view import View
    from millstream.views.windows import Windows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, the view, the order, and the loader's settings."""
    options.add_dataset(parser, takes_mixtures=True)
    options.add_view(parser)
    options.add_order(parser)
    options.add_batch_size(parser)
    for name, kind, default, purpose in (
        ("--batches", options.positive, 500, "Batches in a round (default: 500)"),
        ("--rounds", options.positive, 5, "Rounds of each contender (default: 5)"),
        ("--prefetch", int, 8, "Batches to read ahead (default: 8)"),
        ("--threads", options.positive, None, "Threads that read (default: up to 4)"),
    ):
        parser.add_argument(name, type=kind, default=default, metavar="N", help=purpose)
    parser.add_argument(
        "--access",
        choices=["pread", "mmap"],
        default="pread",
        help="How files are read (default: pread)",
    )
    parser.add_argument(
        "--stored", action="store_true", help="Keep the stored token type, not int64"
    )
    parser.add_argument(
        "--cold", action="store_true", help="Drop the files from the page cache before each round"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table."""
    import warnings
    from statistics import median

    from rich.console import Console
    from rich.table import Table

    from millstream.load.loader import Loader
    from millstream.views.windows import Windows

    warnings.simplefilter("ignore", WaitingWarning)  # to wait is all that a benchmark does
    started = time.perf_counter()
    view = options.mixture_or_view(arguments, access=arguments.access)
    if any(source.dataset.reader.has_remote_files for source in view.sources):
        from millstream.cli.bench_remote import run_remote

        return run_remote(view, arguments)
    loader = Loader(
        view,
        arguments.batch_size,
        seed=arguments.seed,
        shuffle=options.shuffle(arguments),
        rank=0,
        ranks=1,
        endless=True,
        output="numpy",
        dtype=None if arguments.stored else "int64",
        prefetch=arguments.prefetch,
        threads=arguments.threads,
    )
    contenders: dict[str, Callable[[], float]] = {
        "Loader": lambda: _time_loader(loader, arguments.batches)
    }
    has_objects = view.sources[0].dataset.holds_objects
    if not has_objects:
        contenders["memory copy"] = lambda: _time_copy(view, arguments)
    if isinstance(view, Windows) and _has_one_array(view):
        windows = view
        contenders["NumPy memmap"] = lambda: _time_numpy(windows, loader, arguments.batches)
    next(iter(loader))  # starts the threads
    first_s = time.perf_counter() - started
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    with ProgressLine() as line:
        meter = ProgressMeter(line, "measuring", total=arguments.rounds, unit="rounds")
        for _ in range(arguments.rounds):
            for name, measure in contenders.items():
                if arguments.cold:
                    for source in view.sources:
                        _drop_from_cache(source.dataset)
                seconds[name].append(measure())
            meter.advance(1)
    loader.close()
    handed_out = loader.stats
    tokens = arguments.batches * handed_out.tokens / handed_out.batches
    record_bytes = max(source.dataset.fields.itemsize for source in view.sources)
    rows = (
        f"{arguments.batch_size} objects"
        if has_objects
        else f"{arguments.batch_size} x {view.seq_len}"
    )
    table = Table(title=f"{arguments.batches} batches of {rows}")
    for heading in (
        "",
        "M bytes/s" if has_objects else "M tokens/s",
        "slowest",
        "fastest",
        "MB/s read",
        "µs/batch",
    ):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, times in seconds.items():
        middle = median(times)
        table.add_row(
            name,
            f"{tokens / middle / 1e6:,.0f}",
            f"{tokens / max(times) / 1e6:,.0f}",
            f"{tokens / min(times) / 1e6:,.0f}",
            f"{tokens * record_bytes / middle / 1e6:,.0f}",
            f"{middle / arguments.batches * 1e6:,.0f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"start-up: {first_s * 1e3:,.0f} ms from opening the dataset to the first batch",
        highlight=False,
    )
    return 0


def _has_one_array(view: "Windows") -> bool:
    from millstream.formats.shard import STREAM

    data = view.dataset
    return data.apart is None and not any(shard.files[STREAM].block_items for shard in data.shards)


def _time_loader(loader: "Loader", num_batches: int) -> float:
    batches = iter(loader)
    for _ in range(loader.stats.ready):  # read before the clock starts
        next(batches)
    start = time.perf_counter()
    for _ in islice(batches, num_batches):
        pass
    return time.perf_counter() - start


def _time_numpy(view: "Windows", loader: "Loader", num_batches: int) -> float:
    """Time a plain loop: one slice of a memory map per row, widened into a new batch."""
    import numpy as np

    from millstream.formats.shard import STREAM

    shards = view.dataset.shards
    maps = [
        np.memmap(
            shard.path(STREAM),
            view.dataset.fields,
            "r",
            shard.files[STREAM].first_byte,
            (shard.num_records,),
        )
        for shard in shards
        if shard.num_records
    ]
    firsts = np.cumsum([0, *map(len, maps)])
    rows = loader.plan.batch_size
    positions = np.arange(num_batches * rows) + loader.position
    samples = loader.order.samples_at(positions).reshape(num_batches, rows)
    name = (view.dataset.fields.names or ("",))[0]
    start = time.perf_counter()
    for batch in samples:
        out: list[Any] = []
        for sample in batch.tolist():
            begin = sample * view.stride
            shard = int(np.searchsorted(firsts, begin, "right")) - 1
            piece = maps[shard][begin - firsts[shard] :][: view.seq_len + 1][name]
            if len(piece) == view.seq_len + 1:  # a row that crosses shards is left out
                out.append(piece.astype(np.int64))
        if out:
            np.stack(out)
    return time.perf_counter() - start


def _time_copy(view: "View | Mixture", arguments: argparse.Namespace) -> float:
    import numpy as np

    shape, fields = (arguments.batch_size, view.seq_len + 1), view.sources[0].dataset.fields
    source = np.zeros(shape, fields)[(fields.names or ("",))[0]]
    target = np.zeros(source.shape, source.dtype if arguments.stored else np.int64)
    start = time.perf_counter()
    for _ in range(arguments.batches):
        np.copyto(target, source)
    return time.perf_counter() - start


def _drop_from_cache(data: "RecordStream") -> None:
    from millstream.formats.shard import STREAM

    for shard in data.shards:
        descriptor = os.open(shard.path(STREAM), os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
