"""Real SIGINTs at random moments, caught as in a notebook, after which loading continues."""

import itertools
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import millstream
from millstream.formats import files
from tests.helpers import paths

NUM_ROWS = 500

CHILD = """
import gc, itertools, json, os, random, signal, sys, time
import numpy as np
import millstream
from tests.helpers.reading_threads import num_reading_threads, wait_for_reading_threads
from tests.helpers.sigint import send_interrupts

path, prefetch, decodes, num_interrupts = sys.argv[1], *map(int, sys.argv[2:5])
step_size = int(sys.argv[6])  # 0 for steps of one batch, which is not in a list
is_armed, num_caught, unraisable = False, 0, []
sys.unraisablehook = lambda what: unraisable.append(f"{what.exc_value!r} in {what.object!r}")

def interrupt(number, frame):
    global is_armed
    if is_armed:  # once for every time that it is armed, so that catching it is not interrupted
        is_armed = False
        raise KeyboardInterrupt

def decode(blob):
    time.sleep(0.0005)
    return blob

def new_loader():
    data = millstream.open(path)
    view = data.windows(4, metadata=decode) if decodes else data.windows(4)
    return millstream.Loader(
        view,
        1,
        prefetch=prefetch,
        threads=2,
        seed=5,
        output="numpy",
        endless=True,
        global_batch_size=step_size or None,
    )

got, chance = [], random.Random(int(sys.argv[5]))
take = got.append
loader = new_loader()
batches = iter(loader)
num_open = len(os.listdir("/proc/self/fd"))
signal.signal(signal.SIGINT, interrupt)
sender = send_interrupts(int(sys.argv[5]))
while num_caught < num_interrupts:
    try:
        is_armed = True
        # Python looks for signals after a call and at a jump: never between the two lines.
        for batch in itertools.islice(batches, 100):
            take(batch)
    except KeyboardInterrupt:
        num_caught += 1
    try:
        is_armed = True
        what = chance.choice(["the same", "the same", "anew", "close", "resume"])
        if what == "anew":
            batches = iter(loader)
        elif what == "close":
            loader.close()
        elif what == "resume":
            state = json.loads(json.dumps(loader.state_dict()))
            fresh = new_loader()
            fresh.load_state_dict(state)
            fresh_batches = iter(fresh)
            loader, batches = fresh, fresh_batches
    except KeyboardInterrupt:
        num_caught += 1
    is_armed = False
    position = loader.position
    if position != len(got) * max(1, step_size):
        raise SystemExit(f"position {position}, and {len(got)} steps came")
os.kill(sender, signal.SIGKILL)
os.waitpid(sender, 0)
loader.close()
del loader, batches, batch
gc.collect()
wait_for_reading_threads(0)
if step_size:
    got = [batch for step in got for batch in step]
print(json.dumps({
    "rows": [batch["input_ids"][0, 0].item() for batch in got],
    "caught": num_caught,
    "threads": num_reading_threads(),
    "unraisable": unraisable,
    "opened": len(os.listdir("/proc/self/fd")) - num_open,
}))
"""


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """Windows of four tokens, each of which is the window's number."""
    path = tmp_path_factory.mktemp("interrupts") / "data"
    tokens = np.repeat(np.arange(NUM_ROWS + 1), 4)
    with millstream.Writer(path, vocab_size=NUM_ROWS + 1, metadata=bytes) as writer:
        for start in range(0, len(tokens), 40):
            writer.append(tokens[start : start + 40], b"x")
    return path


def run_interrupted(path, prefetch, decodes, num_interrupts, seed, step_size):
    arguments = [path, prefetch, int(decodes), num_interrupts, seed, step_size]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, arguments)],
        cwd=paths.ROOT,
        timeout=60 + num_interrupts / 20,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("prefetch", "decodes", "step_size"),
    [(0, False, 0), (3, False, 0), (0, True, 0), (3, True, 0), (0, True, 3), (3, False, 7)],
)
def test_interrupts_at_random_moments_lose_and_repeat_nothing(
    numbered, prefetch, decodes, step_size
):
    found = run_interrupted(numbered, prefetch, decodes, 80, prefetch, step_size)
    data = millstream.open(numbered)
    order = millstream.Loader(data.windows(4), 1, seed=5, endless=True).order
    expected = order.samples_at(np.arange(len(found["rows"]))).tolist()
    assert found["rows"] == expected
    assert found["caught"] >= 80
    assert (found["threads"], found["unraisable"]) == (0, [])
    assert found["opened"] <= 0


