"""A hint for a misspelt name."""

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the closest known name as the end of an error message, or "" if none is close.

    >>> did_you_mean("input_id", ["labels", "input_ids"])
    "; did you mean 'input_ids'?"
    >>> did_you_mean("tokens", ["labels", "input_ids"])
    ''
    """
    from difflib import get_close_matches  # 5 ms, which no correct call should pay

    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(str(word).lower(), by_lower, n=1)
    if not close or by_lower[close[0]] == word:
        return ""
    return f"; did you mean {by_lower[close[0]]!r}?"
