"""How many processors there are to use."""

import os


def num_processors() -> int:
    """Those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # on Linux; a container or a scheduler may allow few
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
