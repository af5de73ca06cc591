import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import settings

from tests.helpers.bad_server import serving
from tests.helpers.datasets import write_dataset
from tests.helpers.reading_threads import wait_for_reading_threads

# Programs: one needs atheris, one torchtitan, of which it replaces parts.
collect_ignore = [
    *("attacks/fuzz.py", "attacks/fuzzing.py", "attacks/mutate.py"),
    "helpers/trainers/torchtitan_on_cpu.py",
]
collect_ignore_glob = ["golden/*/*.py"]  # programs that made golden data, with what they are of

# A shell that runs the tests in the background makes them, and all that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines stall, and under sanitizers nothing is fast.
settings.register_profile("millstream", deadline=None)
settings.load_profile("millstream")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """No test uses the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_waits_for_workers():
    """A DataLoader that failed leaves its workers to the garbage collection, which waits for each.

    Their queues end first, so they are not told to end, and torch waits for 5 s.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "torch.utils.data" in sys.modules:
            patch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)
        yield


@pytest.fixture(scope="session")
def tokens():
    """1,003 tokens that are all different, so that a batch tells exactly where it came from."""
    return np.random.default_rng(0).permutation(60_000)[:1003].astype(np.uint16)


@pytest.fixture(scope="session")
def data(tmp_path_factory, tokens):
    """The tokens in six shards, one of them empty and one a single token long."""
    return write_dataset(
        tmp_path_factory.mktemp("data") / "set", tokens, cuts=[1, 400, 400, 777, 1000]
    )


@pytest.fixture
def out(tmp_path):
    """A path in a directory that does not exist either."""
    return tmp_path / "new" / "out"


@pytest.fixture
def no_thread_is_left():
    yield
    wait_for_reading_threads(0)


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 256 KiB; only root may make one."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=256k", "millstream-test", str(path)]
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
