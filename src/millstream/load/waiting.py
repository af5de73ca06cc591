"""The warning for a training loop that waits for batches, which says what to change."""

import math
import warnings
from collections.abc import Callable

from millstream.errors import WaitingWarning
from millstream.load.callers import callers
from millstream.load.stats import LoaderTotals

LEAST_SECONDS = 20.0
LEAST_BATCHES = 50
MOST_SHARE = 0.01
SECONDS_BETWEEN_CHECKS = 1.0

_PASSED_THROUGH = ("millstream.", "torch.utils.data", "torchdata")


def check_waiting(first: LoaderTotals, now: LoaderTotals, advise: Callable[[], str]) -> float:
    """Warn if too much of the time since the first batch was spent waiting.

    Returns when to check again: never after a warning.
    """
    change = now.since(first)
    share = change.per_second(change.waited_seconds)
    if change.batches < LEAST_BATCHES or share <= MOST_SHARE:
        return now.seconds + SECONDS_BETWEEN_CHECKS
    warnings.warn(
        f"the training loop waited for batches {share * 100:.1f} % of the time since the first "
        f"one ({change.waited_seconds:.1f} of {change.seconds:.1f} s). {advise()}",
        WaitingWarning,
        stacklevel=_level_of_user(),
    )
    return math.inf


def reading_advice(
    *,
    prefetch: int,
    threads: int,
    num_processors: int,
    transforms: bool,
    decodes: bool,
    is_remote: bool,
    is_uncached: bool,
    cache_files: bool | None,
    widens: bool,
    access: str,
) -> str:
    """Return what to change so that batches of a dataset come faster, as a sentence."""
    if not prefetch:
        return "With prefetch=0 it reads every batch itself: leave that argument out."
    if transforms:
        return "The transform runs with the GIL: make it faster, or do less in it."
    if decodes:
        return "The metadata decoder holds the GIL: make it faster, or decode only what you use."
    if is_remote:
        return (
            "Rows come from a store: let reads be larger with "
            "shuffle=millstream.BlockShuffle(4096, inside=True), send more requests with "
            "millstream.Remote(max_requests=…, ahead_bytes=…), or give the cache room for all "
            "data; millstream bench URL compares orders."
        )
    if is_uncached:
        cache = ", or leave out cache_files=False" if cache_files is False else ""
        return (
            "Rows come from the disk, not from the page cache: use a faster disk, more memory, or "
            f"shuffle=millstream.BlockShuffle(…){cache}."
        )
    if threads < num_processors - 1:
        more = min(2 * threads, num_processors - 1)
        return f"There are processors to spare: pass threads={more} instead of {threads}."
    faster = ["dtype=None, which copies tokens in their stored type"] * widens
    faster += ['millstream.open(…, access="mmap")'] * (access != "mmap")
    if faster:
        return f"The reading threads cannot keep up: use {', or '.join(faster)}."
    return "The reading threads cannot keep up: give this rank more processors."


def _level_of_user() -> int:
    """Return the stack level, for the caller of this, of the code that iterates over a loader."""
    for level, frame in enumerate(callers()):
        if not frame.f_globals.get("__name__", "").startswith(_PASSED_THROUGH):
            return level
    return 1
