"""The consumer of every contender: it touches one element of every page of a batch.

Training reads a whole batch, and so waits for memory that a reading thread wrote. A consumer that
takes batches without using them would hide this, and would reward reading far ahead, out of the
cache. One element per page is the least that shows it. `reference.c` has the same consumer.
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
    """Take `num_batches` batches and touch these fields of each."""
    for batch in islice(batches, num_batches):
        for field in fields:
            touch(batch[field])


def touch(values: Any) -> None:
    """Sum one element of every page of a tensor or array whose rows are whole pages.

    It goes by rows, because a DataLoader's inputs and labels may be views of one array.
    """
    values[:, :: _PAGE_BYTES // values.itemsize].sum()