@pytest.mark.process
@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_a_signal_handler_raises_after_it_closed_the_loader_is_not_lost(numbered, prefetch):
    child = """
import os, signal, sys, time, millstream
def end(number, frame):
    loader.close()
    sys.exit(7)
def decode(blob):
    calls.append(blob)
    if len(calls) == 8:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
    return blob
calls = []
signal.signal(signal.SIGTERM, end)
view = millstream.open(sys.argv[1]).windows(4, metadata=decode)
loader = millstream.Loader(view, 1, output="numpy", prefetch=int(sys.argv[2]), endless=True)
for batch in loader:
    if loader.position > 2000:
        break
"""
    done = subprocess.run(
        [sys.executable, "-c", child, str(numbered), str(prefetch)], timeout=60, check=False
    )
    assert done.returncode == 7


@pytest.mark.process
@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("action", ["next", "close", "state", "fork"])
def test_a_signal_handler_may_use_the_loader(numbered, prefetch, action):
    child = """
import itertools, os, random, signal, sys, time, millstream
def decode(blob):
    time.sleep(0.0003)
    return blob
got, forking = [], False
def handle(number, frame):
    global forking
    if forking:  # a fork within one would wait for a lock of concurrent.futures without end
        return
    forking = action == "fork"
    if action == "next":
        got.append(next(batches)["input_ids"][0, 0].item())
    elif action == "close":
        loader.close()
    elif action == "state":
        loader.load_state_dict(loader.state_dict())
    elif os.fork() == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os._exit(0 if len(list(itertools.islice(batches, 3))) == 3 else 1)
    else:
        assert os.wait()[1] == 0
        forking = False
prefetch, action = int(sys.argv[2]), sys.argv[3]
chance = random.Random(0)
view = millstream.open(sys.argv[1]).windows(4, metadata=decode)
loader = millstream.Loader(view, 1, output="numpy", prefetch=prefetch, seed=5)
batches = iter(loader)
signal.signal(signal.SIGALRM, handle)
for batch in batches:
    got.append(batch["input_ids"][0, 0].item())
    # Once a batch at most, so that batches come however slow the machine is.
    if len(got) <= 480 and chance.random() < (0.1 if action == "fork" else 0.8):
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1.5e-3))
print(sorted(got) == list(range(len(got))), len(got))
"""
    done = subprocess.run(
        [sys.executable, "-c", child, str(numbered), str(prefetch), action],
        timeout=100,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"True {NUM_ROWS}\n", done.stderr[-2000:]


@pytest.mark.filterwarnings("ignore:unclosed file")  # Python closes one that is not in use yet
def test_next_drops_no_batch_at_an_interrupt_that_came_before_it_was_ready(numbered):
    """Python would raise it after the call, and lose what the call returned."""
    loader = millstream.Loader(millstream.open(numbered).windows(4), 1, prefetch=0, output="numpy")
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    num_batches = num_caught = 0
    batches = iter(loader)
    try:
        for _ in range(300):
            signal.setitimer(signal.ITIMER_REAL, 2e-5)
            try:
                next(batches)
                num_batches += 1
            except KeyboardInterrupt:
                num_caught += 1
    except KeyboardInterrupt:
        num_caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert loader.position - num_batches <= max(3, num_caught // 2)


@pytest.mark.process
def test_a_close_that_is_interrupted_leaves_files_to_the_thread_that_reads_them(tmp_path):
    child = """
import random, signal, sys, threading
import numpy as np, millstream
with millstream.Writer(sys.argv[1], vocab_size=60_000) as writer:
    writer.append(np.arange(1 << 21) % 60_000)
view = millstream.open(sys.argv[1], access="mmap").windows(2048)
loader = millstream.Loader(view, 16, prefetch=3, threads=1, output="numpy", endless=True)
is_over = threading.Event()
def take():
    for batch in loader:
        if is_over.is_set():
            return
taker = threading.Thread(target=take)
taker.start()
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(1500):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + 3e-4 * random.random())
        for _ in range(20):
            loader.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
is_over.set()
taker.join()
loader.close()
"""
    command = [sys.executable, "-c", child, str(tmp_path / "data")]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


@pytest.mark.filterwarnings("ignore:unclosed file")  # Python closes one that is not in use yet
def test_an_interrupt_while_a_file_is_opened_leaves_no_descriptor(numbered):
    def is_opened(last):
        """Open, and interrupt at the n-th instruction of the module that opens files."""
        instructions, tracing = itertools.count(), sys.gettrace()

        def trace(frame, event, arg):
            frame.f_trace_opcodes = frame.f_code.co_filename == files.__file__
            if event == "opcode" and next(instructions) == last:
                raise KeyboardInterrupt
            return trace

        # Python 3.12 reports instructions only if a frame has asked for them before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(trace)
        try:
            millstream.open(numbered)
        except KeyboardInterrupt:
            return False
        finally:
            sys.settrace(tracing)
        return True

    before = set(os.listdir("/proc/self/fd"))
    for last in itertools.count():
        if is_opened(last):
            break
        assert set(os.listdir("/proc/self/fd")) <= before
    assert last > 50
