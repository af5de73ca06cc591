"""Loaders in forked, spawned, interrupted and torchrun processes."""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from itertools import islice

import pytest

import millstream
from tests.helpers.datasets import inputs_of
from tests.helpers.programs import run_python, start_python
from tests.helpers.reading_threads import wait_for_reading_threads


def make_loader(data):
    return millstream.Loader(data.windows(5), 4, seed=3)


@pytest.mark.process
def test_a_forked_child_goes_on_by_itself_and_does_not_disturb_its_parent(data):
    expected = inputs_of(make_loader(data))
    loader = make_loader(data)
    batches = iter(loader)
    got = inputs_of(islice(batches, 5))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writer, json.dumps(inputs_of(batches)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    got += inputs_of(batches)
    with os.fdopen(reader) as pipe:
        from_child = json.loads(pipe.read())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert got == expected
    assert from_child == expected[5:]


@pytest.mark.process
def test_a_parent_can_end_its_threads_while_a_forked_child_holds_the_pipes(data):
    loader = make_loader(data)
    next(iter(loader))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent is done
        os._exit(0)
    loader.close()
    wait_for_reading_threads(0)
    os.close(writer)
    os.close(reader)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def rest_of(loader, queue):
    queue.put(inputs_of(loader))


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_loader_travels_to_a_process_and_goes_on_from_its_position(data, method):
    expected = inputs_of(make_loader(data))
    loader = make_loader(data)
    inputs_of(islice(loader, 5))
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=rest_of, args=(loader, queue))
    process.start()
    received = queue.get()
    process.join()
    assert received == expected[5:]
    assert inputs_of(loader) == expected[5:]


def test_a_pickled_loader_is_small_and_keeps_its_settings(data):
    loader = millstream.Loader(
        data.windows(5), 4, seed=9, shuffle=millstream.BlockShuffle(3), tail="keep", output="numpy"
    )
    list(islice(loader, 3))
    pickled = pickle.dumps(loader)
    copy = pickle.loads(pickled)
    loader.close()
    assert len(pickled) < 20_000
    assert copy.state_dict() == loader.state_dict()
    assert inputs_of(copy) == inputs_of(loader)


WAITING = """
import sys
import threading
import millstream
data = millstream.open(sys.argv[1])
loader = millstream.Loader(data.windows(5), 4, endless=True)
for number, batch in enumerate(loader):
    if number == 3:
        print("ready", flush=True)
"""


@pytest.mark.process
def test_ctrl_c_ends_a_process_that_is_loading(data):
    process = start_python(WAITING, data.shards[0].directory)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


LEAVING = """
import sys
import threading
import millstream
data = millstream.open(sys.argv[1])
loader = millstream.Loader(data.windows(5), 4, endless=True, prefetch=64)
batches = iter(loader)
for _ in range(3):
    kept = next(batches)
if sys.argv[2] == "raise":
    raise SystemExit(3)
"""


LATE = """
import os
import sys
import millstream

class Late:
    def __init__(self, batches):
        self.batches = batches

    def __del__(self, next=next, str=str, write=os.write, error=RuntimeError):
        try:
            next(self.batches)
        except error as refused:
            write(1, str(refused).encode())

kind, path = sys.argv[1:]
if kind == "text":
    loader = millstream.TextLoader(path, "bytes", 1, 8, output="numpy")
else:
    view = millstream.open(path).windows(5, transform=lambda batch: batch)
    loader = millstream.Loader(view, 4)
next(iter(loader))
loader.close()
late = Late(iter(loader))  # is deleted while the interpreter finalizes
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_a_loader_that_is_used_while_the_interpreter_finalizes_raises_and_does_not_hang(
    data, tmp_path, kind
):
    (tmp_path / "text.txt").write_text("some text " * 1000)
    path = tmp_path / "text.txt" if kind == "text" else data.shards[0].directory
    done = run_python(LATE, kind, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the interpreter is exiting")


@pytest.mark.process
@pytest.mark.parametrize(("how", "status"), [("return", 0), ("raise", 3)])
def test_the_interpreter_exits_while_threads_read_ahead(data, how, status):
    process = start_python(LEAVING, data.shards[0].directory, how)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (status, "")


TRAINING = """
import json, os, sys
import torch, torch.distributed
import millstream
torch.distributed.init_process_group("gloo")
loader = millstream.Loader(millstream.open(sys.argv[1]).windows(5), 3, seed=1)
rows = [[batch["input_ids"].tolist(), loader.digest()] for batch in loader]
with open(f"{sys.argv[2]}/{loader.plan.rank}.json", "w") as file:
    json.dump(rows, file)
torch.distributed.destroy_process_group()
"""


@pytest.mark.process
def test_ranks_of_torchrun_share_one_order_without_being_told(data, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(TRAINING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    directory = str(data.shards[0].directory)
    subprocess.run(
        [*torchrun, "--standalone", str(program), directory, str(tmp_path)],
        check=True,
        capture_output=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    shares = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    alone = millstream.Loader(data.windows(5), 6, seed=1, rank=0, ranks=1)
    for batch, (one, one_digest), (two, two_digest) in zip(alone, *shares, strict=True):
        assert batch["input_ids"][0::2].tolist() == one
        assert batch["input_ids"][1::2].tolist() == two
        assert alone.digest() == one_digest == two_digest


@pytest.mark.process
def test_a_child_that_is_forked_while_a_thread_takes_a_batch_can_close_and_go_on(data):
    loader = millstream.Loader(data.windows(5), 4, seed=3, endless=True)
    next(iter(loader))  # no fork may fall into an import: Python's own lock would stay held
    stop = threading.Event()

    def consume():
        for _ in loader:
            if stop.is_set():
                return

    consumer = threading.Thread(target=consume)
    consumer.start()
    children = []
    for _ in range(20):  # often enough that the lock is held at some of the forks
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            loader.close()
            next(iter(loader))
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    stop.set()
    consumer.join()
    loader.close()
    assert statuses == [0] * 20
