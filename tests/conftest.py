import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import penstock
from tests.helpers.bad_server import serving

# Programs: one needs atheris.
collect_ignore = ["attacks/fuzz.py", "attacks/fuzzing.py", "attacks/mutate.py"]
collect_ignore_glob = ["golden/*/*.py"]  # programs that made golden data, with what they are of

# Shared machines stall, and under sanitizers nothing is fast.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


def write(path, tokens, *, cuts=(), shard_bytes=1, **options):
    """One document per piece between `cuts`, and a shard per document unless told otherwise."""
    options = {"vocab_size": 1 << 16} | options
    with penstock.Writer(path, shard_bytes=shard_bytes, **options) as writer:
        for document in np.split(np.asarray(tokens), list(cuts)):
            writer.append(document)
    return penstock.open(path)


@pytest.fixture(scope="session")
def tokens():
    """1,003 tokens that are all different, so that a batch tells exactly where it came from."""
    return np.random.default_rng(0).permutation(60_000)[:1003].astype(np.uint16)


@pytest.fixture(scope="session")
def data(tmp_path_factory, tokens):
    """The tokens in six shards, one of them empty and one a single token long."""
    return write(tmp_path_factory.mktemp("data") / "set", tokens, cuts=[1, 400, 400, 777, 1000])


def num_reading_threads():
    """How many threads of this process read for loaders; they are not Python's."""
    num_threads = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended by now
            name = Path("/proc/self/task", task, "comm").read_text()
            num_threads += name == "penstock-reader\n"
    return num_threads


def has_reading_threads(number):
    """Whether there are so many, soon: a new one is named late, an old one is listed for long."""
    deadline = time.monotonic() + 20
    while (found := num_reading_threads()) != number and time.monotonic() < deadline:
        time.sleep(0.001)
    return found == number


def no_reading_threads():
    """Whether all have ended."""
    return has_reading_threads(0)


@pytest.fixture
def no_thread_is_left():
    yield
    assert no_reading_threads()


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 256 KiB; only root may make one."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=256k", "penstock-test", str(path)]
    if os.geteuid() != 0 or not mount:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run([mount, *options], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def server(monkeypatch):
    """A web server on this machine, which no proxy stands in front of."""
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server
