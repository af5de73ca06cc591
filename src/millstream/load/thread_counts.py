"""The default numbers of threads and of batches made ahead."""

from millstream.arguments import integer
from millstream.load.ranks import num_rank_processors

_MAX_THREADS = 64
_ENOUGH_THREADS = 4


def num_reading_threads(threads: int | None) -> int:
    """Return `threads`, by default one fewer than this rank's processors, from 1 to 4.

    Measured with a consumer that uses its batches: a thread on the consumer's own core costs more
    than it gains.
    """
    if threads is None:
        threads = min(_ENOUGH_THREADS, max(1, num_rank_processors() - 1))
    return integer("threads", threads, 1, _MAX_THREADS)


def num_tokenizing_threads(threads: int | None) -> int:
    """Return `threads`, by default the number of this rank's processors, at most 4."""
    if threads is None:
        threads = min(_ENOUGH_THREADS, num_rank_processors())
    return integer("threads", threads, 1, _MAX_THREADS)


def reading_depth(prefetch: int | None, threads: int, most: int) -> int:
    """Return `prefetch`, by default two batches per thread and two for the consumer.

    With deeper queues, batches are evicted from the processor's cache.
    """
    return integer("prefetch", 2 * threads + 2 if prefetch is None else prefetch, 0, most)


def tokenizing_depth(prefetch: int | None) -> int:
    """Return `prefetch`, by default four batches."""
    return integer("prefetch", 4 if prefetch is None else prefetch, 1, 1 << 16)
