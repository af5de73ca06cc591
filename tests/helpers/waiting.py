"""Waiting for conditions, with deadlines that only a hang exceeds."""

import os
import time


def wait_until(is_so, seconds=60):
    """Return as soon as `is_so()`; fail if it is not for so long that something must be wrong."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(0.001)


def num_files(directory):
    """Number of files below a directory that others write to."""
    return sum(len(files) for _, _, files in os.walk(directory))
