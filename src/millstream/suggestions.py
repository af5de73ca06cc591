"""Suggestions for misspelled names."""

import os
from collections.abc import Iterable
from itertools import islice

_MOST_NAMES = 10_000
"""how many names of a directory a path is compared with"""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the closest known name as the end of a message, or "" if none is close.

    >>> did_you_mean("input_id", ["labels", "input_ids"])
    "; did you mean 'input_ids'?"
    >>> did_you_mean("tokens", ["labels", "input_ids"])
    ''
    """
    name = closest(word, known)
    return "" if name is None else f"; did you mean {name!r}?"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the closest known name, or None if none is close; case does not matter."""
    from difflib import get_close_matches  # 5 ms, which no correct call should pay

    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(str(word).lower(), by_lower, n=1)
    return by_lower[close[0]] if close and by_lower[close[0]] != word else None


def did_you_mean_path(path: str | os.PathLike[str]) -> str:
    """Suggest a name from the directory of a path that does not exist."""
    directory, name = os.path.split(os.path.abspath(path))  # noqa: PTH100
    try:
        with os.scandir(directory) as entries:
            return did_you_mean(name, [entry.name for entry in islice(entries, _MOST_NAMES)])
    except OSError:
        return ""
