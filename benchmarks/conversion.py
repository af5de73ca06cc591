"""How fast `convert` is, against `cp` of the same bytes.

2^29 uint16 tokens, 1.07 GB, in documents of lognormal length, from the page cache into the file
system. `convert` hashes its output and ends when everything is on the disk. `cp` does neither, so
it is timed twice: alone, and followed by `sync` of its file. Target: 0.5x `cp` alone.

One shard is one task, so a single gigabyte goes through one thread. The last row has shards of 256
MiB, as a larger corpus has several.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import millstream
from benchmarks import corpora
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from millstream.converting import convert

_NUM_TOKENS, _MEAN_LENGTH = 1 << 29, 1342
_CP, _CP_SYNC = "cp", "cp and sync"


def measure(quick: bool) -> Section:
    """Time conversions and copies, each into an empty directory."""
    num_rounds = 2 if quick else 5
    own = corpus()
    flat, datatrove = corpora.as_flat(own), corpora.as_datatrove(own)
    out = corpora.DATA / "converted"
    size_bytes = flat.stat().st_size
    runs: dict[str, Callable[[], Any]] = {
        _CP: lambda: _copy(flat, out),
        _CP_SYNC: lambda: _sync(_copy(flat, out)),
        "flat to millstream": lambda: _convert(flat, out, "millstream"),
        "datatrove to millstream": lambda: _convert(datatrove, out, "millstream"),
        "millstream to megatron": lambda: _convert(own, out, "megatron"),
        "millstream to datatrove": lambda: _convert(own, out, "datatrove"),
        "millstream to datatrove, shards of 256 MiB": lambda: _convert(
            own, out, "datatrove", shard_bytes=1 << 28
        ),
    }

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()  # pending writes of others must not run while one is timed

    contenders = {name: Contender(run, size_bytes, clear) for name, run in runs.items()}
    for each in (flat, datatrove):
        each.read_bytes()
    measured = rates(contenders, num_rounds)
    clear()
    conversions = [name for name in runs if name not in (_CP, _CP_SYNC)]
    return Section(
        topic="convert",
        text=(
            f"{_NUM_TOKENS:,} uint16 tokens, {size_bytes / 1e9:.2f} GB, in "
            f"{millstream.open(own).num_documents:,} documents, from the page cache to an empty "
            f"directory of the same disk; {num_rounds} interleaved rounds, medians (least to most)."
            " Conversions hash what they write and end with fsync; cp does neither."
        ),
        tables=[_table(measured)],
        targets=[
            Target(
                what=f"{name} / cp of the same bytes",
                measured=ratio(measured[name], measured[_CP]).median,
                limit=0.5,
                relation="at least",
            )
            for name in conversions
        ],
        raw=measured,
    )


def corpus() -> Path:
    """Return a gigabyte of tokens in about 400,000 documents."""
    return corpora.web(_NUM_TOKENS, _MEAN_LENGTH)


def _copy(source: Path, out: Path) -> Path:
    out.mkdir()
    target = out / source.name
    subprocess.run(["cp", str(source), str(target)], check=True)
    return target


def _sync(path: Path) -> None:
    subprocess.run(["sync", str(path)], check=True)


def _convert(source: Path, out: Path, to: str, **options: Any) -> None:
    convert(millstream.open(source), out, to, **options)


def _table(measured: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1e9),
            f"{ratio(rounds, measured[_CP]).median:.2f}x",
            f"{ratio(rounds, measured[_CP_SYNC]).median:.2f}x",
        ]
        for name, rounds in measured.items()
    ]
    return Table("Tokens written", ["", "GB/s", "of cp", "of cp and sync"], rows)
