import os
import signal
import threading
import warnings

import pytest

from millstream.system.cached_property import cached_property


class Owner:
    def __init__(self):
        self.num_calls, self.asked, self.may_end = 0, threading.Event(), threading.Event()

    @cached_property
    def value(self):
        """How often it was computed."""
        self.num_calls += 1
        if threading.current_thread() is not threading.main_thread():
            self.asked.set()
            self.may_end.wait()
        return self.num_calls


def test_a_value_is_computed_once_per_object():
    first, second = Owner(), Owner()
    assert [first.value, first.value, second.value] == [1, 1, 1]
    assert (first.num_calls, second.num_calls) == (1, 1)
    assert Owner.value.__doc__ == "How often it was computed."


@pytest.mark.process
def test_a_forked_child_can_ask_even_if_a_thread_of_its_parent_was_computing():
    owner, other = Owner(), Owner()
    thread = threading.Thread(target=lambda: owner.value)
    thread.start()
    owner.asked.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process with threads
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if (owner.value, other.value) == (2, 1) else 1)
    owner.may_end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
