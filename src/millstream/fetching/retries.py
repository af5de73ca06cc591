"""Retries: how long to wait after a failed attempt."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from millstream.system.backoff import jittered

_LONGEST_BACKOFF_S = 60.0


def next_wait_s(failed: int, backoff_s: float, asked_s: float) -> float:
    """The wait after `failed` attempts in a row: doubled by each, and at least what is asked."""
    wait_s = min(_LONGEST_BACKOFF_S, backoff_s * 2 ** (failed - 1))
    return max(asked_s, jittered(wait_s))


def asked_wait_s(retry_after: str) -> float:
    """The wait that `Retry-After` asks for, in seconds or until a date; 0 if it is neither."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return 0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0, (date - datetime.now(UTC)).total_seconds())
