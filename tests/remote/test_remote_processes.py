"""Processes that read remote data: how they end, and what becomes of those that they start."""

import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

import millstream
from millstream.remote import mirrored_file
from tests.helpers.programs import run_python
from tests.helpers.remote_data import batches_of, upload, write_tokens
from tests.helpers.waiting import wait_until

pytest.importorskip("obstore")
pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = """
import gc, sys, threading, time
import millstream

mode, url, cache_bytes = sys.argv[1:]
forever = 1000  # seconds: who waits for so long is ended as a hang
remote = millstream.Remote(
    request_seconds=forever, total_seconds=forever, cache_bytes=int(cache_bytes)
)
if mode == "opening":
    print("ready", flush=True)
if mode == "opening many":
    print("ready", flush=True)
    millstream.open(f"{url}/*.stream", format="flat:uint16", remote=remote)
data = millstream.open(url, remote=remote)
loader = millstream.Loader(data.windows(512), 8, seed=1, output="numpy")
print("ready", flush=True)
sys.stdin.readline()
if mode == "interrupt":
    print("reading", flush=True)
    next(iter(loader))
batches = iter(loader)

def read():
    try:
        next(batches)
    except RuntimeError:  # the interpreter is exiting
        pass

threading.Thread(target=read, daemon=True).start()
time.sleep(0.3)
if mode == "close":
    loader.close()
if mode == "collect":
    del loader, batches
    gc.collect()
if mode == "exception":
    raise ValueError("mine")
if mode == "exit":
    sys.exit(3)
"""


