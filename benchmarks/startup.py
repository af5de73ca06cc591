"""How long users wait for the first batch and for small commands, and the memory of loading.

Every number comes from a fresh process with an empty cache directory; Python's bytecode exists, as
after an installation. Targets: the first batch 0.5 s after the process starts with NumPy output,
and 0.3 s after `import torch`; 60 MB of anonymous memory without torch; `millstream --help` in 0.15
s; `inspect`, `verify` and `tokenize` of a small file in 0.6 s.
"""

import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks import corpora, text_corpus, text_files
from benchmarks.fresh import python_output
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread, in_turn

_NUM_TOKENS = 1 << 20
_TEXT_BYTES = 100_000

_NUMPY, _TORCH = "first batch, NumPy output, from the start", "first batch after `import torch`"
_MEMORY = "anonymous memory with NumPy output, MB"
_HELP, _INSPECT, _VERIFY = "millstream --help", "millstream inspect", "millstream verify"
_TOKENIZE = "millstream tokenize, 100 kB"
_LIMITS = {
    _NUMPY: 0.5,
    _TORCH: 0.3,
    _MEMORY: 60,
    _HELP: 0.15,
    _INSPECT: 0.6,
    _VERIFY: 0.6,
    _TOKENIZE: 0.6,
}

_LOAD = """
import sys, time
{before}
start = time.monotonic()
import millstream
view = millstream.open(sys.argv[1]).windows(512)
with millstream.Loader(view, 8, output={output!r}) as loader:
    next(iter(loader))
    done = time.monotonic()
    with open("/proc/self/smaps_rollup") as rollup:
        [anonymous] = [line.split()[1] for line in rollup if line.startswith("Anonymous:")]
    print(start, done, int(anonymous) * 1024)
"""


def measure(quick: bool) -> Section:
    """Start every process in turn."""
    num_rounds = 3 if quick else 11
    data = corpora.dense(_NUM_TOKENS)
    with tempfile.TemporaryDirectory() as directory:
        text = _small_text(Path(directory))
        jobs = {
            _NUMPY: partial(_first_batch, data, "numpy"),
            _TORCH: partial(_first_batch, data, "torch"),
            _MEMORY: partial(_memory, data),
            _HELP: partial(_command, "--help"),
            _INSPECT: partial(_command, "inspect", str(data)),
            _VERIFY: partial(_command, "verify", str(data)),
            _TOKENIZE: partial(_tokenize, text),
        }
        for job in jobs.values():
            job()  # leaves bytecode
        found = in_turn(jobs, num_rounds)
    spreads = {name: Spread.of(values) for name, values in found.items()}
    return Section(
        topic="startup",
        text=(
            f"Fresh processes with an empty cache directory; {num_rounds} of each, in turn, "
            f"medians (least to most). The dataset has {_NUM_TOKENS:,} tokens, in page cache."
        ),
        tables=[
            Table(
                "Seconds, and MB",
                ["", "median (least to most)"],
                [[name, with_range(spread, digits=3)] for name, spread in spreads.items()],
            )
        ],
        targets=[
            Target(
                what=name.removesuffix(", MB"),
                measured=spreads[name].median,
                limit=limit,
                relation="at most",
                unit="MB" if name == _MEMORY else "s",
            )
            for name, limit in _LIMITS.items()
        ],
        raw=dict(found),
    )


def _small_text(directory: Path) -> Path:
    path, size = directory / "small.txt", 0
    with path.open("w") as file:
        for document in text_files.documents():
            size += file.write(document)
            if size >= _TEXT_BYTES:
                return path
    return path


def _load(data: Path, output: str) -> tuple[float, float, float]:
    before = "import torch" if output == "torch" else ""
    printed = python_output("-c", _LOAD.format(before=before, output=output), str(data))
    start, done, anonymous = map(float, printed.split())
    return start, done, anonymous


def _first_batch(data: Path, output: str) -> float:
    """Return the seconds from process start, or from `import torch`, to the first batch."""
    started = time.monotonic()  # the same clock in all processes
    imported, done, _ = _load(data, output)
    return done - (imported if output == "torch" else started)


def _memory(data: Path) -> float:
    return _load(data, "numpy")[2] / 1e6


def _command(*arguments: str) -> float:
    started = time.perf_counter()
    python_output("-m", "millstream", *arguments)
    return time.perf_counter() - started


def _tokenize(text: Path) -> float:
    with tempfile.TemporaryDirectory() as directory:
        tokenizer = str(text_corpus.tokenizer_json())
        return _command(
            "tokenize", str(text), "--tokenizer", tokenizer, "--out", f"{directory}/out"
        )
