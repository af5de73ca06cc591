"""What the headers of a response say about its body; contradicting headers are refused.

Python's http.client takes the first of several `Content-Length` headers, and ignores one that is
negative or not a number.
"""

import re
from email.message import Message

_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


class RefusedError(Exception):
    """The file cannot be fetched; trying again would not help."""

    def __init__(self, reason: str) -> None:
        super().__init__(printable(reason))


class RangeError(Exception):
    """The server has no such range, or sent another one."""


def printable(text: str) -> str:
    """Escape control characters, which a server must not send to a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def only_value(headers: Message, name: str) -> str | None:
    """Return the value of a header, which may occur several times if all are equal."""
    values = {str(value).strip() for value in headers.get_all(name, ())}
    return _only(name, values)


def body_length(headers: Message) -> int | None:
    """Return the size of the body; None if chunks or the end of the connection delimit it."""
    lines = headers.get_all("Content-Length", ())
    # RFC 9110, 8.6: equal values may also arrive joined by commas.
    value = _only("Content-Length", {v.strip() for line in lines for v in str(line).split(",")})
    coding = only_value(headers, "Transfer-Encoding")
    if coding is not None and coding.lower() != "chunked":
        raise RefusedError(f"the server uses an unknown Transfer-Encoding, {coding!r:.60}")
    if value is None:
        return None
    if not _NUMBER.fullmatch(value):
        raise RefusedError(f"the server sent an invalid Content-Length, {value!r:.60}")
    if coding is not None:
        raise RefusedError(
            "the server sent both Content-Length and Transfer-Encoding, which exclude each other; "
            "a proxy may be tampering with the response"
        )
    return int(value)


def body_range(headers: Message, asked_from: int) -> int:
    """Return the size of the whole file, of which the body is the range from `asked_from` on."""
    value = only_value(headers, "Content-Range") or ""
    found, length = _RANGE.fullmatch(value), body_length(headers)
    if not found:
        raise RangeError(f"the server sent an invalid range, {value!r:.60}")
    start, last, total = map(int, found.groups())
    if start != asked_from or not start <= last < total:
        raise RangeError(f"the server sent the range {value!r}, not from byte {asked_from:,} on")
    if length not in (None, last + 1 - start):
        raise RangeError(f"the server sent {length:,} bytes as the range {value!r}")
    return total


def _only(name: str, values: set[str]) -> str | None:
    if len(values) > 1:
        found = " and ".join(f"{value!r:.60}" for value in sorted(values)[:2])
        raise RefusedError(f"the server sent contradicting headers: {name} is {found}")
    return values.pop() if values else None
