"""Record types of any fields: written, read by every view, and in manifests."""

import json
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import UsageError
from millstream.formats.record_types import fields_from_json, fields_to_json
from millstream.verifying import find_problems
from tests.helpers.numbered_documents import MEMORY

scalars = st.sampled_from(
    ["|u1", "|b1", "<i2", "<u4", "<i8", "<f2", "<f4", "<c8", "|S3", "<U2", "<M8[s]", "<m8[ns]"]
)
shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)


def structs(kinds):
    """Structs of one to three fields, some of which are arrays."""
    return st.lists(st.tuples(kinds, shapes), min_size=1, max_size=3).map(
        lambda fields: np.dtype(
            [(f"f{number}", kind, shape) for number, (kind, shape) in enumerate(fields)]
        )
    )


nested = st.recursive(scalars, structs, max_leaves=6)


def random_values(dtype, count, generator):
    """Values of any type that are equal to themselves, from random bytes that fit it."""
    values = np.zeros(count, dtype)
    _fill(values, generator)
    return values


def _fill(values, generator):
    if values.dtype.names:
        for name in values.dtype.names:
            _fill(values[name], generator)
    elif values.dtype.kind == "U":
        values[...] = generator.choice(["", "a", "éx"], values.shape)
    else:
        values[...] = generator.integers(0, 2 if values.dtype.kind == "b" else 99, values.shape)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.lists(nested, min_size=1, max_size=3), st.integers(0, 99), st.integers(1, 500))
def test_any_nested_type_is_written_and_read_as_it_was(kinds, seed, shard_bytes):
    fields = np.dtype([("token", "<u2"), *((f"x{k}", kind) for k, kind in enumerate(kinds))])
    assert fields_from_json(json.loads(json.dumps(fields_to_json(fields)))) == fields
    generator = np.random.default_rng(seed)
    records = random_values(fields, 40, generator)
    records["token"] = np.arange(1, 41)
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        path = f"{root}/data"
        with millstream.Writer(path, fields=fields, shard_bytes=shard_bytes) as writer:
            for number, document in enumerate(np.split(records, [0, 7, 20])):
                by_name = {name: document[name] for name in fields.names}
                writer.append(document if number % 2 else by_name)
        data = millstream.open(path)
        assert data.fields == fields
        assert find_problems(data) == []
        is_nested = any(fields[name].base.names for name in fields.names)
        manifest = json.loads((data.shards[0].directory / "millstream.json").read_text())
        assert manifest["version"] == (2 if is_nested else 1)
        assert data.records(0, 40).tobytes() == records.tobytes()
        padded = np.concatenate([np.zeros(1, fields), records])
        views = [data.windows(6), data.documents(9), data.packed(9, extras="cu_seqlens")]
        loader = millstream.Loader(data.windows(6), 3, shuffle=False)
        for batch in [view[:] for view in views] + list(loader):
            shown = padded[np.asarray(batch["input_ids"])]
            for name in fields.names[1:]:
                found = np.asarray(batch[name])
                assert found.dtype == fields[name].base
                assert found.tobytes() == np.ascontiguousarray(shown[name]).tobytes()


BOX = [("token", "<u4"), ("box", [("x", "<f4"), ("y", "<u2", (2,))])]


def test_fields_of_structs_are_matched_by_name(tmp_path):
    box = np.zeros(2, [("y", "<i8", (2,)), ("x", "<f8")])
    box["x"], box["y"] = [0.5, 1.5], [[1, 2], [3, 4]]
    with millstream.Writer(tmp_path, fields=BOX) as writer:
        writer.append({"token": [1, 2], "box": box})
    # A user's data outlive our release: change this form only with a new format version.
    manifest = json.loads((tmp_path / "millstream.json").read_text())
    assert manifest["fields"] == [["token", "<u4"], ["box", [["x", "<f4"], ["y", "<u2", [2]]]]]
    assert manifest["version"] == 2
    content = (tmp_path / "00000.stream").read_bytes()
    assert content.hex() == "010000000000003f01000200020000000000c03f03000400"
    stored = millstream.open(tmp_path).records(0, 2)["box"]
    assert (stored["x"].tolist(), stored["y"].tolist()) == ([0.5, 1.5], [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (np.zeros(2, "<f4"), "field 'box' has type float32, expected structs; pass numpy"),
        (np.zeros(2, [("x", "<f4")]), r"field 'box': has fields \['x'\], expected \['x', 'y'\]"),
        (np.zeros(2, [("x", "<f4"), ("y", "<u2")]), r"'y' has shape \(\), expected \(2,\)"),
        (np.ones(2, [("x", "<f4"), ("y", "<f4", (2,))]), "'y': float32 cannot be stored as"),
        (np.full(2, -1, [("x", "<f4"), ("y", "<i4", (2,))]), "'y': -1 is outside the range"),
    ],
    ids=["bare", "missing", "shape", "type", "range"],
)
def test_values_that_do_not_fit_a_struct_are_refused(tmp_path, box, message):
    with millstream.Writer(tmp_path, fields=BOX) as writer:
        with pytest.raises(UsageError, match=message):
            writer.append({"token": [1, 2], "box": box})
        writer.append({"token": [], "box": np.zeros(0, BOX[1][1])})


def test_structs_survive_conversion(tmp_path):
    records = random_values(np.dtype(BOX), 30, np.random.default_rng(0))
    with millstream.Writer(tmp_path / "data", fields=BOX) as writer:
        writer.append(records)
    data = millstream.open(tmp_path / "data")
    millstream.convert(data, tmp_path / "out", to="millstream")
    copied = millstream.open(tmp_path / "out")
    assert copied.records(0, 30).tobytes() == records.tobytes()
    report = millstream.convert(data, tmp_path / "flat", to="flat")
    assert any("box" in what for what in report.lost)
