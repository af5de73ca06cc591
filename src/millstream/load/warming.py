"""Warming the cache: fetching what the next steps of some ranks will read, and nothing else."""

from collections.abc import Sequence

import numpy as np

from millstream.errors import UsageError
from millstream.load.loader import Loader
from millstream.load.step_ranges import merge_spans
from millstream.progress import OnProgress, ProgressMeter
from millstream.read.files import FileKind
from millstream.remote.block_file import ByteRange
from millstream.remote.cache_space import CacheSpace
from millstream.remote.mirrored_file import MirroredFile
from millstream.system.checksums import BLOCK_BYTES

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
    for rank, loader in enumerate(loaders):
        ranges = loader.new_step_ranges()
        for first in range(0, num_steps, _STEPS_AT_ONCE):
            count = min(_STEPS_AT_ONCE, num_steps - first)
            spans = np.concatenate([ranges.take()[1] for _ in range(count)])
            spans["start"] -= spans["start"] % BLOCK_BYTES
            spans["stop"] += -spans["stop"] % BLOCK_BYTES
            merged, _ = merge_spans(spans, gap_bytes=0, gap_share=0)
            wanted = list[tuple[MirroredFile, ByteRange]]()
            for source, kind, shard, start, stop in merged.tolist():
                number = source, kind, shard
                if number not in files:
                    files[number] = readers[source].mirrored(shard, FileKind(kind))
                file = files[number]
                if file is not None:
                    end = min(stop, file.blocks.size_bytes)
                    wanted += ((file, each) for each in file.blocks.missing(start, end))
            num_missing = sum(stop - start for _, (start, stop) in wanted)
            if not space.make_room_for(num_missing):
                raise UsageError(
                    f"the cache is full after {first:,} of {num_steps:,} steps of rank {rank} of "
                    f"{len(loaders)}: the next {count:,} need {num_missing / 1e6:,.1f} MB, and its "
                    f"limit is {limit / 1e6:,.1f} MB; warm it for fewer steps, raise the limit "
                    "(--cache-bytes), or clear other data (millstream cache clear)"
                )
            for future in [future for file, each in wanted for future in file.fetch([each])]:
                future.result()
            num_bytes += num_missing
            meter.advance(count)
    return num_bytes
