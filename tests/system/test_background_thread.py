"""`system.background_thread`: background calls and threads under interrupts."""

import threading

import pytest

from millstream.system.background_thread import BackgroundThread, StopSignal, call_in_background
from tests.helpers.sigint import interrupt_when


def test_a_background_thread_ends_with_its_owner_and_is_one_of_pythons():
    stop, names = StopSignal(), []
    is_there, has_ended = threading.Event(), threading.Event()
    queue = stop.new_queue()

    def work():
        names.append(threading.current_thread().name)
        is_there.set()
        assert queue.get() is None
        has_ended.set()

    thread = BackgroundThread(work, "millstream-test", stop)
    assert not thread.is_running
    thread.start()
    thread.start()
    assert is_there.wait(30)
    assert thread.is_running
    del thread
    assert has_ended.wait(30)
    assert names == ["millstream-test"]


def test_an_interrupted_call_is_told_to_stop_and_waited_for_if_that_was_asked():
    stop, is_running, has_ended = StopSignal(), threading.Event(), []
    queue = stop.new_queue()

    def work():
        is_running.set()
        queue.get()
        has_ended.append(stop.is_set)

    interrupt_when(is_running)
    with pytest.raises(KeyboardInterrupt):
        call_in_background(work, "millstream-test", stop, is_waited_for=True)
    assert has_ended == [True]


def test_a_call_in_the_background_returns_and_raises_as_any_other():
    assert call_in_background(lambda: 3, "millstream-test", StopSignal()) == 3
    with pytest.raises(ZeroDivisionError):
        call_in_background(lambda: 1 // 0, "millstream-test", StopSignal())
