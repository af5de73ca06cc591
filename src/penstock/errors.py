"""Every error that Penstock raises on purpose.

    PenstockError
    ├── FormatError        (ValueError)         a file is not what its manifest or its kind says
    ├── MissingDataError   (FileNotFoundError)  a file or a dataset is not there
    ├── DatasetExistsError (FileExistsError)    writing would replace something finished
    ├── ReadError          (OSError)            the operating system failed, with file and offset
    ├── FetchError         (OSError)            files could not be downloaded, and why
    ├── StateError         (ValueError)         a saved position belongs to something else
    ├── UsageError         (ValueError)         an argument that cannot work, and what would
    │   └── SplitsError                         files of several splits, where one is to be chosen
    └── VerificationError  (AssertionError)     a check of exactness found a difference

Each is also the builtin error that a caller would expect, so `except FileNotFoundError` works.
A message says what was found, where, what was expected, and what to do.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.fetching.report import FetchReport


class PenstockError(Exception):
    """The root: catch this to catch everything that Penstock raises on purpose."""


class FormatError(PenstockError, ValueError):
    """A file is not what its manifest, or its kind, says."""


class MissingDataError(PenstockError, FileNotFoundError):
    """A file or a dataset is not there."""


class DatasetExistsError(PenstockError, FileExistsError):
    """Writing would replace something that is finished, or that another process writes."""


class ReadError(PenstockError, OSError):
    """The operating system could not open or read a file; the message has file and offset."""


class FetchError(PenstockError, OSError):
    """Files could not be downloaded; `report` says which, and what became of the others."""

    def __init__(self, message: str, report: "FetchReport | None" = None) -> None:
        super().__init__(message)
        self.report = report


class StateError(PenstockError, ValueError):
    """A saved state belongs to another dataset, view, order or seed."""


class UsageError(PenstockError, ValueError):
    """An argument that cannot work; the message says what would."""


class SplitsError(UsageError):
    """A source holds several splits; `names` are those that can be chosen, if that covers it."""

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class VerificationError(PenstockError, AssertionError):
    """A check of exactness found a difference."""
