"""Datasets for mixtures, and what a batch of a mixture must be, row by row."""

from dataclasses import replace

import numpy as np

import millstream

EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")
PAD_ID = 3
FILLS = {"input_ids": PAD_ID, "labels": -100, "document_ids": -1}
FIELDS = {
    "plain": [("token", "<u2")],
    "wide": [("token", "<u4")],
    "masked": [("token", "<u2"), ("loss_mask", "u1")],
    "scored": [("token", "<u4"), ("loss_mask", "u1"), ("score", "<i4")],
}


def write_sources(path, num_documents=60):
    """Datasets with narrow and wide tokens, and with fields that only some of them have."""
    generator = np.random.default_rng(0)
    for number, (name, fields) in enumerate(FIELDS.items()):
        with millstream.Writer(
            path / name, fields=fields, vocab_size=50_000, shard_bytes=600
        ) as writer:
            for _ in range(num_documents):
                first = 10_000 * number + 10  # no id is that of padding
                num_ids = 30 if name == "plain" else 9000  # few, so that an eos_id is frequent
                ids = generator.integers(first, first + num_ids, generator.integers(1, 40))
                values = {"token": ids, "loss_mask": ids % 3 > 0, "score": ids - 15_000}
                writer.append({field: values[field] for field, _ in fields})
    return {name: millstream.open(path / name) for name in FIELDS}


def windows_of(path, sizes, seq_len=4):
    """A source of windows for each name, with as many samples as `sizes` says."""
    views = {}
    for number, (name, size) in enumerate(sizes.items()):
        with millstream.Writer(path / name, vocab_size=1 << 16) as writer:
            writer.append((np.arange(size * seq_len + 1) + 7919 * number) % (1 << 16))
        views[name] = millstream.open(path / name).windows(seq_len)
    return views


def check_batch(batch, views, sources, samples, *, dtype=np.int64):
    """Compare a batch with the rows of the views that its sources and samples name, one by one."""
    extras = [extra for extra in EXTRAS if any(extra in view.extras for view in views)]
    is_static = any(view.static_shapes for view in views)
    whole = [replace(view, extras=extras, static_shapes=False) for view in views]
    fields = set.intersection(*({*view.dataset.fields.names} for view in views))
    shown = {"input_ids", "labels", *extras} | fields - {"token", "metadata_id"}
    has_boundaries = "cu_seqlens" in extras
    assert batch.keys() == shown | {"source_ids"} | ({"max_seqlen"} if has_boundaries else set())
    assert batch["source_ids"].tolist() == sources.tolist()
    width = batch["input_ids"].shape[1]
    rows = [whole[k].read([sample]) for k, sample in zip(sources, samples, strict=True)]
    for number, row in enumerate(rows):
        for name in shown - {"cu_seqlens"}:
            found, expected = batch[name][number], row[name][0]
            narrow = len(expected)
            assert found[:narrow].tolist() == expected.tolist(), name
            assert (found[narrow:] == FILLS.get(name, 0)).all(), name
    if rows and not any(view.narrow_to for view in views):
        assert width == views[0].seq_len
    if has_boundaries:
        _check_boundaries(batch, rows, width, views[0].seq_len if is_static else None)
    if dtype is not None:
        assert batch["input_ids"].dtype == dtype
    else:
        stored = {view.dataset.fields["token"] for view in views}
        assert batch["input_ids"].dtype == max(stored, key=lambda each: each.itemsize)


def _check_boundaries(batch, rows, width, seq_len):
    """Row by row, boundaries of the documents, then that of the padding; static ones repeat."""
    expected = [0]
    for number, row in enumerate(rows):
        num_tokens = _num_tokens(row)
        ends = [end for end in row["cu_seqlens"].tolist()[1:] if end <= num_tokens]
        ends += [width] if num_tokens < width else []
        expected += [number * width + end for end in ends]
    found = batch["cu_seqlens"].tolist()
    assert found[: len(expected)] == expected
    assert set(found[len(expected) :]) <= {expected[-1]}
    if seq_len is None:
        assert len(found) == len(expected)
        assert batch["max_seqlen"] == max(np.diff(expected), default=0)
    else:
        assert batch["max_seqlen"] == seq_len


def _num_tokens(row):
    mask = row.get("attention_mask")
    if mask is not None:
        return int(mask.sum())
    (inputs,), (labels,) = row["input_ids"], row["labels"]
    padded = (inputs == PAD_ID) & (labels == -100)
    return int(len(inputs) - np.cumprod(padded[::-1]).sum())
