"""Changes to the texts of errors that pass."""

import contextlib
from collections.abc import Callable, Iterator

from millstream.errors import MillstreamError


@contextlib.contextmanager
def rewording_errors(reword: Callable[[str], str]) -> Iterator[None]:
    """Change the texts of our own errors."""
    try:
        yield
    except MillstreamError as error:
        error.args = tuple(reword(each) if isinstance(each, str) else each for each in error.args)
        if isinstance(error, OSError) and isinstance(error.strerror, str):
            error.strerror = reword(error.strerror)
        raise


def append(error: BaseException, sentence: str) -> None:
    """Add to the text of any error."""
    if isinstance(error, OSError) and error.strerror is not None:
        error.strerror += sentence
    else:
        error.args = (f"{error}{sentence}",)
