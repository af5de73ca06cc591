"""The loaders' threads: native ones that read, unknown to Python, and Python's own."""

import contextlib
import gc
import os
import threading
from pathlib import Path

from tests.helpers.waiting import wait_until


def num_reading_threads():
    """Number of threads of this process that read for loaders."""
    num_threads = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended by now
            name = Path("/proc/self/task", task, "comm").read_text()
            num_threads += name == "millstream-read\n"
    return num_threads


def wait_for_reading_threads(number):
    """Wait for this number: a new thread is named late, and one that has ended stays listed.

    Until then, garbage is collected. Once is not enough: a thread that ends just then may hold some
    of it, or be collecting itself, and then `gc.collect` returns at once.
    """

    def is_so():
        if num_reading_threads() == number:
            return True
        gc.collect()
        return False

    wait_until(is_so)


def background_threads():
    """Names of the Python threads of this process that work for loaders."""
    return [each.name for each in threading.enumerate() if each.name.startswith("millstream-")]


def wait_for_background_threads_to_end():
    """Wait until none is left of loaders that are no longer used, also by earlier tests."""

    def is_so():
        gc.collect()
        return not background_threads()

    wait_until(is_so)
