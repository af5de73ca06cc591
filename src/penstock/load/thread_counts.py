"""How many threads work ahead of a loader, and how many batches, where the user does not say."""

from penstock.arguments import integer
from penstock.load.ranks import num_rank_processors

_MAX_THREADS = 64
_ENOUGH_THREADS = 4


def num_reading_threads(threads: int | None) -> int:
    """As given; else one fewer than this rank has processors, at most 4.

    Measured with a consumer that uses its batches: a thread on the consumer's own core costs more
    than it gives.
    """
    if threads is None:
        threads = min(_ENOUGH_THREADS, max(1, num_rank_processors() - 1))
    return integer("threads", threads, 1, _MAX_THREADS)


def num_tokenizing_threads(threads: int | None) -> int:
    """As given; else as many as this rank has processors, at most 4."""
    if threads is None:
        threads = min(_ENOUGH_THREADS, num_rank_processors())
    return integer("threads", threads, 1, _MAX_THREADS)


def reading_depth(prefetch: int | None, threads: int, most: int) -> int:
    """As given; else two batches per thread and two for the consumer.

    With deeper queues, batches fall out of the processor's cache.
    """
    return integer("prefetch", 2 * threads + 2 if prefetch is None else prefetch, 0, most)


def tokenizing_depth(prefetch: int | None) -> int:
    """As given; else four batches."""
    return integer("prefetch", 4 if prefetch is None else prefetch, 1, 1 << 16)
