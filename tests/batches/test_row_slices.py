"""Slices of rows for context parallelism, against the whole rows."""

import tempfile
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.batches.row_slice import RowSlice
from millstream.errors import MissingDataError, UsageError
from tests.helpers.metadata_by_hand import MEMORY
from tests.helpers.row_slices import check_slices, read_slices

pytestmark = pytest.mark.kernels

EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")
EOS = 7


def slices(parts, layout):
    return [RowSlice(part=part, parts=parts, layout=layout) for part in range(parts)]


@contextmanager
def written(lengths, *, has_fields=False, has_metadata=False, access="pread", shard_bytes=1 << 20):
    """Documents of these lengths; tokens count up but for an EOS here and there."""
    fields = [("token", "<u2"), ("loss_mask", "u1"), ("vector", "<f4", (2,))]
    first = 100
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        with millstream.Writer(
            f"{root}/data",
            shard_bytes=shard_bytes,
            metadata=bytes if has_metadata else None,
            **({"fields": fields} if has_fields else {"vocab_size": 1 << 16}),
        ) as writer:
            for length in lengths:
                tokens = np.arange(first, first + length)
                first += length
                tokens[tokens * 2654435761 % 5 == 0] = EOS
                vectors = np.stack([tokens, -tokens], axis=1)
                spans = [
                    (start, min(start + 3, length), bytes([start, length % 251]) * (start % 3))
                    for start in range(length % 4, length, 5)
                ]
                columns = {"token": tokens, "loss_mask": tokens % 3 > 0, "vector": vectors}
                writer.append(
                    columns if has_fields else tokens, **({"spans": spans} if has_metadata else {})
                )
        yield millstream.open(f"{root}/data", access=access)


@st.composite
def views(draw, data, multiple):
    """A view whose rows can be cut into `multiple` equal chunks."""
    options = {
        "extras": draw(st.lists(st.sampled_from(EXTRAS), unique=True)),
        "static_shapes": draw(st.booleans()),
    }
    seq_len = multiple * draw(st.integers(1, max(1, 40 // multiple)))
    kind = draw(st.sampled_from(["plain", "windows", "eos", "packed", "documents"]))
    if kind == "plain":
        return data.windows(seq_len)
    if kind in ("windows", "eos"):
        options["overlap"], options["mask_ends"] = draw(st.booleans()), draw(st.booleans())
        if kind == "eos":
            options["extras"] = [extra for extra in options["extras"] if extra != "document_ids"]
            options["eos_id"] = EOS
        return data.windows(seq_len, **options)
    if kind == "packed":
        options["mask_ends"] = draw(st.booleans())
        policy = draw(st.sampled_from(["best_fit", "bos_best_fit", "bos_best_fit_keep"]))
        return data.packed(seq_len, policy=policy, pad_id=3, **options)
    options["pad_to"] = draw(st.sampled_from([None, 1, 3, 8]))
    options["overflow"] = draw(st.sampled_from(["truncate", "split"]))
    return data.documents(seq_len, pad_id=3, **options)


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 12) | st.integers(30, 90), min_size=1, max_size=9),
    has_fields=st.booleans(),
    metadata=st.sampled_from([None, bytes, "u1"]),
    access=st.sampled_from(["pread", "mmap"]),
    shard_bytes=st.sampled_from([1, 100, 1 << 20]),
    parts=st.integers(2, 4),
    layout=st.sampled_from(["contiguous", "zigzag"]),
    draw=st.data(),
)
def test_slices_side_by_side_are_the_whole_rows(
    lengths, has_fields, metadata, access, shard_bytes, parts, layout, draw
):
    multiple = parts * (2 if layout == "zigzag" else 1)
    options = {"access": access, "shard_bytes": shard_bytes}
    with written(
        lengths, has_fields=has_fields, has_metadata=metadata is not None, **options
    ) as data:
        if not data.num_records:
            return
        view = replace(draw.draw(views(data, multiple)), metadata=metadata)
        if not len(view):
            return
        samples = draw.draw(st.lists(st.integers(0, len(view) - 1), max_size=4))
        every = {"attention_mask", "cu_seqlens", "position_ids", *view.extras}
        whole = replace(view, extras=tuple(every), static_shapes=False).read(samples)
        parts_read = [read_slices(view, samples, cut) for cut in slices(parts, layout)]
        check_slices(
            whole,
            parts_read,
            slices(parts, layout),
            extras=view.extras,
            static_shapes=view.static_shapes,
            seq_len=view.seq_len,
        )


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("contiguous", [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]),
        ("zigzag", [[[0, 1, 6, 7]], [[2, 3, 4, 5]]]),
    ],
)
def test_a_slice_has_the_columns_and_positions_of_its_chunks(layout, expected):
    with written([30]) as data:
        view = data.windows(8)
        for cut, columns in zip(slices(2, layout), expected, strict=True):
            batch = read_slices(view, [1], cut)
            whole = view.read([1])
            assert batch["position_ids"].tolist() == columns
            assert batch["input_ids"].tolist() == whole["input_ids"][:, columns[0]].tolist()
            assert batch["labels"].tolist() == whole["labels"][:, columns[0]].tolist()


@pytest.mark.parametrize("extras", [(), ("position_ids",), ("document_ids", "cu_seqlens")])
def test_only_the_records_of_a_slice_are_read(extras):
    # Of the window that starts at record 16, columns 4 to 11 and the label after them are shard 1.
    with written([20, 9, 20], shard_bytes=1) as data:
        view = data.windows(16, extras=extras)
        whole = view.read([1])
        for shard in (0, 2):
            data.shards[shard].path(".stream").unlink()
        batch = read_slices(view, [1], RowSlice(part=1, parts=2, layout="zigzag"))
        for name in ("input_ids", "labels"):
            assert batch[name].tolist() == whole[name][:, 4:12].tolist()
        with pytest.raises(MissingDataError):
            view.read([1])


def test_rows_that_cannot_be_cut_evenly_are_refused_with_lengths_that_can():
    with written([30]) as data:
        for layout, works in [("contiguous", "9 or 12"), ("zigzag", "6 or 12")]:
            with pytest.raises(UsageError, match=f"use seq_len={works}"):
                data.windows(10).layout(1, None, RowSlice(part=0, parts=3, layout=layout))
        with pytest.raises(UsageError, match=r"use seq_len=16$"):
            data.windows(10).layout(1, None, RowSlice(part=0, parts=8, layout="zigzag"))


@pytest.mark.parametrize(("part", "parts"), [(2, 2), (-1, 2), (0, 1)])
def test_a_slice_is_one_of_its_parts(part, parts):
    with pytest.raises(UsageError, match="part"):
        RowSlice(part=part, parts=parts)


def test_records_may_have_position_ids_of_their_own(tmp_path):
    fields = [("token", "<u2"), ("position_ids", "<u2")]
    with millstream.Writer(tmp_path / "data", fields=fields) as writer:
        writer.append({"token": np.arange(20), "position_ids": np.arange(20) * 3})
    view = millstream.open(tmp_path / "data").windows(4)
    batch = read_slices(view, [1], RowSlice(part=1, parts=2, layout="contiguous"))
    assert batch["position_ids"].tolist() == [[18, 21]]
