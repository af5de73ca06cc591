"""Run everything on real text: tokenize, train, kill the run, resume it, prove the result.

The corpus is the source code of Python's standard library. The demo trains a tokenizer on it and
tokenizes it with two processes. Two torchrun ranks train on it until SIGKILL ends them in
mid-epoch; four ranks resume from the last checkpoint. Then the demo compares every row that was
served with the files on disk, read by plain NumPy. It takes about a minute.
"""

import argparse
import os
import signal
import sys
import sysconfig
import time
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import UsageError, VerificationError, WaitingWarning

if TYPE_CHECKING:
    from millstream.dataset import Dataset

SEQ_LEN = 512
STEP_ROWS = 24
SEED = 42
_VOCAB_SIZE = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output directory."""
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("demo-data"),
        help="Output directory; an earlier demo in it is replaced (default: demo-data)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo."""
    import json
    import shutil

    from millstream.opening import open

    if find_spec("torch") is None:
        raise UsageError("the demo needs torch; install it with: pip install 'millstream[torch]'")
    directory: Path = arguments.dir
    if directory.exists():
        if directory.resolve() == Path.cwd() or not (directory / ".millstream-demo").exists():
            raise UsageError(
                f"{directory} exists and is not from an earlier demo; choose another --dir"
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    (directory / ".millstream-demo").touch()

    _say("1. Tokenize: train a tokenizer on the standard library, tokenize with 2 workers")
    prepare(directory)
    data = open(directory / "corpus")
    view = data.windows(SEQ_LEN)
    print(f"   {len(data.shards)} shards; {len(view):,} windows of {SEQ_LEN:,} tokens")

    _say("2. Train: 2 torchrun ranks x 12 rows, killed by SIGKILL in mid-epoch")
    killed_after = _train(directory, name="first", ranks=2, kill_at=len(view) // STEP_ROWS // 2)
    state = json.loads((directory / "checkpoint.json").read_text())
    print(f"   killed after step {killed_after:,}; last checkpoint: {json.dumps(state)}")

    _say("3. Resume: 4 torchrun ranks x 6 rows, from that checkpoint to the end of the epoch")
    _train(directory, name="second", ranks=4)

    _say("4. Prove that every row was served exactly once")
    _prove(directory, data, state["position"])

    _say("5. Measure the throughput of one loader on this machine")
    _show_throughput(data)
    print(f"\nThe dataset is in {directory / 'corpus'}. To look at it, run:")
    print(f"   millstream inspect {directory / 'corpus'} --seq-len {SEQ_LEN}")
    return 0


def prepare(directory: Path) -> None:
    """Make a tokenizer and a dataset from the standard library, one document per file."""
    from millstream.text.sources import Source
    from millstream.text.tokenize.tokenizing import tokenize
    from millstream.text.training import train_tokenizer

    root = Path(sysconfig.get_path("stdlib"))
    files = [file for file in root.rglob("*.py") if "site-packages" not in file.parts]
    # Some test what Python does with text that is not UTF-8.
    source = Source(files, kind="text", documents="file", bad_rows="skip")
    start = time.perf_counter()
    training = train_tokenizer(
        source, _VOCAB_SIZE, specials=["<|endoftext|>"], out=directory / "tokenizer"
    )
    print(
        f"   {training.num_documents:,} files of {training.num_bytes / 1e6:.0f} MB; "
        f"{_VOCAB_SIZE:,} tokens learned in {time.perf_counter() - start:.1f} s"
    )
    report = tokenize(source, directory / "tokenizer", directory / "corpus", workers=2)
    assert report is not None
    print(
        f"   {report.tokens:,} tokens, {report.bytes_per_token:.2f} bytes each, in "
        f"{report.wall_seconds:.1f} s including start-up; skipped {report.skipped} files that are "
        "not UTF-8"
    )


def _train(directory: Path, *, name: str, ranks: int, kill_at: int | None = None) -> int:
    """Run torchrun and return the last step; `kill_at` kills all ranks once that step is logged."""
    import subprocess

    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)),
        *("--master-addr", "127.0.0.1", "--master-port", str(_free_port())),
        *("-m", "millstream.cli.demo_rank", str(directory), name, str(STEP_ROWS // ranks)),
    ]
    log = directory / f"{name}.torchrun.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        torchrun = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        while torchrun.poll() is None:
            time.sleep(0.02)
            if kill_at is not None and _last_step(directory, name) >= kill_at:
                for pid_file in directory.glob(f"{name}-*.pid"):
                    os.kill(int(pid_file.read_text()), signal.SIGKILL)
                torchrun.wait(60)
    finally:
        torchrun.kill()
        torchrun.wait()
    if kill_at is None and torchrun.returncode != 0:
        raise VerificationError(f"torchrun failed; see {log}")
    if kill_at is not None and _last_step(directory, name) < kill_at:
        raise VerificationError(f"torchrun ended before it was killed; see {log}")
    return _last_step(directory, name)


def _last_step(directory: Path, name: str) -> int:
    lines = _log(directory, name, rank=0)
    return lines[-1]["step"] if lines else 0


def _log(directory: Path, name: str, rank: int) -> list[dict[str, Any]]:
    """Return what a rank has logged, without a last line that the kill cut off."""
    import json

    path = directory / f"{name}-{rank}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _prove(directory: Path, data: "Dataset", checkpoint: int) -> None:
    import numpy as np
    import xxhash

    from millstream.formats.shard import STREAM

    first = [line for rank in range(2) for line in _log(directory, "first", rank)]
    second = [line for rank in range(4) for line in _log(directory, "second", rank)]
    handed_out = Counter(
        row
        for lines, keep in ((first, lambda p: p < checkpoint), (second, lambda p: True))
        for line in lines
        if keep(line["position"])
        for row in line["rows"]
    )
    stream = np.concatenate([np.fromfile(s.path(STREAM), data.fields) for s in data.shards])
    on_disk = Counter(
        xxhash.xxh3_64_hexdigest(stream[start : start + SEQ_LEN + 1].tobytes())
        for start in range(0, len(stream) - SEQ_LEN, SEQ_LEN)
    )
    if handed_out != on_disk:
        lost, extra = (on_disk - handed_out).total(), (handed_out - on_disk).total()
        raise VerificationError(f"{lost} windows were lost and {extra} were repeated")
    print(
        f"   {handed_out.total():,} rows were served by 2 + 4 ranks; the files contain "
        f"{on_disk.total():,} windows:\n   each was served exactly once (compared by hash with "
        "the files, read by NumPy)"
    )
    digests = {line["position"]: line["digest"] for line in first if line["rank"] == 0}
    redone = [line for line in second if line["rank"] == 0 and line["position"] in digests]
    different = [line for line in redone if line["digest"] != digests[line["position"]]]
    if different or not redone:
        raise VerificationError(f"{len(different)} of {len(redone)} repeated steps differ")
    print(
        f"   {len(redone)} steps between the checkpoint and the kill ran twice, on 2 ranks and on "
        f"4:\n   their digests are equal (the last: {redone[-1]['digest']})"
    )


def _show_throughput(data: "Dataset") -> None:
    import warnings

    from millstream.load.loader import Loader

    warnings.simplefilter("ignore", WaitingWarning)  # nothing is trained here
    import_module("torch")  # which takes seconds, and is not to be measured
    made = time.perf_counter()
    with Loader(data.windows(SEQ_LEN), 64, seed=SEED, endless=True) as loader:
        batches = iter(loader)
        next(batches)
        first_s = time.perf_counter() - made
        for _ in islice(batches, 500):
            pass
        before, start = loader.stats, time.perf_counter()
        for _ in islice(batches, 5000):
            pass
        seconds, after = time.perf_counter() - start, loader.stats
    tokens = after.tokens - before.tokens
    print(
        f"   {tokens / seconds / 1e6:,.0f} M tokens/s, globally shuffled, as int64 torch batches "
        f"of 64 x {SEQ_LEN}\n   (after a warm-up; the first batch took {first_s * 1e3:,.0f} ms)"
    )


def _say(title: str) -> None:
    print(f"\n{title}", flush=True)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
