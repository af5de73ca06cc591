"""Waits before another attempt, with jitter, so that many clients do not come back at once."""

import random

# Of the system, because `random.uniform` would change what a program draws after `random.seed`.
_GENERATOR = random.SystemRandom()


def jittered(seconds: float) -> float:
    """Return a random wait of at least half of `seconds`, and at most all of it."""
    return _GENERATOR.uniform(seconds / 2, seconds)
