"""What slices of rows must be, given the whole rows."""

from itertools import pairwise

import numpy as np

from millstream.batches.sample_reader import SampleReader

PADDING = {"input_ids": 3, "labels": -100, "document_ids": -1, "metadata_ids": -1}


def read_slices(view, samples, cut):
    """A batch of slices, as a loader reads it."""
    layout = view.layout(len(samples), np.int64, cut)
    memory = np.full(layout.num_bytes, 255, np.uint8)
    reader = SampleReader(view, layout)
    try:
        metadata = reader.read(np.array(samples, np.int64), memory)
    finally:
        reader.close()
    counts = layout.counts(memory)
    batch = layout.outputs_in(memory, len(samples)) | metadata
    for prefix in ("", "row_"):
        if f"{prefix}cu_seqlens" in batch:
            batch[f"{prefix}max_seqlen"] = int(counts[f"{prefix}max_seqlen"])
    return batch


def check_slices(whole, batches, cuts, *, extras, static_shapes=False, seq_len=None):
    """Compare the batches of all slices with the batch of whole rows, which has all extras."""
    whole, *batches = map(_as_arrays, [whole, *batches])
    rows, width = whole["input_ids"].shape
    multiple = cuts[0].parts * cuts[0].num_chunks
    wide = width + -width % multiple
    for batch, cut in zip(batches, cuts, strict=True):
        chunks = cut.chunks(wide)
        columns = np.concatenate([np.arange(first, first + num) for first, num in chunks])
        compared = set(batch) - {"cu_seqlens", "max_seqlen", "row_cu_seqlens", "row_max_seqlen"}
        for name in compared - {"metadata", "metadata_ids", "metadata_offsets", "metadata_rows"}:
            expected = _widened(whole[name], wide, PADDING.get(name, 0))
            if name == "position_ids" and "position_ids" not in extras:
                expected = np.broadcast_to(np.arange(wide), (rows, wide))
            assert batch[name].dtype == whole[name].dtype, name
            assert batch[name].tolist() == expected[:, columns].tolist(), name
        assert compared >= {"input_ids", "labels", "position_ids", *extras} - {"cu_seqlens"}
        assert ("cu_seqlens" in batch) == ("cu_seqlens" in extras)
        if "metadata_ids" in batch:
            expected = _widened(_objects(whole), wide, None)
            assert _objects(batch).tolist() == expected[:, columns].tolist()
        if "cu_seqlens" in batch:
            pieces = _pieces(whole, wide)
            local, row_ends = pieces[:, columns], _ends(pieces, [wide])
            ends = _ends(local, [num for _, num in chunks])
            assert_boundaries(batch, "", ends, static_shapes, seq_len and seq_len // multiple)
            assert_boundaries(batch, "row_", row_ends, static_shapes, seq_len)


def assert_boundaries(batch, prefix, ends, static_shapes, longest):
    found, end = batch[f"{prefix}cu_seqlens"].tolist(), ends[-1]
    if not static_shapes:
        longest = max(np.diff(ends), default=0)
        assert found == ends
    assert found == ends + [end] * (len(found) - len(ends))
    assert batch[f"{prefix}max_seqlen"] == longest


def _as_arrays(batch):
    return {
        name: np.asarray(value) if hasattr(value, "dtype") else value
        for name, value in batch.items()
    }


def _widened(array, width, fill):
    extra = np.full((len(array), width - array.shape[1], *array.shape[2:]), fill, array.dtype)
    return np.concatenate([array, extra], axis=1)


def _pieces(whole, width):
    """A number for each column, different where a document or padding begins."""
    rows, narrow = whole["input_ids"].shape
    places = np.arange(rows * narrow)
    pieces = np.searchsorted(whole["cu_seqlens"], places, "right").reshape(rows, narrow)
    pieces[whole["attention_mask"] == 0] = -1
    return _widened(pieces, width, -1)


def _ends(pieces, chunks):
    """Where pieces end in the flattened array, chunk by chunk."""
    ends, place = [0], 0
    for row in pieces.tolist():
        first = 0
        for num in chunks:
            chunk = [*row[first : first + num], None]
            ends += [place + k + 1 for k in range(num) if chunk[k + 1] != chunk[k]]
            first, place = first + num, place + num
    return ends


def _objects(batch):
    """The metadata of each column, or None."""
    ids = batch["metadata_ids"]
    objects = np.full(ids.shape, None, object)
    for row, numbers in enumerate(ids.tolist()):
        spans = _spans(batch, row)
        for column, number in enumerate(numbers):
            if number >= 0:
                objects[row, column] = spans[number]
        assert {number for number in numbers if number >= 0} == set(range(len(spans)))
    return objects


def _spans(batch, row):
    if isinstance(batch["metadata"], list):
        return batch["metadata"][row]
    first, stop = batch["metadata_rows"][row : row + 2].tolist()
    edges = batch["metadata_offsets"][first : stop + 1].tolist()
    return [batch["metadata"][a:b].tobytes() for a, b in pairwise(edges)]
