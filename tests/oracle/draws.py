"""Random choices that stay the same for ever."""

from random import Random

import numpy as np

_MASK = (1 << 64) - 1


class Draws:
    """Choices that a text decides.

    Only `Random.random` is used: for a text as seed, Python promises its numbers for ever, which it
    does not for `randrange`, `choice` or `shuffle`, nor NumPy for its distributions.
    """

    def __init__(self, key):
        self._random = Random(key).random

    def integer(self, low, high):
        """An integer from `low` to `high`, both included."""
        return low + int(self._random() * (high - low + 1))

    def chance(self, probability):
        return self._random() < probability

    def one_of(self, *options):
        return options[self.integer(0, len(options) - 1)]

    def some_of(self, *options):
        return [option for option in options if self.chance(0.5)]

    def shuffled(self, items):
        keyed = [(self._random(), number) for number in range(len(items))]
        return [items[number] for _, number in sorted(keyed)]

    def numbers(self, count, limit):
        """`count` integers below `limit`."""
        first = self.integer(0, (1 << 53) - 1)
        words = np.arange(first, first + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((words ^ (words >> np.uint64(31))) % np.uint64(limit)).astype(np.int64)
