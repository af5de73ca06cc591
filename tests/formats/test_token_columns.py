"""Columns of Arrow and Parquet: their meaning, and their effect on batches."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millstream
from millstream.cli import main
from millstream.errors import FormatError, UsageError
from millstream.formats import arrow as arrow_format
from millstream.formats.token_columns import columns_of
from millstream.formats.wanted_columns import Wanted
from millstream.testing import assert_resumes_exactly
from millstream.verifying import find_problems
from tests.helpers import paths

GOLDEN = paths.GOLDEN / "formats" / "huggingface"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
TOKENS = [[1, 2, 3], [4, 5], [], [6]]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    return directory / "millstream"


def write(path, columns):
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


def model_of_windows(tokens, mask, seq_len):
    """Inputs and labels of windows over a stream, as NumPy slices them."""
    tokens, mask = np.array(tokens), np.array(mask)
    labels = np.where(mask, tokens, -100)
    starts = range(0, len(tokens) - seq_len, seq_len)
    return (
        [tokens[k : k + seq_len].tolist() for k in starts],
        [labels[k + 1 : k + 1 + seq_len].tolist() for k in starts],
    )


def loaded_windows(data, seq_len, **options):
    view = data.windows(seq_len, **options)
    loader = millstream.Loader(view, 1, shuffle=False, tail="keep", output="numpy")
    batches = list(loader)
    return tuple([b[name][0].tolist() for b in batches] for name in ("input_ids", "labels"))


# What Hugging Face datasets wrote


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPECTED if "loss_mask" in EXPECTED[name]])
def test_labels_of_hugging_face_datasets_are_what_is_trained_on(name):
    data = millstream.open(GOLDEN / name)
    tokens = sum(EXPECTED[name]["documents"], [])
    mask = sum(EXPECTED[name]["loss_mask"], [])
    assert 0 < sum(mask) < len(mask)
    assert loaded_windows(data, 5) == model_of_windows(tokens, mask, 5)
    whole = [1] * len(mask)
    assert loaded_windows(data, 5, loss_mask=False) == model_of_windows(tokens, whole, 5)
    assert find_problems(data) == []
    for k, row in enumerate(data.documents(24)):  # the longest there is
        kept = [k for k, document in enumerate(EXPECTED[name]["documents"]) if document][k]
        document, trained = EXPECTED[name]["documents"][kept], EXPECTED[name]["loss_mask"][kept]
        labels = [t if m else -100 for t, m in zip(document, trained, strict=True)][1:]
        assert row["input_ids"].tolist() == document + [0] * (24 - len(document))
        assert row["labels"].tolist() == labels + [-100] * (24 - len(labels))
    assert_resumes_exactly(lambda: millstream.Loader(data.packed(16), 2, seed=3, output="numpy"))


def test_ignored_labels_leave_the_file_as_it_was_read_before():
    data = millstream.open(GOLDEN / "mapped", ignore="labels")
    assert data.fields.names == ("token",)
    assert data.shards[0].files[".stream"].path.endswith(".arrow")
    assert millstream.open(GOLDEN / "shifted", ignore=["labels"]).num_documents == 14


def test_labels_that_are_shifted_are_refused_and_called_so():
    with pytest.raises(
        FormatError, match=r"row \d+: labels\[\d\] is \d+, expected -100 or the"
    ) as e:
        millstream.open(GOLDEN / "shifted")
    assert "found the next token: labels must not be shifted" in str(e.value)
    assert "write them as [-100, *labels[:-1]] to keep what they mask" in str(e.value)
    assert "ignore='labels'" in str(e.value)


def test_the_advice_for_labels_that_are_shifted_works(tmp_path):
    shifted = [[-100, 3, -100], [5, -100]]
    path = write(tmp_path / "t.parquet", {"input_ids": [[1, 2, 3], [4, 5]], "labels": shifted})
    with pytest.raises(FormatError, match="must not be shifted") as e:
        millstream.open(path)
    advice = re.search(r"\[-100, \*labels\[:-1\]\]", str(e.value)).group()
    back = [eval(advice, {"labels": labels}) for labels in shifted]
    data = millstream.open(write(path, {"input_ids": [[1, 2, 3], [4, 5]], "labels": back}))
    assert data.records(0, 5)["loss_mask"].tolist() == [0, 0, 1, 0, 1]


# What a schema means


def meaning(types, tokens=None, **wanted):
    schema = pa.schema(list(types.items()))
    return columns_of(Path("t.parquet"), schema, tokens, Wanted(**wanted))


INTS = pa.list_(pa.int64())


def test_columns_are_what_their_names_and_types_say():
    types = {
        "url": pa.string(),
        "input_ids": pa.list_(pa.uint16()),
        "token_type_ids": INTS,
        "labels": INTS,
        "loss_mask": pa.large_list(pa.bool_()),
        "attention_mask": pa.list_view(pa.int8()),
        "weight": pa.list_(pa.float32()),
    }
    found = meaning(types)
    assert (found.tokens, found.labels, found.masks) == ("input_ids", "labels", ("loss_mask",))
    assert found.attention_mask == "attention_mask"
    assert found.record == np.dtype([("token", "<u2"), ("loss_mask", "u1")])
    assert list(found.left_out) == ["url", "token_type_ids", "weight"]
    found = meaning(types, fields=("weight",), metadata=("url",), ignore=("labels", "loss_mask"))
    assert (found.labels, found.masks) == (None, ())
    assert found.record == np.dtype([("token", "<u2"), ("weight", "<f4")])
    assert list(found.left_out) == ["token_type_ids", "labels", "loss_mask"]


@pytest.mark.parametrize(
    ("types", "tokens"),
    [
        ({"mine": INTS, "labels": INTS, "attention_mask": INTS, "position_ids": INTS}, "mine"),
        ({"ids": INTS, "tokens": INTS, "other": INTS}, "tokens"),
        ({"x": pa.list_(pa.int8(), 3), "length": pa.int64()}, "x"),
    ],
)
def test_the_tokens_are_found_among_columns_that_say_something_about_them(types, tokens):
    assert meaning(types).tokens == tokens


@pytest.mark.parametrize(
    ("types", "options", "error"),
    [
        ({"labels": INTS, "attention_mask": INTS}, {}, "name the column with lists of token ids"),
        (
            {"ids": INTS, "labels": pa.list_(pa.float32())},
            {},
            "expected lists of integers; convert it",
        ),
        ({"ids": INTS, "attention_mask": pa.list_(INTS)}, {}, "leave it out with ignore='att"),
        ({"ids": INTS, "url": pa.string()}, {"fields": ("url",)}, "expected lists of numbers"),
        (
            {"ids": INTS, "b": pa.binary()},
            {"metadata": ("b",)},
            "expected a type that JSON can represent",
        ),
        ({"ids": INTS, "url": pa.string()}, {"metadata": ("ulr",)}, "did you mean 'url'"),
        ({"my_ids": INTS, "b": INTS}, {"tokens": "my_id"}, "did you mean 'my_ids'"),
        ({"ids": INTS, "b": INTS}, {"fields": ("b",), "ignore": ("b",)}, "'b' is named twice"),
        (
            {"ids": INTS, "labels": INTS},
            {"fields": ("labels",)},
            "'labels' is reserved .*; rename the column",
        ),
        ({"ids": INTS, "token": INTS}, {"fields": ("token",)}, "'token' is a field already"),
        (
            {"ids": INTS, "labels": INTS, "loss_mask": INTS},
            {"fields": ("loss_mask",)},
            "'loss_mask' is a field already",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(types, options, error):
    with pytest.raises((FormatError, UsageError), match=error):
        meaning(types, **options)


def test_columns_of_one_name_are_refused_only_if_they_are_read(tmp_path):
    schema = pa.schema([("ids", INTS), ("url", pa.string()), ("url", pa.string())])
    assert columns_of(Path("t"), schema, None, Wanted()).tokens == "ids"
    with pytest.raises(FormatError, match="more than one column 'url'"):
        columns_of(Path("t"), schema, None, Wanted(metadata=("url",)))


def test_a_label_of_a_document_is_no_label_of_tokens(tmp_path):
    data = millstream.open(
        write(tmp_path / "t.arrow", {"input_ids": TOKENS, "labels": [1, 0, 1, 1]})
    )
    assert data.fields.names == ("token",)
    assert data.manifests[0].unread == ("the columns labels (int64)",)


# Values


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("labels", [[1, 2, 3], [4, -1], [], [6]], r"row 1: labels\[1\] is -1, expected -100 or"),
        ("labels", [[1, 2, 3], [4], [], [6]], "row 1: labels has 1 values, but input_ids has 2"),
        (
            "labels",
            [[1, 2, 3], [4, 5], [9], [6]],
            "row 2: labels has 1 values, but input_ids has 0",
        ),
        ("labels", [[1, 2, 3], None, [], [6]], "'labels' has nulls"),
        ("labels", [[1, None, 3], [4, 5], [], [6]], "'labels' has nulls"),
        ("loss_mask", [[1, 2, 1], [1, 1], [], [1]], r"row 0: loss_mask\[1\] is 2, expected 0 or 1"),
        ("loss_mask", [[1, 1, 1], [1, 1], [], [-1]], r"row 3: loss_mask\[0\] is -1, expected"),
        ("attention_mask", [[1, 0, 1], [1, 1], [], [1]], r"row 0: attention_mask\[1\] is 0, expec"),
        ("attention_mask", [[1, 1, 2], [1, 1], [], [1]], r"row 0: attention_mask\[2\] is 2, expec"),
        ("attention_mask", [[1, 1], [1, 1], [], [1]], "row 0: attention_mask has 2 values"),
    ],
)
def test_values_that_do_not_fit_the_tokens_are_refused(tmp_path, kind, name, values, error):
    path = write(tmp_path / f"t.{kind}", {"input_ids": TOKENS, name: values})
    for _ in range(2):  # nothing of it stays in the cache
        with pytest.raises(FormatError, match=error) as refusal:
            millstream.open(path)
        assert str(path) in str(refusal.value)
    assert millstream.open(path, ignore=name).document(1).tolist() == [4, 5]


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_part_of_a_name_is_not_the_column_to_ignore(tmp_path, kind):
    ones = [[1] * len(row) for row in TOKENS]
    columns = {"input_ids": TOKENS, "loss_mask": ones, "special_tokens_mask": ones, "a": TOKENS}
    path = write(tmp_path / f"t.{kind}", columns)
    for name in ("mask", "tokens_mask", "(list", "a (list"):
        with pytest.raises(UsageError, match="ignore: no file has a column"):
            millstream.open(path, ignore=name)
    assert millstream.open(path, ignore=["loss_mask", "a"]).fields.names == ("token",)


def test_rows_are_counted_over_batches(tmp_path, monkeypatch):
    rows = [[k, k + 1] for k in range(0, 100, 2)]
    labels = [list(row) for row in rows]
    labels[37][1] = 5
    path = write(tmp_path / "t.parquet", {"input_ids": rows, "labels": labels})
    monkeypatch.setattr(arrow_format, "_ROWS_AT_ONCE", 7)
    with pytest.raises(FormatError, match=r"row 37: labels\[1\] is 5, expected -100 .*, 75"):
        millstream.open(path)


def test_masks_may_be_floats_of_0_and_1(tmp_path):
    masks = [[0.0, 1.0, 1.0], [1.0, 0.0], [], [1.0]]
    for kind in ("arrow", "parquet"):
        path = write(tmp_path / f"t.{kind}", {"input_ids": TOKENS, "loss_mask": masks})
        assert millstream.open(path).records(0, 6)["loss_mask"].tolist() == [0, 1, 1, 1, 0, 1]
    for wrong in (0.5, float("nan")):
        masks[1][1] = wrong
        path = write(tmp_path / "w.parquet", {"input_ids": TOKENS, "loss_mask": masks})
        with pytest.raises(
            FormatError, match=rf"row 1: loss_mask\[1\] is {wrong}, expected 0 or 1"
        ):
            millstream.open(path)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_nulls_among_the_tokens_are_not_to_be_ignored(tmp_path, kind):
    path = write(tmp_path / f"t.{kind}", {"input_ids": [[1, None], [2]]})
    with pytest.raises(FormatError, match="'input_ids' has nulls") as refusal:
        millstream.open(path)
    assert "ignore" not in str(refusal.value)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float64()), pa.list_(INTS), pa.list_(pa.null()), pa.list_(pa.bool_())]
)
def test_ids_that_are_no_integers_are_named_with_their_type(kind):
    for options in ({}, {"tokens": "input_ids"}):
        with pytest.raises(FormatError) as refusal:
            meaning({"url": pa.string(), "input_ids": kind}, **options)
        assert f"'input_ids' must be lists of integers, one per row, not {kind}" in str(
            refusal.value
        )


def test_files_with_other_types_of_tokens_are_to_be_written_with_one(tmp_path):
    write(tmp_path / "a.parquet", {"ids": pa.array(TOKENS, pa.list_(pa.int32()))})
    write(tmp_path / "b.parquet", {"ids": pa.array(TOKENS, INTS)})
    np.arange(300, 400, dtype="<u2").tofile(tmp_path / "c.bin")
    for sources in ("*.parquet", ["c.bin", "a.parquet"], ["a.parquet", "c.bin"]):
        paths = [sources] if isinstance(sources, str) else sources
        with pytest.raises(FormatError, match="write the files again with one type") as refusal:
            millstream.open([tmp_path / path for path in paths])
        assert "ignore" not in str(refusal.value)


def test_columns_that_contradict_each_other_are_refused(tmp_path):
    columns = {"input_ids": TOKENS, "labels": TOKENS, "loss_mask": [[1, 1, 1], [0, 1], [], [1]]}
    path = write(tmp_path / "t.parquet", columns)
    with pytest.raises(FormatError, match=r"row 1: loss_mask\[0\] is 0, but labels\[0\] is 4"):
        millstream.open(path)
    columns["loss_mask"][1][0] = 1
    data = millstream.open(write(path, columns))
    assert data.records(0, 9)["loss_mask"].tolist() == [1] * 6


def test_padding_may_hold_any_label_and_a_row_of_padding_is_an_empty_document(tmp_path):
    columns = {
        "input_ids": [[7, 8, 0, 0], [0, 0, 0, 0], [0, 9, 7, 0]],
        "attention_mask": [[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]],
        "labels": [[-100, 8, 55, -100], [1, 2, 3, 4], [44, 9, -100, -1]],
    }
    data = millstream.open(write(tmp_path / "t.arrow", columns))
    assert [data.document(k).tolist() for k in range(3)] == [
        *([(7, 0), (8, 1)], [], [(9, 1), (7, 0)])
    ]


# Fields and metadata


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_other_columns_become_fields_and_metadata(tmp_path, kind):
    columns = {
        "input_ids": [*TOKENS, [0, 7, 0]],
        "attention_mask": [[1, 1, 1], [1, 1], [], [1], [0, 1, 0]],
        "weight": [[0.5, 1.5, 2.5], [3.5, 4.5], [], [6.5], [9.0, 7.5, 9.0]],
        "is_code": [[True, False, True], [False, True], [], [True], [False, True, False]],
        "url": ["a", None, "c", "é", "e"],
        "score": [1, 2, 3, 4, 5],
    }
    data = millstream.open(
        write(tmp_path / f"t.{kind}", columns),
        fields=["weight", "is_code"],
        metadata=["url", "score"],
    )
    assert [row[:3] for row in data.document(4).tolist()] == [(7, 7.5, True)]
    batch = data.windows(6, metadata=json.loads).read([0])
    assert batch["weight"][0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 6.5]
    assert batch["is_code"][0].tolist() == [True, False, True, False, True, True]
    assert batch["metadata"][0] == [
        *({"score": 1, "url": "a"}, {"score": 2, "url": None}, {"score": 4, "url": "é"})
    ]
    assert data.metadata(4) == [(0, 1, b'{"score":5,"url":"e"}')]
    assert data.metadata(2) == []


def test_metadata_that_cannot_be_json_is_refused_with_its_row(tmp_path):
    path = write(tmp_path / "t.parquet", {"ids": TOKENS, "w": [1.0, 2.0, float("nan"), 4.0]})
    with pytest.raises(FormatError, match="row 2: its metadata cannot be written as JSON"):
        millstream.open(path, metadata="w")


def test_datasets_without_columns_take_none(data):
    directory = data.shards[0].directory
    with pytest.raises(UsageError, match="millstream-stream has no columns such as url"):
        millstream.open(directory, metadata="url")


# In place, and what is kept in the cache


def test_tokens_without_padding_are_read_in_place_and_the_mask_once(tmp_path, monkeypatch, cache):
    ones = [[1] * len(row) for row in TOKENS]
    path = write(tmp_path / "t.arrow", {"input_ids": TOKENS, "attention_mask": ones})
    data = millstream.open(path)
    assert data.shards[0].files[".stream"].path == str(path)
    assert not (cache / "decoded").exists()
    monkeypatch.delattr(arrow_format, "read_lists")  # nothing reads the mask again
    assert millstream.open(path).document(1).tolist() == [4, 5]


def test_padding_is_looked_for_once(tmp_path, monkeypatch):
    masks = [[1, 1, 0], [1, 1], [], [1]]
    path = write(tmp_path / "t.arrow", {"input_ids": TOKENS, "attention_mask": masks})
    assert millstream.open(path).document(0).tolist() == [1, 2]
    monkeypatch.delattr(arrow_format, "read_lists")
    assert millstream.open(path).document(0).tolist() == [1, 2]


def test_what_was_decoded_with_other_meanings_is_not_used(tmp_path):
    columns = {"input_ids": TOKENS, "labels": [[-100, 2, 3], [4, 5], [], [6]]}
    columns["attention_mask"] = [[1, 1, 1], [1, 0], [], [1]]
    path = write(tmp_path / "t.parquet", columns)
    plain = millstream.open(path, ignore=["labels", "attention_mask"])
    assert plain.fields.names == ("token",)  # as all versions before decoded it
    assert millstream.open(path).fields.names == ("token", "loss_mask")
    assert millstream.open(path, ignore="labels").num_records == 5
    assert millstream.open(path, ignore="attention_mask").num_records == 6
    assert millstream.open(path, ignore=["labels", "attention_mask"]).num_records == 6


def test_list_views_in_order_are_read_in_place_and_others_decoded(tmp_path):
    values = pa.array([1, 2, 3, 4, 5, 6], pa.uint16())
    for view, starts, sizes, documents in (
        (pa.ListViewArray, [0, 9, 3], [3, 0, 3], None),
        (pa.ListViewArray, [0, 3, 5], [3, 2, 1], [[1, 2, 3], [4, 5], [6]]),
        (pa.LargeListViewArray, [1, 6, 3], [2, 0, 3], [[2, 3], [], [4, 5, 6]]),
        (pa.LargeListViewArray, [3, 0, 2], [2, 3, 4], [[4, 5], [1, 2, 3], [3, 4, 5, 6]]),
    ):
        path = tmp_path / f"{starts[-1]}{sizes[-1]}.arrow"
        write(path, {"ids": view.from_arrays(starts, sizes, values)})
        if documents is None:
            with pytest.raises(FormatError, match="pyarrow cannot read it"):
                millstream.open(path)
            continue
        data = millstream.open(path)
        assert [data.document(k).tolist() for k in range(3)] == documents
        is_in_order = starts == sorted(starts) or documents == [[2, 3], [], [4, 5, 6]]
        assert bool(data.shards[0].files[".stream"].path) == is_in_order


def test_files_with_and_without_padding_are_one_dataset(tmp_path):
    columns = {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 1]]}
    write(tmp_path / "a.arrow", columns)
    write(tmp_path / "b.arrow", columns | {"attention_mask": [[0, 1, 1]]})
    data = millstream.open(tmp_path)
    assert [bool(shard.files[".stream"].path) for shard in data.shards] == [True, False]
    assert loaded_windows(data, 4) == ([[1, 2, 3, 2]], [[2, 3, 2, 3]])
    write(tmp_path / "c.arrow", {"input_ids": [[1, 2]], "labels": [[1, -100]]})
    with pytest.raises(FormatError, match=r"loss_mask.*need the same record type"):
        millstream.open(tmp_path)


def test_a_mask_beside_tokens_that_have_one_is_refused(tmp_path):
    path = write(tmp_path / "t.parquet", {"ids": TOKENS, "labels": TOKENS})
    (tmp_path / "mask").write_bytes(bytes(6))
    with pytest.raises(UsageError, match="a loss mask needs a single token file without one"):
        millstream.open(path, loss_masks=tmp_path / "mask")


# The command line and conversion


def test_columns_of_mds_are_named_too():
    path = GOLDEN.parent / "mds" / "with_id"
    assert millstream.open(path).manifests[0].unread == ("the columns id (str), n (int)",)


def test_inspect_names_what_is_left_out_and_takes_columns(capsys):
    path = str(GOLDEN / "sft_right.parquet")
    assert main(["inspect", path, "--seq-len", "8", "--samples", "1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())  # lines are as wide as the terminal
    assert re.search(r"left out +the columns messages \(list<.*>\), source \(string\)", printed)
    assert re.search(r"fields +token int32, loss_mask uint8", printed)
    assert main(["inspect", path, "--seq-len", "8", "--metadata", "source,messages"]) == 0
    printed = capsys.readouterr().out
    assert "left out" not in printed
    assert '"source":"https://example.org/' in printed
    assert main(["inspect", str(GOLDEN / "shifted"), "--seq-len", "8"]) == 1
    assert "labels must not be shifted" in capsys.readouterr().err
    assert main(["verify", str(GOLDEN / "shifted"), "--ignore", "labels"]) == 0
    assert main(["verify", str(GOLDEN / "shifted")]) == 1


def test_convert_keeps_the_mask_where_it_can_and_names_what_it_leaves(tmp_path):
    data = millstream.open(GOLDEN / "sft_left")
    report = millstream.convert(data, tmp_path / "ds", "datatrove")
    assert any("the columns messages" in loss for loss in report.lost)
    kept = millstream.open(tmp_path / "ds")
    assert loaded_windows(kept, 5) == loaded_windows(data, 5)
    report = millstream.convert(data, tmp_path / "flat", "flat")
    assert "flat cannot store the fields loss_mask" in report.lost


# Everything at once

LISTS = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}
TOKEN_TYPES = [pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()]
MASK_TYPES = [pa.bool_(), pa.int8(), pa.uint8(), pa.int32(), pa.int64()]


@st.composite
def a_row(draw):
    tokens = draw(st.lists(st.integers(0, 127), max_size=9))
    start = draw(st.integers(0, len(tokens)))
    stop = draw(st.integers(start, len(tokens)))
    return tokens, start, stop, draw(st.lists(st.booleans(), min_size=9, max_size=9))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(chance=st.data())
def test_any_table_gives_the_tokens_and_labels_of_its_model(tmp_path_factory, chance):
    draw, one_of = chance.draw, st.sampled_from
    rows = draw(st.lists(a_row(), max_size=12))
    names = draw(st.sets(one_of(["labels", "loss_mask", "assistant_masks", "attention_mask"])))
    columns = {"tokens": [tokens for tokens, *_ in rows]}
    documents, masks = [], []
    for tokens, start, stop, trained in rows:
        if "attention_mask" not in names:
            start, stop = 0, len(tokens)
        documents.append(tokens[start:stop])
        masks.append(trained[start:stop] if names - {"attention_mask"} else [1] * (stop - start))
    for name in names:
        columns[name] = [
            {
                "labels": [t if m else -100 for t, m in zip(tokens, trained, strict=False)],
                "attention_mask": [start <= k < stop for k in range(len(tokens))],
            }.get(name, trained[: len(tokens)])
            for tokens, start, stop, trained in rows
        ]
    arrays = {}
    for name, lists in columns.items():
        values = one_of(TOKEN_TYPES if name == "tokens" else MASK_TYPES)
        values = draw(one_of([pa.int8(), pa.int64()]) if name == "labels" else values)
        if name != "labels" and name != "tokens" and values != pa.bool_():
            lists = [[int(value) for value in each] for each in lists]
        make = LISTS[draw(one_of([*LISTS]))]
        arrays[name] = pa.array(lists, make(values))
    table = pa.table(arrays)
    kept = slice(0, len(rows))
    if draw(st.booleans()):  # a view of some rows, whose offsets do not start at 0
        first = draw(st.integers(0, len(rows)))
        kept = slice(first, draw(st.integers(first, len(rows))))
        table = table.slice(kept.start, kept.stop - kept.start)
    directory = tmp_path_factory.mktemp("any")
    kind = draw(one_of(["arrow", "arrows", "zstd.arrow", "parquet"]))
    path, at_once = directory / f"t.{kind}", draw(st.integers(1, 12))
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=at_once)
    else:
        new = pa.ipc.new_stream if kind == "arrows" else pa.ipc.new_file
        options = pa.ipc.IpcWriteOptions(compression="zstd" if "zstd" in kind else None)
        with new(path, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=at_once)
    data = millstream.open(path, access=draw(one_of(["pread", "mmap"])))
    documents, masks = documents[kept], masks[kept]
    assert data.num_documents == len(documents)
    for k, document in enumerate(documents):
        found = data.document(k)
        assert (found["token"] if found.dtype.names else found).tolist() == document
    tokens, mask = sum(documents, []), sum(masks, [])
    if len(tokens) > 3:
        assert loaded_windows(data, 3) == model_of_windows(tokens, mask, 3)
        assert find_problems(data) == []


def test_files_of_which_only_some_have_labels_open_without_them(tmp_path):
    tokens = pa.array([[1, 2, 3], [4, 5]])
    pq.write_table(pa.table({"input_ids": tokens, "labels": tokens}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"input_ids": tokens}), tmp_path / "b.parquet")
    with pytest.raises(FormatError, match=rf"{tmp_path}/b.parquet: records are .*ignore="):
        millstream.open(tmp_path)
    data = millstream.open(tmp_path, ignore="labels")
    assert data.num_records == 10
    assert f"{tmp_path}/a.parquet" in repr(data)
    with pytest.raises(UsageError, match="no file has a column 'label'; did you mean 'labels'"):
        millstream.open(tmp_path, ignore="label")
