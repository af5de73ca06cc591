"""Compact batches, widened by torch on the CPU, are the batches that kernels make."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import millstream
from millstream.batches.row_slice import RowSlice
from tests.helpers.compact_batches import read_compactly
from tests.helpers.datasets import write_documents, write_random_documents
from tests.helpers.row_slices import read_slices

pytest.importorskip("torch")
EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """300 documents of 1 to 60 tokens."""
    path = tmp_path_factory.mktemp("data") / "d"
    return write_random_documents(path, 300, longest=60)


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Documents with a loss mask."""
    generator = np.random.default_rng(1)
    documents = [generator.integers(0, 1000, n) for n in generator.integers(1, 40, 200)]
    return write_documents(tmp_path_factory.mktemp("masked") / "d", documents, masked=True)


extras = st.lists(st.sampled_from(EXTRAS), unique=True)
seq_lens = st.integers(1, 70) | st.integers(1, 6).map(lambda times: 12 * times)
VIEWS = st.one_of(
    st.builds(
        lambda seq_len, extras, mask: (
            lambda data: data.windows(seq_len, extras=extras, mask_ends=mask)
        ),
        seq_lens,
        extras,
        st.booleans(),
    ),
    st.builds(
        lambda seq_len, extras: (
            lambda data: data.windows(
                seq_len, extras=[each for each in extras if each != "document_ids"], eos_id=7
            )
        ),
        seq_lens,
        extras,
    ),
    st.builds(
        lambda seq_len, extras, static: (
            lambda data: data.packed(seq_len, extras=extras, static_shapes=static)
        ),
        seq_lens,
        extras,
        st.booleans(),
    ),
    st.builds(
        lambda seq_len, extras, pad_to: (
            lambda data: data.documents(seq_len, extras=extras, by_length=True, pad_to=pad_to)
        ),
        seq_lens,
        extras,
        st.integers(1, 9),
    ),
)


@given(view=VIEWS, dtype=st.sampled_from([np.int64, np.int32, None]), draw=st.data())
@pytest.mark.parametrize("kind", ["data", "masked"])
def test_a_compact_batch_has_everything_that_the_batch_has(kind, view, dtype, draw, request):
    chosen = view(request.getfixturevalue(kind))
    samples = draw.draw(st.lists(st.integers(0, len(chosen) - 1), min_size=1, max_size=6))
    expected = chosen.read(samples, dtype=dtype)
    found = read_compactly(chosen, samples, dtype)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.asarray(found[name]).dtype == np.asarray(values).dtype, name
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@given(
    view=VIEWS,
    layout=st.sampled_from(["contiguous", "zigzag"]),
    draw=st.data(),
)
@pytest.mark.parametrize("kind", ["data", "masked"])
def test_slices_of_rows_cross_compactly_too(kind, view, layout, draw, request):
    chosen = view(request.getfixturevalue(kind))
    assume(chosen.seq_len % 12 == 0)
    parts = draw.draw(st.integers(2, 3))
    row_slice = RowSlice(part=draw.draw(st.integers(0, parts - 1)), parts=parts, layout=layout)
    samples = draw.draw(st.lists(st.integers(0, len(chosen) - 1), min_size=1, max_size=4))
    expected = read_slices(chosen, samples, row_slice)
    found = read_compactly(chosen, samples, np.int64, row_slice)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_a_token_costs_two_bytes_however_much_is_derived(data):
    layout = data.packed(2048, extras=EXTRAS).layout(32, np.int64)
    assert layout.num_bytes > (8 + 8 + 4 + 8 + 4) * 32 * 2048
    assert layout.compact().places()["segment_table"].offset < 2.1 * 32 * 2048


def test_padding_that_the_stored_type_cannot_hold_crosses_in_a_wider_one(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("one\ntwo\nthree\n")
    packing = millstream.Packing(policy="best_fit", pad_id=70_000)
    loader = millstream.TextLoader(text, "bytes", 1, 32, packing, tail="keep", output="numpy")
    assert (next(iter(loader))["input_ids"] == 70_000).any()
    stored = packing.layout(loader.tokenizer, 32, 1, np.int64).compact().places()["tokens"]
    assert stored.dtype == np.int64
