"""The errors that Millstream raises on purpose, and its warning.

    MillstreamError
    ├── FormatError        (ValueError)         a file contradicts its manifest or its format
    ├── MissingDataError   (FileNotFoundError)  a file or dataset does not exist
    ├── DatasetExistsError (FileExistsError)    writing would replace a finished dataset
    ├── ReadError          (OSError)            the operating system could not read a file
    ├── FetchError         (OSError)            files could not be downloaded
    ├── StateError         (ValueError)         a saved state does not match the loader
    ├── UsageError         (ValueError)         an argument is invalid
    │   └── SplitsError                         the source has several splits; choose one
    └── VerificationError  (AssertionError)     a check found a difference

And one warning:

    WaitingWarning         (UserWarning)        a training loop waits for its loader

Each error is also the built-in one that a caller would expect, so `except FileNotFoundError` works.
Messages say what was found and where, what was expected, and what to do.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.fetching.report import FetchReport


class MillstreamError(Exception):
    """The base class: catch it to catch every error that Millstream raises on purpose."""


class FormatError(MillstreamError, ValueError):
    """A file contradicts its manifest or its format."""


class MissingDataError(MillstreamError, FileNotFoundError):
    """A file or dataset does not exist."""


class DatasetExistsError(MillstreamError, FileExistsError):
    """Writing would replace a finished dataset, or one that another process is writing."""


class ReadError(MillstreamError, OSError):
    """The operating system could not open or read a file; the message names file and offset."""


class FetchError(MillstreamError, OSError):
    """Files could not be downloaded; `report` says which, and describes the others."""

    def __init__(self, message: str, report: "FetchReport | None" = None) -> None:
        super().__init__(message)
        self.report = report


class StateError(MillstreamError, ValueError):
    """A saved state belongs to another dataset, view, order or seed, or is damaged."""


class UsageError(MillstreamError, ValueError):
    """An argument is invalid; the message says which values are valid."""


class SplitsError(UsageError):
    """A source has several splits; `names` lists them if choosing one is enough to open it."""

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class VerificationError(MillstreamError, AssertionError):
    """A check found a difference."""


class WaitingWarning(UserWarning):
    """A training loop waits for its loader more than 1 % of the time; says what to change."""
