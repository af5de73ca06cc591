"""How fast `Writer.append` writes a dataset, one document at a time.

It appends NumPy arrays of 600 tokens in memory (tmpfs, if available), so no disk is timed. A run
writes a whole dataset and closes it. For scale, the same arrays go into one file with `write`: what
Python and the system need for the same bytes in the same number of calls. Target: 300,000
documents/s of the stored type.
"""

import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

import millstream
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio

_NUM_TOKENS, _VOCAB_SIZE = 600, 50_257
_NUM_DISTINCT = 1000
_TMPFS = Path("/dev/shm")
_STORED = "append, uint16 arrays, as stored"
_FILE = "file.write of the same arrays"

Documents = Iterable[Any]


def measure(quick: bool) -> Section:
    """Write the same documents in every way, each time into an empty directory."""
    num_rounds, num_repeats = (3, 50) if quick else (9, 200)
    tokens = np.random.default_rng(0).integers(0, _VOCAB_SIZE, (_NUM_DISTINCT, _NUM_TOKENS), "u2")
    num_documents = num_repeats * _NUM_DISTINCT
    with tempfile.TemporaryDirectory(dir=_TMPFS if _TMPFS.is_dir() else None) as root:
        out = Path(root) / "out"

        def contender(
            write: Callable[[Path, Documents], None], documents: list[Any], share: int = 1
        ) -> Contender:
            some = documents * (num_repeats // share)
            clear = partial(rmtree, out, ignore_errors=True)
            return Contender(lambda: write(out, some), len(some), clear)

        contenders = {
            _STORED: contender(_append, list(tokens)),
            "append, int64 arrays, narrowed": contender(_append, list(tokens.astype(np.int64))),
            "append, lists": contender(_append, tokens.tolist(), share=10),
            _FILE: contender(_write_file, list(tokens)),
        }
        measured = rates(contenders, num_rounds)
    return Section(
        topic="append",
        text=(
            f"{num_documents:,} documents of {_NUM_TOKENS} tokens (lists: a tenth), "
            f"{2 * num_documents * _NUM_TOKENS / 1e6:.0f} MB, on "
            f"{'tmpfs' if _TMPFS.is_dir() else 'the disk of temporary files'}, from an empty "
            f"directory to a closed dataset; {num_rounds} interleaved rounds, medians (least to "
            "most)."
        ),
        tables=[_table(measured)],
        targets=[
            Target(
                what="Writer.append of documents of 600 tokens of the stored type",
                measured=Spread.of(measured[_STORED]).median / 1e3,
                limit=300,
                relation="at least",
                unit="thousand documents/s",
            )
        ],
        raw=measured,
    )


def _append(out: Path, documents: Documents) -> None:
    with millstream.Writer(out, vocab_size=_VOCAB_SIZE) as writer:
        for document in documents:
            writer.append(document)


def _write_file(out: Path, documents: Documents) -> None:
    out.mkdir()
    with (out / "tokens.bin").open("wb") as file:
        for document in documents:
            file.write(document)


def _table(measured: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1e3, 0),
            f"{2 * _NUM_TOKENS * Spread.of(rounds).median / 1e6:,.0f}",
            f"{ratio(rounds, measured[_FILE]).median:.2f}x",
        ]
        for name, rounds in measured.items()
    ]
    columns = ["", "thousand documents/s", "MB/s", f"of {_FILE}"]
    return Table("Writing one document at a time", columns, rows)
