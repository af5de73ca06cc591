"""Rows of different views in one batch: each is what its own view reads, and rules for the rest."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import millstream
from millstream.batches.row_slice import RowSlice
from millstream.errors import UsageError
from tests.helpers.compact_batches import read_compactly
from tests.helpers.datasets import tokens_of, write_dataset
from tests.helpers.mixtures import EXTRAS, FIELDS, PAD_ID, check_batch, write_sources
from tests.helpers.row_slices import check_slices, read_slices

SEQ_LEN = 12
EOS_ID = 17


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    return write_sources(tmp_path_factory.mktemp("sources"))


extras = st.lists(st.sampled_from(EXTRAS), unique=True)
windows = st.builds(
    lambda **options: lambda data: data.windows(SEQ_LEN, **options),
    overlap=st.booleans(),
    mask_ends=st.booleans(),
    extras=extras,
)
by_eos = st.builds(
    lambda **options: lambda data: data.windows(SEQ_LEN, eos_id=EOS_ID, **options),
    overlap=st.booleans(),
    mask_ends=st.booleans(),
    extras=st.lists(st.sampled_from(EXTRAS).filter(lambda extra: extra != "document_ids")),
)
packed = st.builds(
    lambda **options: lambda data: data.packed(SEQ_LEN, pad_id=PAD_ID, **options),
    policy=st.sampled_from(["best_fit", "bos_best_fit", "bos_best_fit_keep"]),
    mask_ends=st.sampled_from([None, True, False]),
    extras=extras,
    static_shapes=st.booleans(),
)


def documents(pad_to):
    return st.builds(
        lambda **options: (
            lambda data: data.documents(SEQ_LEN, pad_id=PAD_ID, pad_to=pad_to, **options)
        ),
        overflow=st.sampled_from(["truncate", "split"]),
        attention_mask=st.booleans(),
        by_length=st.booleans(),
        extras=extras,
    )


parts = st.sampled_from(
    [
        lambda view: view,
        lambda view: view.slice(5, -3),
        lambda view: view.without(documents=[0, 7, 8, 20]),
        lambda view: view.split(every=3)[0],
    ]
)


def several(kinds):
    """Views of one to four of the datasets, each with a part of its samples."""
    source = st.tuples(st.sampled_from(list(FIELDS)), kinds, parts)
    return st.lists(source, min_size=1, max_size=4)


of_one_width = several(windows | by_eos | packed | documents(None))
of_any_width = of_one_width | several(documents(5))


def mixture_of(datasets, chosen):
    views = [view(datasets[name]) for name, view, _ in chosen]
    has_eos = [getattr(view, "eos_id", None) is not None for view in views]
    assume(not any(has_eos) or not any("document_ids" in view.extras for view in views))
    views = [
        view if by_eos else part(view)
        for view, by_eos, (_, _, part) in zip(views, has_eos, chosen, strict=True)
    ]
    return views, millstream.mix({str(k): (view, k + 1) for k, view in enumerate(views)})


@pytest.mark.slow
@settings(max_examples=120)
@given(of_any_width, st.sampled_from([np.int64, np.int32, None]), st.data())
def test_every_row_is_what_its_own_view_reads(datasets, chosen, dtype, data):
    views, mixture = mixture_of(datasets, chosen)
    positions = data.draw(st.lists(st.integers(0, 500), max_size=9))
    sources, samples = mixture.locate(positions)
    batch = mixture.read(positions, dtype=dtype)
    check_batch(batch, views, sources, samples, dtype=dtype)


@pytest.mark.slow
@settings(max_examples=60)
@given(of_any_width, st.sampled_from([np.int64, np.int32, None]), st.data())
def test_a_compact_batch_of_a_mixture_has_everything_that_the_batch_has(
    datasets, chosen, dtype, data
):
    pytest.importorskip("torch")
    _, mixture = mixture_of(datasets, chosen)
    positions = data.draw(st.lists(st.integers(0, 500), min_size=1, max_size=6))
    masked = {view.loss_mask for view in mixture.sources}
    assert mixture.layout(1, dtype).has_compact_form == (len(masked) == 1)
    assume(len(masked) == 1)
    expected = mixture.read(positions, dtype=dtype)
    found = read_compactly(mixture, mixture.order.samples_at(positions), dtype)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.asarray(found[name]).dtype == np.asarray(values).dtype, name
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.slow
@settings(max_examples=60)
@given(of_any_width, st.sampled_from(["contiguous", "zigzag"]), st.integers(2, 3), st.data())
def test_slices_of_rows_are_parts_of_the_whole_rows(datasets, chosen, layout, num_parts, data):
    views, mixture = mixture_of(datasets, chosen)
    assert SEQ_LEN % (2 * num_parts) == 0
    samples = mixture.order.samples_at(data.draw(st.lists(st.integers(0, 500), max_size=5)))
    cuts = [RowSlice(part=part, parts=num_parts, layout=layout) for part in range(num_parts)]
    batches = [read_slices(mixture, samples, cut) for cut in cuts]
    wanted = [extra for extra in EXTRAS if any(extra in view.extras for view in views)]
    is_static = any(view.static_shapes for view in views)
    has_eos = any(getattr(view, "eos_id", None) is not None for view in views)
    every = [extra for extra in EXTRAS if not has_eos or extra != "document_ids"]
    plain = [replace(view, extras=every, static_shapes=False) for view in views]
    with_all = millstream.mix({str(k): (view, 1) for k, view in enumerate(plain)})
    whole = read_slices(with_all, samples, None)
    sources = whole.pop("source_ids").tolist()
    assert [batch.pop("source_ids").tolist() for batch in batches] == [sources] * num_parts
    check_slices(whole, batches, cuts, extras=wanted, static_shapes=is_static, seq_len=SEQ_LEN)


@pytest.mark.slow
@settings(max_examples=40)
@given(of_any_width, st.sampled_from(["contiguous", "zigzag"]), st.data())
def test_slices_of_rows_cross_compactly_too(datasets, chosen, layout, data):
    pytest.importorskip("torch")
    _, mixture = mixture_of(datasets, chosen)
    assume(mixture.layout(1, np.int64).has_compact_form)
    samples = mixture.order.samples_at(data.draw(st.lists(st.integers(0, 500), min_size=1)))
    cut = RowSlice(part=data.draw(st.integers(0, 1)), parts=2, layout=layout)
    expected = read_slices(mixture, samples, cut)
    found = read_compactly(mixture, samples, np.int64, cut)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_extras_of_one_source_are_made_for_all(datasets):
    views = {
        "a": (datasets["plain"].windows(SEQ_LEN, extras="document_ids"), 1),
        "b": (datasets["wide"].windows(SEQ_LEN), 1),
    }
    batch = millstream.mix(views).read(range(20))
    for row, source in enumerate(batch["source_ids"].tolist()):
        data = datasets[["plain", "wide"][source]]
        for column in (0, SEQ_LEN - 1):
            document = tokens_of(data.document(int(batch["document_ids"][row, column])))
            assert batch["input_ids"][row, column] in document


def test_a_field_of_some_sources_is_left_out_but_still_masks_labels(datasets):
    mixture = millstream.mix(
        {
            "scored": (datasets["scored"].windows(SEQ_LEN), 1),
            "masked": (datasets["masked"].windows(SEQ_LEN), 1),
            "plain": (datasets["plain"].windows(SEQ_LEN), 1),
        }
    )
    assert mixture.left_out == {"loss_mask": ("scored", "masked"), "score": ("scored",)}
    batch = mixture.read(range(60))
    assert batch.keys() == {"input_ids", "labels", "source_ids"}
    is_ignored = (batch["labels"] == -100).any(axis=1)
    assert is_ignored.tolist() == (batch["source_ids"] < 2).tolist()


def test_a_field_that_all_sources_have_is_in_batches(datasets):
    mixture = millstream.mix(
        {name: (datasets[name].windows(SEQ_LEN), 1) for name in ("masked", "scored")}
    )
    batch = mixture.read(range(40))
    assert mixture.left_out == {"score": ("scored",)}
    assert batch["loss_mask"].dtype == np.uint8
    assert batch["loss_mask"].tolist() == (batch["input_ids"] % 3 > 0).astype(int).tolist()


def test_tokens_keep_the_widest_stored_type(datasets):
    mixture = millstream.mix(
        {name: (datasets[name].windows(SEQ_LEN), 1) for name in ("plain", "wide")}
    )
    batch = mixture.read(range(8), dtype=None)
    assert (batch["input_ids"].dtype, batch["labels"].dtype) == (np.uint32, np.uint32)
    with_padding = mixture.change(5, sources={"p": (datasets["plain"].packed(SEQ_LEN), 1)})
    labels = with_padding.read(range(8), dtype=None)["labels"]
    assert labels.dtype == np.int64, "which holds -100 and all that uint32 does"


def refuse(views, match, **options):
    with pytest.raises(UsageError, match=match):
        millstream.mix({name: (view, 1) for name, view in views.items()}, **options)


def test_views_whose_rows_differ_in_shape_are_refused(datasets):
    plain, wide = datasets["plain"], datasets["wide"]
    refuse({"a": plain.windows(8), "b": wide.windows(9)}, "'a' and 'b' .* 8 tokens .* 9 tokens")
    narrow = plain.documents(8, pad_to=4)
    refuse({"a": narrow, "b": wide.documents(8)}, "pad_to=4 and pad_to=None")
    refuse({"a": narrow, "b": wide.documents(8, pad_to=2)}, "pad_to=4 and pad_to=2")
    refuse({"a": narrow, "b": wide.windows(8)}, "pad_to")


def write_records(path, fields):
    with millstream.Writer(path, fields=fields) as writer:
        writer.append({name: np.arange(100) % 50 for name, *_ in fields})
    return millstream.open(path)


def test_fields_of_one_name_and_different_types_are_refused(tmp_path):
    views = {
        kind: write_records(tmp_path / kind, [("token", "<u2"), ("score", kind)]).windows(8)
        for kind in ("u1", "i2")
    }
    refuse(views, "field 'score' is uint8 in source 'u1' and int16 in 'i2'")


def test_a_field_named_as_the_ids_of_sources_is_refused(tmp_path):
    """Its rows would be written where the ids have room for one number each."""
    fields = [("token", "<u2"), ("source_ids", "u1")]
    views = {name: write_records(tmp_path / name, fields).windows(64) for name in "ab"}
    refuse(views, "source 'a' has a field 'source_ids'")
    plain = write_dataset(tmp_path / "plain", np.arange(100)).windows(64)
    refuse({"plain": plain, "b": views["b"]}, "source 'b' has a field 'source_ids'")


def test_records_without_tokens_mix_with_their_like_only(tmp_path):
    fields = [("x", "<i4")]
    views = {name: write_records(tmp_path / name, fields).windows(8) for name in "ab"}
    batch = millstream.mix({name: (view, 1) for name, view in views.items()}).read(range(6))
    assert batch.keys() == {"x", "source_ids"}
    assert batch["x"].shape == (6, 8)
    plain = write_dataset(tmp_path / "plain", np.arange(100)).windows(8)
    refuse(
        {"plain": plain, "a": views["a"]},
        "'plain' and 'a' cannot be in one batch: they have records with a field",
    )


def test_metadata_is_refused(tmp_path):
    with millstream.Writer(tmp_path / "m", vocab_size=100, metadata=bytes) as writer:
        writer.append(np.arange(50), b"x")
    view = millstream.open(tmp_path / "m").windows(8, metadata=bytes)
    refuse({"m": view}, "source 'm' has metadata=")


def test_windows_cut_by_an_eos_have_no_document_ids_for_the_others(datasets):
    by_eos = datasets["plain"].windows(SEQ_LEN, eos_id=7)
    others = datasets["wide"].windows(SEQ_LEN, extras="document_ids")
    refuse({"a": by_eos, "b": others}, "documents have no numbers")


def with_tokenizer(path, **facts):
    with millstream.Writer(path, **{"fields": [("token", "<u2")]} | facts) as writer:
        writer.append(np.arange(90))
    return millstream.open(path).windows(8)


def test_sources_with_other_tokenizers_are_refused(tmp_path):
    views = {
        "gpt": with_tokenizer(tmp_path / "a", tokenizer={"name": "gpt", "fingerprint": "1"}),
        "unknown": with_tokenizer(tmp_path / "b"),
        "llama": with_tokenizer(tmp_path / "c", tokenizer={"name": "llama", "fingerprint": "2"}),
    }
    refuse(views, "'gpt' and 'llama' have different tokenizers: tokenizer gpt .1. and llama .2.")
    refuse(views, "it must be True or False", check_tokenizers="no")
    mixture = millstream.mix(
        {name: (view, 1) for name, view in views.items()}, check_tokenizers=False
    )
    assert len(mixture.change(5, {"gpt": 1}).read([0, 9])["input_ids"]) == 2
    del views["llama"]
    assert millstream.mix({name: (view, 1) for name, view in views.items()}).names == tuple(views)


def test_sources_with_other_vocabularies_are_refused(tmp_path):
    views = {
        str(size): with_tokenizer(tmp_path / str(size), vocab_size=size) for size in (100, 200)
    }
    refuse(views, "vocab_size 100 and 200")


def test_a_source_that_is_added_later_obeys_the_same_rules(datasets, tmp_path):
    mixture = millstream.mix({"a": (datasets["plain"].windows(8), 1)})
    with pytest.raises(UsageError, match="cannot be in one batch"):
        mixture.change(5, {"a": 1}, sources={"b": (datasets["wide"].windows(9), 1)})
    other = write_dataset(tmp_path / "other", np.arange(90), vocab_size=99).windows(8)
    with pytest.raises(UsageError, match="different tokenizers"):
        mixture.change(5, {"a": 1}, sources={"b": (other, 1)})


def test_stored_position_ids_of_some_sources_cannot_be_sliced_with_others(tmp_path, datasets):
    fields = [("token", "<u2"), ("position_ids", "<i4")]
    stored = write_records(tmp_path / "stored", fields).windows(SEQ_LEN)
    plain = write_dataset(tmp_path / "plain", np.arange(100)).windows(SEQ_LEN)
    mixture = millstream.mix({"stored": (stored, 1), "plain": (plain, 1)}, check_tokenizers=False)
    assert "position_ids" not in mixture.read([0])
    with pytest.raises(UsageError, match="not all sources can have 'position_ids'"):
        mixture.layout(2, np.int64, RowSlice(part=0, parts=2, layout="contiguous"))
