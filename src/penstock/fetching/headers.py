"""What the headers of an answer say about its body; headers that contradict each other are refused.

Python's http.client takes the first `Content-Length` of several, and ignores one that is negative
or no number.
"""

import re
from email.message import Message

_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


class RefusedError(Exception):
    """Asking again would not help."""

    def __init__(self, reason: str) -> None:
        super().__init__(printable(reason))


class RangeError(Exception):
    """The server has no such range, or sends another."""


def printable(text: str) -> str:
    """Escape what a server must not send to a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def only_value(headers: Message, name: str) -> str | None:
    """The value of a header that has one; it may come several times if all are equal."""
    values = {str(value).strip() for value in headers.get_all(name, ())}
    return _only(name, values)


def body_length(headers: Message) -> int | None:
    """The bytes of the body, or None where chunks or the end of the connection delimit it."""
    lines = headers.get_all("Content-Length", ())
    # RFC 9110, 8.6: equal values may also arrive joined by commas.
    value = _only("Content-Length", {v.strip() for line in lines for v in str(line).split(",")})
    coding = only_value(headers, "Transfer-Encoding")
    if coding is not None and coding.lower() != "chunked":
        raise RefusedError(f"the server sends it with Transfer-Encoding {coding!r:.60}")
    if value is None:
        return None
    if not _NUMBER.fullmatch(value):
        raise RefusedError(f"the server says Content-Length: {value!r:.60}, which is not a length")
    if coding is not None:
        raise RefusedError(
            "the server gives both a Content-Length and a Transfer-Encoding, which exclude each "
            "other; something between here and the server may be tampering with it"
        )
    return int(value)


def body_range(headers: Message, asked_from: int) -> int:
    """The length of the whole file, of which the body is the range from `asked_from` on."""
    value = only_value(headers, "Content-Range") or ""
    found, length = _RANGE.fullmatch(value), body_length(headers)
    if not found:
        raise RangeError(f"the server sends the range {value!r:.60}")
    start, last, total = map(int, found.groups())
    if start != asked_from or not start <= last < total:
        raise RangeError(f"the server sends the range {value!r}, not from byte {asked_from:,} on")
    if length not in (None, last + 1 - start):
        raise RangeError(f"the server sends {length:,} bytes as the range {value!r}")
    return total


def _only(name: str, values: set[str]) -> str | None:
    if len(values) > 1:
        found = " and ".join(f"{value!r:.60}" for value in sorted(values)[:2])
        raise RefusedError(f"the server contradicts itself: {name} is {found}")
    return values.pop() if values else None
