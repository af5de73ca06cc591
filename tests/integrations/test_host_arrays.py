"""Masks, segments and types of batches for JAX and Keras, against a plain model of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.integrations.host_arrays import host_arrays, segments_of
from tests.helpers.datasets import write_dataset

EXTRAS = ["position_ids", "document_ids", "attention_mask"]
VIEWS = {
    "windows": lambda data, **given: data.windows(12, **given),
    "windows without a document": lambda data, **given: data.windows(12, **given).without(
        documents=[1]
    ),
    "best_fit": lambda data, **given: data.packed(12, policy="best_fit", **given),
    "bos": lambda data, **given: data.packed(12, policy="bos_best_fit", buffer_size=3, **given),
    "keep": lambda data, **given: data.packed(12, policy="bos_best_fit_keep", **given),
    "documents": lambda data, **given: data.documents(12, overflow="split", **given),
}


def plain_segments(boundaries, mask):
    """From document starts in the flattened batch, of which the padding counts as one."""
    rows, width = mask.shape
    segments = np.zeros(mask.shape, int)
    for row in range(rows):
        number = 0
        for column in range(width):
            number += row * width + column in boundaries
            segments[row, column] = number if mask[row, column] else 0
    return segments


@pytest.mark.slow
@pytest.mark.parametrize("kind", VIEWS)
@settings(max_examples=30)
@given(lengths=st.lists(st.integers(1, 30), min_size=3, max_size=12))
def test_segments_are_the_documents_of_each_row(kind, lengths, tmp_path_factory):
    tokens = np.zeros(sum(lengths), np.uint16)  # so that only boundaries tell documents apart
    path = tmp_path_factory.mktemp("set") / "data"
    data = write_dataset(path, tokens, cuts=np.cumsum(lengths)[:-1])
    view = VIEWS[kind](data, extras=EXTRAS)
    if not len(view):
        return
    found = host_arrays(view[:])
    boundaries = set(VIEWS[kind](data, extras=["cu_seqlens"])[:]["cu_seqlens"].tolist())
    expected = plain_segments(boundaries, found["attention_mask"])
    np.testing.assert_array_equal(found["segment_ids"], expected)
    assert "document_ids" not in found
    is_first = np.diff(expected, axis=1, prepend=0) > 0
    assert ((found["position_ids"] == 0) | ~is_first).all()
    assert {array.dtype.name for array in found.values()} == {"int32", "bool"}


def test_labels_are_token_ids_everywhere_and_the_mask_tells_which_count(tmp_path):
    fields = [("token", "<u2"), ("loss_mask", "u1")]
    with millstream.Writer(tmp_path / "chat", fields=fields) as writer:
        writer.append({"token": [5, 6, 7, 8], "loss_mask": [0, 0, 1, 1]})
    batch = millstream.open(tmp_path / "chat").documents(6)[:]
    assert batch["labels"].tolist() == [[-100, 7, 8, -100, -100, -100]]
    found = host_arrays(batch)
    assert found["labels"].tolist() == [[0, 7, 8, 0, 0, 0]]
    # Aligned with labels: the field, which is aligned with inputs, would be one token late.
    assert found["loss_mask"].tolist() == [[False, True, True, False, False, False]]


def test_the_batch_of_the_loader_is_left_as_it_is():
    batch = {"labels": np.array([[1, -100]]), "document_ids": np.array([[0, -1]])}
    host_arrays(batch)
    assert batch["labels"].tolist() == [[1, -100]]
    assert list(batch) == ["labels", "document_ids"]


def test_small_types_stay_and_wide_ones_become_32_bits():
    wide = {"a": np.int64, "b": np.uint64, "c": np.float64, "d": np.uint16, "e": np.bool_}
    batch = {name: np.ones((2, 3), dtype) for name, dtype in wide.items()}
    found = host_arrays(batch)
    assert [found[name].dtype.name for name in wide] == [
        *("int32", "uint32", "float32", "uint16", "bool")
    ]
    assert host_arrays(batch, keep_64_bits=True)["a"].dtype == np.int64


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1])
def test_a_value_that_does_not_fit_into_32_bits_is_refused(value):
    with pytest.raises(millstream.UsageError, match=f"score has the value {value:,}, .*x64"):
        host_arrays({"score": np.array([[0, value]])})
    fits = {"score": np.array([[(1 << 31) - 1, -(1 << 31)]])}
    assert host_arrays(fits)["score"].tolist() == fits["score"].tolist()


def test_document_ids_beyond_32_bits_become_segments():
    assert segments_of(np.array([[1 << 40, (1 << 40) + 1, -1]])).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"cu_seqlens": np.array([0, 4])}, r"with extras=\['position_ids', 'document_ids'\]"),
        ({"metadata": [[]]}, "leave metadata= out of the view"),
        ({"documents": [b"a", b"bc"]}, r"batch\['documents'\] is list, not an array of rows"),
        ({"count": np.int64(2)}, r"batch\['count'\] is int64, not an array of rows"),
        (
            {"labels": np.zeros((1, 2), int), "loss_mask": np.zeros((1, 2), np.float32)},
            "give the field another name, such as 'loss_weight'",
        ),
        (
            {"document_ids": np.zeros((1, 2), int), "segment_ids": np.zeros((1, 2), int)},
            "leave document_ids out of extras",
        ),
    ],
)
def test_what_cannot_be_divided_by_rows_or_named_is_refused(batch, message):
    with pytest.raises(millstream.UsageError, match=message):
        host_arrays({"input_ids": np.zeros((1, 2), int)} | batch)


def test_what_is_not_a_dict_is_refused():
    with pytest.raises(millstream.UsageError, match=r"must be a dict of arrays, .* returned tuple"):
        host_arrays((np.zeros((1, 2), int),))
