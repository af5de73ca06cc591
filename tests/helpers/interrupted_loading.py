"""Uses a `TextLoader` while another process sends SIGINT at random moments, as from a notebook.

`python -m tests.helpers.interrupted_loading DIRECTORY NUM_INTERRUPTS [SEED]` ends with an
assertion at a batch that is lost, repeated or wrong, at a thread that is left, and at an exception
that Python could not raise.
"""

import collections
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time

from millstream.cache import cache_directory
from tests.helpers.live_text import make_loader, rows_of
from tests.helpers.sigint import send_interrupts

is_armed = False
num_interrupts = 0
unraisable = []  # exceptions that Python could only print


def interrupt(number, frame):
    """As Python's own handler, but only where an interrupt is expected."""
    global num_interrupts
    if is_armed:
        num_interrupts += 1
        raise KeyboardInterrupt


def attempt(call):
    """Call until it returns or is interrupted, perhaps several times while it cleans up."""
    global is_armed
    try:
        is_armed = True
        call()
        is_armed = False
    except KeyboardInterrupt:
        is_armed = False  # until here no signal handler runs


def rows_of_step(step):
    """The rows of a batch, or of a list of them."""
    return rows_of(step if isinstance(step, list) else [step])


class Notebook:
    """A loader, an iterator and a variable, all used on after interrupts."""

    def __init__(self, path, endless, step_size):
        self._step_size = step_size or 2
        self._make = lambda: make_loader(
            path,
            "full_best_fit",
            8,
            endless=endless,
            prefetch=2,
            threads=2,
            global_batch_size=step_size,
        )
        with self._make() as loader:
            self._expected = [rows_of_step(step) for step in itertools.islice(loader, 500)]
        self._begin()
        self.num_batches = 0
        self._is_alone = True  # no loader was left to itself

    def _begin(self):
        self.loader = self._make()
        self._iterator = iter(self.loader)
        self._cell, self._num_reached = {}, 0

    def look(self):
        """Compare what has come, if anything, with what comes at that position."""
        loader, last = self.loader, self._num_reached
        self._num_reached = loader.position // self._step_size
        if not loader.endless:
            self._num_reached += loader.epoch * len(self._expected)
        batch = self._cell.pop("batch", None)
        assert self._num_reached - last == (batch is not None), "a batch was lost or repeated"
        if batch is not None:
            self.num_batches += 1
            assert rows_of_step(batch) == self._expected[last % len(self._expected)]
        if loader.endless and self._num_reached == len(self._expected):
            self.close()
            self._begin()

    def go_on(self):
        """Use the iterator that there is."""
        cell = self._cell
        for cell["batch"] in self._iterator:  # no signal handler runs before it is stored
            break
        else:
            self._iterator = iter(self.loader)

    def begin_anew(self):
        """Use a new iterator."""
        cell = self._cell
        for cell["batch"] in self.loader:
            break

    def close(self):
        """Close the loader, which leaves no thread; it can be used on."""
        self.loader.close()
        assert threading.active_count() == 1 or not self._is_alone, threading.enumerate()

    def change(self):
        """Go on with another loader, which counts rows anew; the first is left to itself."""
        for path in cache_directory("lengths").glob("*.npy"):
            path.unlink(missing_ok=True)
        loader = self._make()
        loader.load_state_dict(self.loader.state_dict())
        iterator = iter(loader)
        self._is_alone, self.loader, self._iterator = False, loader, iterator


def run(path, num_wanted, seed, endless, step_size):
    """Interrupt so many times."""
    generator = random.Random(seed)
    notebook = Notebook(path, endless, step_size)
    num_tasks, done = len(os.listdir("/proc/self/task")), collections.Counter()
    sender = send_interrupts(seed)
    try:
        while num_interrupts < num_wanted:
            actions = [notebook.go_on, notebook.begin_anew, notebook.close, notebook.change]
            (action,) = generator.choices(actions, [10, 5, 2, 1])
            before = num_interrupts
            attempt(action)
            found = [repr(each.object) for each in unraisable]
            unraisable.clear()  # whose frames refer to loaders
            assert not found, found
            done[action.__name__] += num_interrupts - before
            notebook.look()
    finally:
        os.kill(sender, signal.SIGKILL)
        os.waitpid(sender, 0)
    notebook.close()
    gc.collect()
    end = time.monotonic() + 20
    while len(os.listdir("/proc/self/task")) > num_tasks:  # the system takes a moment
        assert time.monotonic() < end, f"threads are left: {threading.enumerate()}"
        time.sleep(0.01)
    return notebook.num_batches, dict(done)


def main(path, num_wanted, seed="0"):
    """Interrupt endless loaders, and ones that go on from epoch to epoch."""
    global num_interrupts
    os.environ["XDG_CACHE_HOME"] = f"{path}-cache"
    sys.unraisablehook = unraisable.append
    signal.signal(signal.SIGINT, interrupt)
    for step_size, endless in itertools.product((None, 6), (True, False)):
        num_interrupts = 0
        num_batches, done = run(path, int(num_wanted), int(seed), endless, step_size)
        print(
            f"endless={endless}, global_batch_size={step_size}: {num_batches:,} steps, "
            f"{num_interrupts:,} interrupts {done}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
