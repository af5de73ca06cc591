"""The JAX example: runs that resume exactly, on another number of processes too."""

import re
import shutil
import socket

import numpy as np
import pytest

from tests.helpers.datasets import write_dataset
from tests.helpers.example_runs import ON_CPU, Run

pytest.importorskip("jax")

STEPS = 40


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """300 documents of 1 to 100 tokens."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 100, 300)
    tokens = generator.zipf(1.5, lengths.sum()) % 512
    path = tmp_path_factory.mktemp("documents") / "data"
    write_dataset(path, tokens, cuts=np.cumsum(lengths)[:-1], shard_bytes=8000, vocab_size=512)
    return path


def begin(documents, out, name, processes):
    """The processes of a run, with a log each beside its directory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = ["--tiny", "--data", documents, "--seq-len", 32, "--steps", STEPS, "--out", out]
    options += ["--checkpoint-every", 4, "--coordinator", address, "--processes", processes]
    return [
        Run(
            "train_jax.py",
            [*options, "--process", process],
            out.with_name(f"{name}-{process}.log"),
            ON_CPU | {"JAX_PLATFORMS": "cpu"},
        )
        for process in range(processes)
    ]


def end(runs):
    """What the first process printed, once all have ended well."""
    printed, *_ = [run.end() for run in runs]
    return printed


def steps_of(printed):
    """The loss and the digest of every step that was printed."""
    found = re.findall(r"^step (\d+): loss ([\d.]+), rows ([0-9a-f]{32})$", printed, re.M)
    return {int(step): (float(loss), digest) for step, loss, digest in found}


@pytest.mark.process
@pytest.mark.slow
def test_two_processes_that_are_killed_resume_exactly_also_as_one(documents, tmp_path):
    expected = end(begin(documents, tmp_path / "whole", "whole", processes=2))
    assert list(steps_of(expected)) == list(range(1, STEPS + 1))
    out = tmp_path / "killed"
    killed = begin(documents, out, "killed", processes=2)
    killed[0].wait_for((out / "checkpoint.npz").exists)
    for run in reversed(killed):  # without the last one, the others would wait for it
        run.process.kill()
        run.process.join()
    printed = killed[0].log.read_text()
    assert 0 < max(steps_of(printed)) < STEPS
    (out / "checkpoint.tmp").write_bytes(b"half of a")
    shutil.copytree(out, tmp_path / "moved")

    resumed = end(begin(documents, out, "resumed", processes=2))
    assert int(re.search(r"begins at step (\d+)\n", resumed)[1]) % 4 == 0
    assert steps_of(printed) | steps_of(resumed) == steps_of(expected)
    assert re.findall("^weights .*", resumed, re.M) == re.findall("^weights .*", expected, re.M)

    moved = steps_of(end(begin(documents, tmp_path / "moved", "moved", processes=1)))
    assert 0 < min(moved) <= STEPS - 4
    for step, (loss, digest) in moved.items():
        assert digest == steps_of(expected)[step][1]
        assert loss == pytest.approx(steps_of(expected)[step][0], abs=1e-3)
