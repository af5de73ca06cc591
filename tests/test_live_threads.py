"""Threads of live text, disturbed where it hurts most."""

import gc
import sys
import threading

import pytest

from tests.test_live import make_loader, write


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "text", [[["abc" * k for k in range(1, 40)]] * 3])


class CollectAt:
    """Has the collector run in a loader's thread, at a line where it did not run before."""

    def __init__(self):
        self.is_armed, self._done = threading.Event(), set()

    def __call__(self, frame, event, argument):
        place = frame.f_code.co_filename, frame.f_lineno
        if not place[0].endswith(("threading.py", "engine.py", "tokenizing.py")):
            return None
        if not threading.current_thread().name.startswith("penstock-"):
            return None
        if self.is_armed.is_set() and place not in self._done:
            self._done.add(place)
            self.is_armed.clear()
            gc.collect()
        return self


def test_the_collector_may_end_a_loader_at_any_line_of_its_threads(corpus, request):
    gc.collect()
    gc.disable()
    gc.freeze()  # so that it has little to look at
    request.addfinalizer(gc.enable)
    request.addfinalizer(gc.unfreeze)
    collect = CollectAt()
    request.addfinalizer(lambda: threading.settrace(None))
    for _ in range(30):
        threading.settrace(collect)
        loader = make_loader(corpus, "flat", 8, prefetch=1, threads=1)
        next(iter(loader))
        engine = loader._engine
        loader.itself = loader  # only the collector finds that nobody needs it
        collect.is_armed.set()
        del loader
        while engine._thread.is_alive() and collect.is_armed.is_set():
            if engine.num_ready:
                engine.get()
        engine._thread.join(30)
        assert not engine._thread.is_alive()


class InterruptAt:
    """Interrupts the thread that it traces after so many calls and returns in a few files.

    There signals are handled; not between the last line of a `with` and what ends it.
    """

    def __init__(self, num_steps):
        self.num_left = num_steps

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.endswith(("threading.py", "engine.py", "tokenizing.py")):
            return None
        self.num_left -= event != "line"
        if self.num_left == 0:
            raise KeyboardInterrupt
        return self


def test_closing_may_be_interrupted_anywhere_and_the_threads_still_end(corpus):
    was_interrupted, num_steps = True, 0
    while was_interrupted:
        num_steps += 1
        loader = make_loader(corpus, "flat", 8, prefetch=1, threads=1)
        next(iter(loader))
        engine = loader._engine
        sys.settrace(InterruptAt(num_steps))
        try:
            loader.close()
            was_interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        engine.abandon()  # as at the end of the process
        engine._thread.join(30)
        assert not engine._thread.is_alive()
    assert num_steps > 5
