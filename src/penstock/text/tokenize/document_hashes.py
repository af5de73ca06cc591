"""Hashes of documents, which decide their side where a `Split` goes by fraction or by count."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.text.batch import TextBatch
from penstock.text.tokenize.split import TEXT

Hashes = NDArray[np.uint64]

# Long documents are not held whole; their first bytes decide.
PREFIX_BYTES = 1 << 20
_SEED = 0x70656E73746F636B


def hash_documents(batch: TextBatch, by: str, bad: Callable[[int, str], None]) -> Hashes:
    """One hash per document. Calls `bad` for each document that has no value to hash."""
    digest = xxhash.xxh3_64_intdigest
    hashes = np.zeros(batch.num_documents, np.uint64)
    if by == TEXT:
        data = batch.data.data
        for k, (start, stop) in enumerate(pairwise(batch.offsets.tolist())):
            hashes[k] = digest(data[start : min(stop, start + PREFIX_BYTES)], _SEED)
        return hashes
    metadata: Sequence[dict[str, Any]] = batch.metadata or [{}] * batch.num_documents
    for k, values in enumerate(metadata):
        value = values.get(by)
        if value is None:
            bad(k, f"has no {by!r} to split by")
        else:
            hashes[k] = digest(json.dumps(value, sort_keys=True).encode(), _SEED)
    return hashes


def threshold_of_fraction(fraction: float) -> int:
    """Documents with smaller hashes are for validation."""
    return round(fraction * (1 << 64))


def threshold_of_count(hashes: Hashes, count: int) -> int:
    """Documents with smaller hashes are for validation: `count` of them, or fewer on a tie.

    `hashes` are those of all documents, or the `count + 1` smallest.
    """
    if len(hashes) <= count:
        raise UsageError(
            f"the split takes count={count:,} documents for validation, but there are only "
            f"{len(hashes):,}; take fewer (--val-count)"
        )
    return int(np.partition(hashes, count)[count])


def smallest(hashes: Hashes, count: int) -> Hashes:
    """The `count` smallest hashes, sorted, with duplicates."""
    return np.sort(hashes)[:count]
