"""The consumer that every contender feeds: it touches one element of every page of a batch.

Training reads all of a batch, and so waits for memory that a reading thread wrote. Taking batches
without using them would hide that, and reward reading far ahead, out of the cache. One element a
page is the least that does not. `reference.c` has the same consumer for its loops.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

_PAGE_BYTES = 4096
INPUTS_AND_LABELS = ("input_ids", "labels")


def consume(
    batches: Iterator[Mapping[str, Any]],
    num_batches: int,
    fields: tuple[str, ...] = INPUTS_AND_LABELS,
) -> None:
    """Take so many batches, and touch these fields of each."""
    for batch in islice(batches, num_batches):
        for field in fields:
            touch(batch[field])


def touch(values: Any) -> None:
    """Sum one element of every page of a tensor or an array whose rows are whole pages.

    By rows, for a DataLoader's inputs and labels may be views of one array.
    """
    values[:, :: _PAGE_BYTES // values.itemsize].sum()
