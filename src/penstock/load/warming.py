"""Warming the cache: fetching what the next steps of some ranks will read, and nothing else."""

from collections.abc import Sequence

import numpy as np

from penstock.errors import UsageError
from penstock.load.loader import Loader
from penstock.load.step_ranges import merge_spans
from penstock.progress import OnProgress, ProgressMeter
from penstock.read.files import FileKind
from penstock.remote.block_file import ByteRange
from penstock.remote.cache_space import CacheSpace
from penstock.remote.mirrored_file import MirroredFile

_STEPS_AT_ONCE = 256


def warm(loaders: Sequence[Loader], num_steps: int, progress: OnProgress | None = None) -> int:
    """Fetch what the next steps of loaders read into the cache; returns the bytes fetched.

    There is one loader for each rank; all read the same view.
    """
    readers = [source.dataset.reader for source in loaders[0].view.sources]
    mirrored = [each for reader in readers for each in reader.mirrored_files()]
    if not mirrored:
        raise UsageError("the dataset is local; only remote data is cached")
    limit = mirrored[0].options.cache_limit
    if not limit:
        raise UsageError("the cache is off (cache_bytes is 0); give it a limit to warm it")
    space, files = CacheSpace(limit, mirrored), dict[tuple[int, int, int], MirroredFile | None]()
    meter = ProgressMeter(progress, "fetching", total=num_steps * len(loaders), unit="steps")
    num_bytes = 0
    for loader in loaders:
        ranges = loader.new_step_ranges()
        for first in range(0, num_steps, _STEPS_AT_ONCE):
            count = min(_STEPS_AT_ONCE, num_steps - first)
            spans = np.concatenate([ranges.take()[1] for _ in range(count)])
            merged, _ = merge_spans(spans, gap_bytes=0, gap_share=0)
            wanted = dict[MirroredFile, list[ByteRange]]()
            for source, kind, shard, start, stop in merged.tolist():
                number = source, kind, shard
                if number not in files:
                    files[number] = readers[source].mirrored(shard, FileKind(kind))
                file = files[number]
                if file is not None:
                    wanted.setdefault(file, []).append((start, stop))
            num_bytes += _fetch(wanted)
            meter.advance(count)
            space.make_room()
    return num_bytes


def _fetch(wanted: dict[MirroredFile, list[ByteRange]]) -> int:
    """Fetch ranges of files, all at once; returns the bytes that were not here."""
    num_bytes = sum(
        stop - start
        for file, ranges in wanted.items()
        for each in ranges
        for start, stop in file.blocks.missing(*each)
    )
    futures = [future for file, ranges in wanted.items() for future in file.fetch(ranges)]
    for future in futures:
        future.result()
    return num_bytes
