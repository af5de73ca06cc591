"""The garbage collector may end a live loader at any line of its threads."""

import gc
import threading

import pytest

from tests.helpers.live_text import make_loader, write_text
from tests.helpers.reading_threads import background_threads, wait_for_background_threads_to_end
from tests.helpers.waiting import wait_until


@pytest.fixture
def corpus(tmp_path):
    return write_text(tmp_path / "text", [[["abc" * k for k in range(1, 40)]] * 3])


class CollectAt:
    """Has the collector run in a loader's thread, at a line where it did not run before."""

    def __init__(self):
        self.is_armed, self.places = threading.Event(), set()

    def __call__(self, frame, event, argument):
        place = frame.f_code.co_filename, frame.f_lineno
        if not place[0].endswith(("threading.py", "pipeline.py", "tokenizing_threads.py")):
            return None
        if not threading.current_thread().name.startswith("millstream-"):
            return None
        if self.is_armed.is_set() and place not in self.places:
            self.places.add(place)
            self.is_armed.clear()
            gc.collect()
        return self


@pytest.mark.slow
def test_the_collector_may_end_a_loader_at_any_line_of_its_threads(corpus, request):
    wait_for_background_threads_to_end()
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
        handover, position = loader.walk._pipeline._handover, loader.position
        loader.itself = loader  # only the collector finds that nobody needs it
        collect.is_armed.set()
        del loader
        while background_threads() and collect.is_armed.is_set():
            if handover.num_ready:
                handover.get(position)
                position += 2
        threading.settrace(None)
        wait_until(lambda: not background_threads())
    assert len(collect.places) > 15
