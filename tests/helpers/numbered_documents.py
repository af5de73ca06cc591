"""Documents whose tokens are record numbers, counted from 1, and checks of their rows."""

import contextlib
import itertools
import os
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

import millstream

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
IGNORED = -100
EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")
POLICIES = ["best_fit", "bos_best_fit", "bos_best_fit_keep"]


def write_numbered(path, lengths, *, first=1, **options):
    """Documents of these lengths, whose tokens count up from `first`."""
    with millstream.Writer(path, fields="<u4", **options) as writer:
        for length in lengths:
            writer.append(np.arange(first, first + length))
            first += length
    return first


@contextlib.contextmanager
def numbered(lengths, *, splits=(), group_size=1, **options):
    """Such documents as a dataset in memory; one directory for each part between `splits`.

    Splits are rounded down to whole groups.
    """
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        first, paths = 1, []
        edges = sorted(min(split, len(lengths)) // group_size * group_size for split in splits)
        edges = [0, *edges, len(lengths)]
        for start, stop in itertools.pairwise(edges):
            paths.append(Path(root) / f"{len(paths)}")
            first = write_numbered(
                paths[-1], lengths[start:stop], first=first, group_size=group_size, **options
            )
        yield millstream.open(paths)


def document_of_token(lengths):
    """By token: its document; -1 for padding."""
    return np.concatenate([[-1], np.repeat(np.arange(len(lengths)), lengths)]).astype(np.int64)


def check_rows(batch, document_of, mask_ends, last_labels):
    """Everything in a batch, from its inputs alone.

    Where a row is full and a document ends with it, the label is that of `last_labels`.
    """
    inputs = batch["input_ids"]
    num_rows, width = inputs.shape
    documents = document_of[inputs]
    labels, positions, ends = np.full_like(inputs, IGNORED), np.zeros_like(inputs), [0]
    for r in range(num_rows):
        length = int((inputs[r] > 0).sum())
        assert (inputs[r, :length] > 0).all(), "padding between documents"
        for c in range(length):
            token = int(inputs[r, c])
            is_last_column = c + 1 == length
            goes_on = token + 1 < len(document_of) and document_of[token + 1] == documents[r, c]
            if not is_last_column and documents[r, c + 1] == documents[r, c]:
                assert inputs[r, c + 1] == token + 1, "a document is out of order"
                positions[r, c + 1] = positions[r, c] + 1
            elif not is_last_column or length < width:
                assert not goes_on or is_last_column, "a piece ends before its document does"
                ends.append(r * width + c + 1)
            if goes_on and (is_last_column or inputs[r, c + 1] == token + 1):
                labels[r, c] = token + 1
            elif not mask_ends and not is_last_column:
                labels[r, c] = inputs[r, c + 1]
            elif length == width and is_last_column and not goes_on:
                labels[r, c] = last_labels[r]
        ends.append((r + 1) * width)
    assert np.array_equal(batch["labels"], labels)
    expected = {
        "position_ids": positions.astype(np.int32),
        "document_ids": documents,
        "attention_mask": (inputs > 0).astype(np.int32),
        "cu_seqlens": np.array(ends, np.int32),
    }
    for name in set(expected) & set(batch):
        assert np.array_equal(batch[name], expected[name]), name
        assert batch[name].dtype == expected[name].dtype
    if "cu_seqlens" in batch:
        assert batch["max_seqlen"] == np.diff(ends).max(initial=0)


places = st.fixed_dictionaries(
    {
        "shard_bytes": st.sampled_from([1, 40, 1 << 30]),
        "splits": st.lists(st.integers(0, 40), max_size=3),
    }
)
