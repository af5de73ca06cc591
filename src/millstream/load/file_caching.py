"""Decides whether a loader reads whole files into the page cache, or only the rows of its batches.

If the data stays in memory, an epoch reads every byte from the disk once either way, and long runs
are read several times as fast as rows. If it does not stay in memory, whole files are read in vain.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from millstream.batches.layout import BatchLayout
from millstream.batches.sample_reader import file_kinds
from millstream.load.file_pass import FilePass
from millstream.load.ranks import num_local_ranks
from millstream.system.free_memory import available_bytes
from millstream.views.view import View

# Half of the free memory is left for later use. Below a quarter, reading rows alone is faster.
_MAX_SHARE_OF_MEMORY = 0.5
_MIN_SHARE_OF_FILES = 0.25


def pass_over_files(
    views: Sequence[View], layout: BatchLayout, ranks: int, cache_files: bool | None
) -> FilePass | None:
    """Return a pass over the files of a view, or of the sources of a mixture; None for only rows.

    The sources of a mixture are read as if each was read once in an epoch.
    """
    if cache_files is False:
        return None
    layouts = layout.sources or (layout,)
    spans, listed = [], set[int]()
    for number, (view, own) in enumerate(zip(views, layouts, strict=True)):
        files_of_source = view.dataset.reader.file_spans(file_kinds(view, own), number)
        if id(view.dataset) in listed:  # as slices of one dataset: its files are read once
            files_of_source["stop"] = files_of_source["start"]
        listed.add(id(view.dataset))
        spans.append(files_of_source)
    files = np.concatenate(spans)
    if cache_files is None and not is_worth_caching(
        file_bytes=_total_bytes(files),
        epoch_bytes=sum(
            int(len(view) * view.records_per_row) * view.dataset.fields.itemsize for view in views
        ),
        share=min(1, num_local_ranks() / ranks),
        free_bytes=available_bytes(),
    ):
        return None
    return FilePass(files)


def is_worth_caching(
    *, file_bytes: int, epoch_bytes: int, share: float, free_bytes: int | None
) -> bool:
    """True if the files fit into half of the free memory, and enough of their bytes are needed.

    `epoch_bytes` is the size of all rows, and `share` the fraction that this machine reads.
    """
    return (
        free_bytes is not None
        and file_bytes <= free_bytes * _MAX_SHARE_OF_MEMORY
        and epoch_bytes * share >= file_bytes * _MIN_SHARE_OF_FILES
    )


def _total_bytes(files: NDArray[np.void]) -> int:
    return int((files["stop"] - files["start"]).sum())
