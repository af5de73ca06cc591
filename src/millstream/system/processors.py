"""The number of processors."""

import os


def num_processors() -> int:
    """The number of processors that this process may run on."""
    if hasattr(
        os, "sched_getaffinity"
    ):  # on Linux, where a container or a scheduler may allow only some
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