@pytest.fixture
def url(tmp_path, s3, bucket):
    write_tokens(tmp_path / "data", 500_000, shard_bytes=200_000)
    upload(s3.store(bucket), tmp_path / "data", "data/")
    return f"s3://{bucket}/data"


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
@pytest.mark.parametrize(
    ("mode", "code", "said"),
    [
        ("normal", 0, ""),
        ("exception", 1, "ValueError: mine"),
        ("exit", 3, ""),
        ("close", 0, ""),
        ("collect", 0, ""),
        ("interrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("opening", -signal.SIGINT, "KeyboardInterrupt"),
        ("opening many", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_a_process_ends_at_once_while_the_server_stalls(
    url, s3, s3_proxy, mode, code, said, cache_bytes
):
    stalls = {"rates": {"stall": 1.0}, "methods": ["GET"]}
    if "opening" in mode:
        s3_proxy.set(**stalls)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, mode, url, str(cache_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | s3.environment(s3_proxy.endpoint),
    )
    assert process.stdout.readline() == "ready\n"
    if "opening" not in mode:
        s3_proxy.set(**stalls)
        process.stdin.write("go\n")
        process.stdin.flush()
    if mode == "interrupt":
        process.stdout.readline()
    time.sleep(0.5)
    if code == -signal.SIGINT:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == code, errors
    assert errors.strip().endswith(said), errors
    assert not any(word in errors for word in ("panicked", "Fatal", "FATAL", "Segmentation"))


FORK = """
import os, sys
import millstream

data = millstream.open(sys.argv[1], remote=millstream.Remote(cache_bytes=int(sys.argv[2])))
loader = millstream.Loader(data.windows(64), 4, seed=1, output="numpy")
batches = iter(loader)
next(batches)
for _ in range(5):  # also while threads hold locks
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            millstream.open(sys.argv[1] + "/other")
        except millstream.MillstreamError as error:
            said = str(error)
        os._exit(0 if "spawn" in said else 1)
    assert os.waitpid(child, 0)[1] == 0
    next(batches)
loader.close()
"""


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
@pytest.mark.usefixtures("s3_environment")
def test_a_forked_child_is_refused_at_once(url, cache_bytes):
    done = run_python(FORK, url, cache_bytes)
    assert done.returncode == 0, done.stderr


FORK_WITHIN_LOCKS = """
import fcntl, os, sys, time
import millstream
from millstream.remote.block_file import locked_directory
from millstream.remote.cache_space import _alone
from millstream.remote.found_files import FoundFiles, removing_files

data = millstream.open(sys.argv[1])
file = data.reader.mirrored_files()[0]
found = FoundFiles()
found.keep(file.blocks.path.parents[2])
with locked_directory(file.map_path.parent), file.blocks.claim(0, 8192), _alone() as is_alone:
    assert is_alone
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)  # nobody waits for its output
        time.sleep(60)
        os._exit(0)
found.close()
time.sleep(0.5)
directory = os.open(file.map_path.parent, os.O_RDONLY)
fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
with file.blocks.claim(0, 8192) as claimed, _alone() as is_alone:
    assert claimed == [(0, 8192)]
    assert is_alone
with removing_files(file.blocks.path.parents[2]) as may_remove:
    assert may_remove
os.kill(child, 9)
"""


@pytest.mark.usefixtures("s3_environment")
def test_a_forked_child_keeps_no_locks_of_the_cache(url):
    """It may be a worker that never reads remote data, and lives as long as its parent."""
    done = run_python(FORK_WITHIN_LOCKS, url)
    assert done.returncode == 0, done.stderr


# Not by opening files until none is left: threads of the client close some at any time.
OUT_OF_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
"""
# Without a loader: its threads open files of the cache, too, and one of them might fail first.
FILE_THAT_CANNOT_BE_OPENED = f"""
import sys
import millstream

def open_view():
    remote = millstream.Remote(cache_bytes=1 << 30)
    return millstream.open(sys.argv[1], remote=remote).windows(64)

view, other = open_view(), open_view()
view.read(range(len(view)))  # all is in the cache, and imported
{OUT_OF_DESCRIPTORS}
try:
    other.read([0])
except millstream.MillstreamError as error:
    print(error)
"""


@pytest.mark.usefixtures("s3_environment")
def test_a_file_of_the_cache_that_cannot_be_opened_is_told(url):
    done = run_python(FILE_THAT_CANNOT_BE_OPENED, url)
    assert done.returncode == 0, done.stderr
    assert url in done.stdout
    assert ".stream: cannot open: Too many open files" in done.stdout


TOO_MANY_FILES = f"""
import sys
import millstream

file = millstream.open(sys.argv[1]).reader.mirrored_files()[0]
file.make()
{OUT_OF_DESCRIPTORS}
try:
    file.provide()
except millstream.MillstreamError as error:
    print(error)
"""


@pytest.mark.usefixtures("s3_environment")
def test_too_many_open_files_are_told_with_what_to_do(url):
    done = run_python(TOO_MANY_FILES, url)
    assert done.returncode == 0, done.stderr
    assert "Too many open files; allow more open files (ulimit -n)" in done.stdout


WORKERS = """
import sys
import torch
import millstream

class Rows(torch.utils.data.Dataset):
    def __init__(self, view):
        self.view = view
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return self.view[index * 50]["input_ids"].astype("int64")

if __name__ == "__main__":
    context, url = sys.argv[1:]
    view = millstream.open(url, remote=millstream.Remote(cache_bytes=1 << 30)).windows(64)
    view[len(view) - 1]
    loader = torch.utils.data.DataLoader(
        Rows(view), batch_size=8, num_workers=2, multiprocessing_context=context, timeout=20
    )
    print(sum(int(batch.sum()) for batch in loader))
"""


@pytest.mark.usefixtures("s3_environment")
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_that_are_forked_are_told_to_spawn(tmp_path, url, context):
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(WORKERS)
    command = [sys.executable, tmp_path / "program.py", context, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if context == "fork":
        assert done.returncode == 1
        assert "multiprocessing_context='spawn'" in done.stderr
    else:
        view = millstream.open(tmp_path / "data").windows(64)
        expected = sum(int(view[k * 50]["input_ids"].astype("int64").sum()) for k in range(64))
        assert (done.returncode, done.stdout.split()) == (0, [str(expected)]), done.stderr


AFTER_REMOVAL = """
import multiprocessing, os, shutil, sys
import millstream

def read(view, rows):
    return [view[row]["input_ids"].tobytes() for row in rows]

if __name__ == "__main__":
    view = millstream.open(sys.argv[1]).windows(64)
    view[0]
    shutil.rmtree(os.environ["XDG_CACHE_HOME"])
    rows = [0, 1000, len(view) - 1]
    read(view, [0, len(view) - 1])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(read, (view, rows)) == read(view, rows)
    for path in millstream.cache.cache_directory("remote").glob("*/mirror.json"):
        path.unlink()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        try:
            pool.apply(read, (view, rows))
        except millstream.MillstreamError as error:
            print(error)
"""


@pytest.mark.usefixtures("s3_environment")
def test_a_worker_fetches_what_is_missing_of_a_cache_that_was_removed(tmp_path, url):
    """Without knowing where the files come from, it would take them for local ones, with holes."""
    (tmp_path / "program.py").write_text(AFTER_REMOVAL)
    command = [sys.executable, tmp_path / "program.py", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "mirror.json was removed" in done.stdout


READ_PICKLED = """
import pickle, sys
import millstream

with open(sys.argv[1], "rb") as file:
    view = pickle.load(file)
try:
    print(millstream.Loader(view, 8, output="numpy", shuffle=False).__iter__().__next__())
except millstream.MillstreamError as error:
    print(error)
"""


def test_a_worker_reads_the_objects_that_its_parent_has_opened(tmp_path, file_server):
    """One that starts later would read what has replaced them."""
    path = file_server.directory / "x.bin"
    path.write_bytes(bytes(200_000))
    remote = millstream.Remote(cache_bytes=0)
    data = millstream.open(f"{file_server.endpoint}/x.bin", format="flat:uint16", remote=remote)
    (tmp_path / "view").write_bytes(pickle.dumps(data.windows(64)))
    (tmp_path / "other").write_bytes(b"\1" * 200_000)
    (tmp_path / "other").replace(path)
    done = run_python(READ_PICKLED, tmp_path / "view")
    assert f"{file_server.endpoint}/x.bin: its ETag" in done.stdout, done.stderr
    assert "changed" in done.stdout


SHARED = """
import os, sys
import millstream
from tests.helpers.remote_data import batches_of
import hashlib

url, seed, limit, count = sys.argv[1], *map(int, sys.argv[2:5])
remote = millstream.Remote(cache_bytes=limit, ahead_bytes=1 << 16)
data = millstream.open(url, remote=remote)
loader = millstream.Loader(data.windows(64), 8, seed=seed, output="numpy")
print(hashlib.sha256(repr(batches_of(loader, count)).encode()).hexdigest())
"""


@pytest.mark.usefixtures("s3_environment")
def test_processes_share_a_cache_that_is_too_small_for_them(tmp_path, url):
    """Blocks are dropped while others read them; nobody ever gets a hole."""
    import hashlib

    local = millstream.open(tmp_path / "data")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SHARED, url, str(seed), "300000", "700"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    for seed, process in enumerate(processes):
        found, _ = process.communicate(timeout=60)
        loader = millstream.Loader(local.windows(64), 8, seed=seed, output="numpy")
        expected = hashlib.sha256(repr(batches_of(loader, 700)).encode()).hexdigest()
        assert found.strip() == expected


def first_batches(url):
    data = millstream.open(url)
    return batches_of(millstream.Loader(data.windows(512), 8, seed=1, output="numpy"), 1)


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_another_process_was_fetching_is_fetched_when_that_ends_or_stands_still(
    tmp_path, url, s3, s3_proxy, s3_environment, is_killed, monkeypatch
):
    expected = first_batches(tmp_path / "data")
    environment = os.environ | s3.environment(s3_proxy.endpoint)
    program = [sys.executable, "-c", PROGRAM, "normal", url, str(1 << 30)]
    with subprocess.Popen(
        program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        s3_proxy.set(rates={"stall": 1.0}, methods=["GET"])
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_until(lambda: s3_proxy.counts()["faults"])
        time.sleep(0.5)  # until it only waits: stopped within a system call, it may keep a lock
        process.send_signal(signal.SIGKILL if is_killed else signal.SIGSTOP)
        s3_proxy.set()
        monkeypatch.setattr(mirrored_file, "_MOST_CLAIM_TICKS", 10**6 if is_killed else 10)
        for name, value in s3.environment(s3_proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        assert first_batches(url) == expected
        process.kill()


@pytest.mark.usefixtures("s3_environment")
def test_a_cache_is_used_on_after_its_process_was_killed(tmp_path, url, s3, s3_proxy):
    local = millstream.open(tmp_path / "data")
    loader = millstream.Loader(local.windows(64), 8, seed=1, output="numpy")
    expected = batches_of(loader, 100)
    environment = os.environ | s3.environment()
    for delay in (0.0, 0.1, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True)\n" + SHARED, url, "1", str(1 << 30), "100"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        process.stdout.readline()
        time.sleep(0.3 + delay)
        process.kill()
        process.communicate()
        data = millstream.open(url)
        again = millstream.Loader(data.windows(64), 8, seed=1, output="numpy")
        assert batches_of(again, 100) == expected
