"""How many processors there are to use."""

import os


def num_processors() -> int:
    """Those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # on Linux; a container or a scheduler may allow few
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_processors_of_rank() -> int:
    """This process's part of them, where torchrun says how many processes share the machine."""
    local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, num_processors() // max(1, int(local_ranks) if local_ranks.isdecimal() else 1))
