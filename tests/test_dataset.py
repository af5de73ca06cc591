"""`Dataset`: the methods that make views take the views' own options."""

import inspect
from dataclasses import fields

import numpy as np
import pytest

import millstream

METHODS = {
    "windows": millstream.Windows,
    "documents": millstream.Documents,
    "packed": millstream.Packed,
}


@pytest.fixture
def data(tmp_path):
    with millstream.Writer(tmp_path / "data", vocab_size=100) as writer:
        for start in range(0, 50, 10):
            writer.append(np.arange(start, start + 10))
    return millstream.open(tmp_path / "data")


@pytest.mark.parametrize("method", METHODS)
def test_a_method_shows_every_option_of_its_view(data, method):
    shown = inspect.signature(getattr(data, method))
    options = [
        field.name
        for field in fields(METHODS[method])
        if field.name != "dataset" and field.name[0] != "_"
    ]
    assert list(shown.parameters) == options
    assert shown.return_annotation is METHODS[method]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_makes_its_view_of_the_dataset(data, method):
    view = getattr(data, method)(8, extras="position_ids")
    assert type(view) is METHODS[method]
    assert view.dataset is data
    assert view.seq_len == 8
    assert "position_ids" in view.extras


@pytest.mark.parametrize(
    ("method", "args", "options", "message"),
    [
        ("windows", [4], {"overlapp": False}, "'overlapp'; did you mean 'overlap'"),
        ("packed", [4], {"polic": "best_fit"}, "'polic'; did you mean 'policy'"),
        ("documents", [], {"max_len": 4}, "no option 'max_len'; it takes seq_len, extras"),
        ("windows", [], {}, "missing a required argument: 'seq_len'"),
        ("windows", [4, True], {}, "too many positional arguments; it takes seq_len, extras"),
    ],
)
def test_options_that_a_view_does_not_have_are_refused(data, method, args, options, message):
    with pytest.raises(TypeError, match=message):
        getattr(data, method)(*args, **options)
