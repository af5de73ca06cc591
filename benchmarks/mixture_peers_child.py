"""Megatron's blend and Grain's mix, in their own environment; driven by `mixture_peers`.

Each input line is a request, the reply is a line of JSON. Times are taken here, so that they do not
contain the pipe.

    blend N            build a BlendedDataset of N samples: seconds, and bytes of its two tables
    blend-items N      get the next N samples of it: seconds
    blend-sources F    save the source of every sample of it to the .npy file F
    mix N              get the next N items of a MapDataset.mix of ranges: seconds
    shuffled-mix N     the same, with every source shuffled
    mix-map N          only Grain's arithmetic, without the classes around it: seconds
    mix-sources N F    save the sources of the first N items to F
    mix-shares W W …   the share of each source in the first 10^12 items of a mix with these weights
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import grain  # type: ignore[import-not-found]
import numpy as np
from megatron.core.datasets.blended_dataset import (  # type: ignore[import-not-found]
    BlendedDataset,
)
from megatron.core.datasets.blended_megatron_dataset_config import (  # type: ignore[import-not-found]
    BlendedMegatronDatasetConfig,
)
from megatron.core.datasets.utils import Split  # type: ignore[import-not-found]

_RANGE = 10**9  # items of a source; Grain shuffles fewer than 2^32
_LONG_RANGE = 10**15
_FIRST = 10**9  # timed positions start here: those of a run are large, and cost no less
_FAR = 10**12


class Source:
    """The least that a BlendedDataset asks of a source: its items cost nothing."""

    index_split = Split.train

    def __init__(self, number: int, size: int) -> None:
        self.unique_identifiers = {"source": number}
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"sample": index}


class Blend:
    """Megatron's class, which builds its tables when it is created.

    Without `path_to_cache` every process builds them. With it, rank 0 also saves them.
    """

    def __init__(self, weights: list[float]) -> None:
        self._weights = weights
        self._config = BlendedMegatronDatasetConfig(
            random_seed=0, sequence_length=2048, split="1,0,0"
        )
        self._built: Any = None
        self._next = 0

    def build(self, size: int) -> dict[str, float]:
        """Build the tables; return seconds and bytes."""
        self._built, self._next = None, 0
        sources = [Source(number, size) for number in range(len(self._weights))]
        start = time.perf_counter()
        self._built = BlendedDataset(sources, self._weights, size, self._config)
        seconds = time.perf_counter() - start
        tables = (self._built.dataset_index, self._built.dataset_sample_index)
        return {"seconds": seconds, "bytes": sum(table.nbytes for table in tables)}

    def items(self, count: int) -> dict[str, float]:
        """Get the next items, which are in order, as Megatron's sampler takes them."""
        first = self._next
        self._next += count
        return time_items(self._built.__getitem__, range(first, self._next))

    def save_sources(self, path: str) -> dict[str, float]:
        """Save the sources of all samples."""
        np.save(path, self._built.dataset_index)
        return {}


class Mix:
    """Grain's mix of ranges, whose items tell their source and their index."""

    def __init__(self, weights: list[float]) -> None:
        self._mix = grain.MapDataset.mix(_ranges(len(weights), _RANGE), weights)
        shuffled = [one.shuffle(seed=0) for one in _ranges(len(weights), _RANGE)]
        self._shuffled = grain.MapDataset.mix(shuffled, weights)
        self._next = _FIRST

    def items(self, count: int) -> dict[str, float]:
        """Get the next items by their index."""
        return self._time(self._mix.__getitem__, count)

    def shuffled_items(self, count: int) -> dict[str, float]:
        """Get the next items of shuffled sources."""
        return self._time(self._shuffled.__getitem__, count)

    def map_alone(self, count: int) -> dict[str, float]:
        """Get the next sources and indices from the mix's private map."""
        return self._time(self._mix._selection_map.__getitem__, count)

    def save_sources(self, count: int, path: str) -> dict[str, float]:
        """Save the sources of the first items."""
        items = np.array([self._mix[index] for index in range(count)])
        np.save(path, (items // _RANGE).astype(np.int16))
        return {}

    def _time(self, get: Callable[[int], Any], count: int) -> dict[str, float]:
        first = self._next
        self._next += count
        return time_items(get, range(first, self._next))


def time_items(get: Callable[[int], Any], indices: range) -> dict[str, float]:
    """Get these items one by one."""
    start = time.perf_counter()
    for index in indices:
        get(index)
    return {"seconds": time.perf_counter() - start}


def mix_shares(weights: list[float]) -> dict[str, list[float]]:
    """Return what Grain makes of weights.

    The first item of a source from position n on has the source's count in the first n as its
    index, so counts far out need no counting.
    """
    mix = grain.MapDataset.mix(_ranges(len(weights), _LONG_RANGE), weights)
    counts: dict[int, int] = {}
    for position in itertools.count(_FAR):
        source, index = divmod(mix[position], _LONG_RANGE)
        counts.setdefault(source, index)
        if len(counts) == len(weights) - 1:
            break  # the last one has the rest, and may be rare
    counts |= {
        source: _FAR - sum(counts.values())
        for source in range(len(weights))
        if source not in counts
    }
    return {"shares": [counts[source] / _FAR for source in range(len(weights))]}


def _ranges(count: int, size: int) -> list[Any]:
    return [grain.MapDataset.range(k * size, (k + 1) * size) for k in range(count)]


def _replies(weights: list[float]) -> Iterator[dict[str, Any]]:
    blend, mix = Blend(weights), Mix(weights)
    actions: dict[str, Callable[..., dict[str, Any]]] = {
        "blend": lambda size: blend.build(int(size)),
        "blend-items": lambda count: blend.items(int(count)),
        "blend-sources": blend.save_sources,
        "mix": lambda count: mix.items(int(count)),
        "shuffled-mix": lambda count: mix.shuffled_items(int(count)),
        "mix-map": lambda count: mix.map_alone(int(count)),
        "mix-sources": lambda count, path: mix.save_sources(int(count), path),
        "mix-shares": lambda *words: mix_shares([float(word) for word in words]),
    }
    for request in sys.stdin:
        what, *words = request.split()
        yield actions[what](*words)


def main() -> None:
    """Reply to requests until the input ends."""
    print(", ".join(f"{name} {version(name)}" for name in ("megatron-core", "grain")), flush=True)
    for reply in _replies([float(word) for word in sys.argv[1:]]):
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
