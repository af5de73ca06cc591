"""`MixtureSource`: one view of a mixture, its weight, and how it is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from millstream.arguments import integer
from millstream.errors import UsageError
from millstream.order.mixing import MAX_POSITION
from millstream.order.order import Order, Shuffle
from millstream.order.shares import Weight, exact
from millstream.order.shuffling import keyed_hash
from millstream.views.ordering import order_of
from millstream.views.view import View

_FOR_SOURCES = 7  # what the hash of a seed and a name is for


@dataclass(frozen=True, slots=True)
class MixtureSource:
    """A view in a mixture.

    >>> millstream.MixtureSource(data.windows(4), 0.2, max_epochs=4)
    MixtureSource(view=<Windows of 4 tokens: 24 samples; ...>, weight=0.2, shuffle=True, \
seed=None, max_epochs=4)
    """

    view: View
    weight: Weight
    """compared with those of the other sources; only the ratio matters"""
    shuffle: Shuffle = True
    """as for a `Loader`"""
    seed: int | None = None
    """of the shuffle; by default it is made from the mixture's seed and the source's name"""
    max_epochs: float | None = None
    """how often the source may be read; then it has run out. By default it never does"""

    def __post_init__(self) -> None:
        if not isinstance(self.view, View):
            raise UsageError(
                f"a source of a mixture is a view, such as data.windows(2048), not "
                f"{self.view!r:.60}"
            )
        if self.seed is not None:
            object.__setattr__(self, "seed", integer("seed", self.seed, 0, (1 << 64) - 1))
        if self.max_epochs is not None:
            exact("max_epochs", self.max_epochs)

    @property
    def limit(self) -> int | None:
        """How many samples the source has to give; None if it starts over again and again."""
        if self.max_epochs is None:
            return None
        limit = math.floor(exact("max_epochs", self.max_epochs) * len(self.view))
        return limit if limit < MAX_POSITION else None

    def order(self, name: str, seed: int) -> Order:
        """The order of the source's samples, by the seed of the mixture."""
        own = self.seed
        if own is None:
            own, _ = keyed_hash(seed, _FOR_SOURCES, xxhash.xxh3_64_intdigest(name.encode()), 0)
        try:
            return order_of(self.view, self.shuffle, own)
        except UsageError as error:
            raise UsageError(f"source {name!r}: {error}") from None


def check_sources(given: Any) -> dict[str, MixtureSource]:
    """Return the sources of a mixture by name; raise for anything but views with weights."""
    if not isinstance(given, Mapping) or not given:
        raise UsageError(
            f"a mixture takes a dict of sources, such as {{'web': (view, 0.7)}}, or the path of a "
            f"file; found {given!r:.60}"
        )
    sources = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise UsageError(f"the name of a source is {name!r:.60}; it must be a printable text")
        source = value
        if isinstance(value, tuple) and len(value) == 2:
            source = MixtureSource(*value)
        if not isinstance(source, MixtureSource):
            raise UsageError(
                f"source {name!r} is {value!r:.60}; write (view, weight), or a MixtureSource"
            )
        if exact(f"the weight of {name!r}", source.weight, allows_zero=True) == 0:
            raise UsageError(f"the weight of {name!r} is 0; leave the source out")
        if not len(source.view):
            raise UsageError(f"source {name!r} has no samples: {source.view!r:.200}")
        if source.limit == 0:
            raise UsageError(
                f"source {name!r} has {len(source.view):,} samples, and max_epochs="
                f"{source.max_epochs!r:.40} allows less than one; leave the source out"
            )
        sources[name] = source
    return sources
