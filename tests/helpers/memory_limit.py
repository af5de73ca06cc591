"""A limit on the memory of a test's child process."""

import os

UNDER_SANITIZER = "lib" in os.environ.get("LD_PRELOAD", "") and "san" in os.environ["LD_PRELOAD"]


def limit_memory(num_bytes):
    """Code that sets the limit; none under sanitizers, which reserve more than any machine has."""
    if UNDER_SANITIZER:
        return ""
    return f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({num_bytes}, {num_bytes}))\n"
