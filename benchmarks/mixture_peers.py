"""Megatron's blend and Grain's mix: the real ones, in their own environment (`peer_process`).

- Megatron's `BlendedDataset` stores the source and the sample of every position, 2 + 8 bytes, built
  in C++ when it is created. It then checks that no source has fewer samples than the blend uses.
- Grain's `MapDataset.mix` computes both for one index at a time, in Python. It scales weights until
  the smallest is 100, and truncates them. So the smallest is right, one just above it loses up to
  1 %, and larger ones lose less.

Items of their sources are plain numbers, so only the mixture is timed. Both are asked for items by
index, in order. That is the fastest public way to Grain's: iterating took twice as long without
threads, and 70 times as long with its default of 16, on 2 cores. Grain's private map, without the
classes around it, is timed too.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import peer_process
from benchmarks.peer_process import PeerProcess

_PACKAGES = ("megatron-core==0.16.1", "grain==0.2.18")
_NUM_ITEMS = 200_000
_REQUESTS = {
    "Grain: MapDataset.mix": "mix",
    "Grain: MapDataset.mix of shuffled sources": "shuffled-mix",
    "Grain: the private map of a mix": "mix-map",
    "Megatron: BlendedDataset, from its tables": "blend-items",
}


class MixturePeers:
    """Both peers, mixing sources with the same weights."""

    def __init__(self, process: PeerProcess) -> None:
        self._process = process

    def build_blend(self, num_samples: int) -> tuple[float, int]:
        """Build Megatron's tables; return seconds and bytes."""
        reply = self._ask("blend", num_samples)
        return reply["seconds"], reply["bytes"]

    def rates(self) -> dict[str, Callable[[], float]]:
        """Return jobs that return positions per second; the blend must have been built."""
        return {name: partial(self._rate, request) for name, request in _REQUESTS.items()}

    def blend_sources(self, directory: Path) -> NDArray[np.int16]:
        """Return the source of each sample of the blend."""
        path = directory.absolute() / "blend.npy"
        self._ask("blend-sources", path)
        return _load(path)

    def mix_sources(self, num_items: int, directory: Path) -> NDArray[np.int16]:
        """Return the sources of the mix's first items."""
        path = directory.absolute() / "mix.npy"
        self._ask("mix-sources", num_items, path)
        return _load(path)

    def mix_shares(self, weights: tuple[float, ...]) -> list[float]:
        """Return the share that Grain gives to each source of a mix."""
        shares: list[float] = self._ask("mix-shares", *weights)["shares"]
        return shares

    def _rate(self, request: str) -> float:
        seconds: float = self._ask(request, _NUM_ITEMS)["seconds"]
        return _NUM_ITEMS / seconds

    def _ask(self, *words: object) -> Any:
        return json.loads(self._process.ask(*words))


@contextmanager
def start(weights: tuple[float, ...]) -> Iterator[tuple[MixturePeers | None, str]]:
    """Run the peers' process; give them or None, and a note for the report."""
    words = [repr(weight) for weight in weights]
    process, note = peer_process.start("mixture-peers", _PACKAGES, "mixture_peers_child.py", *words)
    try:
        yield MixturePeers(process) if process is not None else None, note
    finally:
        if process is not None:
            process.close()


def _load(path: Path) -> NDArray[np.int16]:
    sources: NDArray[np.int16] = np.load(path, mmap_mode="r")
    return sources
