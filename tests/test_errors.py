"""What `except` catches: the errors of Millstream are also built-in ones."""

import pytest

import millstream

BUILT_IN = {
    "DatasetExistsError": FileExistsError,
    "FetchError": OSError,
    "FormatError": ValueError,
    "MissingDataError": FileNotFoundError,
    "ReadError": OSError,
    "SplitsError": ValueError,
    "StateError": ValueError,
    "UsageError": ValueError,
    "VerificationError": AssertionError,
}


def test_every_error_is_also_the_built_in_one_that_callers_expect():
    errors = {name: error for name, error in vars(millstream.errors).items() if name in BUILT_IN}
    assert errors.keys() == BUILT_IN.keys()
    for name, error in errors.items():
        assert issubclass(error, millstream.MillstreamError), name
        assert issubclass(error, BUILT_IN[name]), name
    assert issubclass(millstream.SplitsError, millstream.UsageError)
    assert issubclass(millstream.WaitingWarning, UserWarning)


def test_every_error_that_is_exported_is_in_the_table():
    exported = {name for name in millstream.__all__ if name.endswith("Error")}
    assert exported == {*BUILT_IN, "MillstreamError"}


def test_a_missing_dataset_is_a_file_that_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        millstream.open(tmp_path / "nothing")
