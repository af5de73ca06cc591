"""Annotations of documents: metadata as JSON, and spans of characters as spans of tokens."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.formats.json_values import encode
from millstream.text.batch import TextSpan
from millstream.text.tokenizers.tokenizer import Bytes, Offsets

SpanUnit = Literal["chars", "tokens"]
Blobs = list[tuple[int, int, bytes]]


class WrongSpan(Exception):  # noqa: N818 (it never leaves this package)
    """Why spans do not fit their document."""


class TokenSpans(NamedTuple):
    """The spans of a document, in tokens."""

    spans: list[TextSpan]
    num_lost: int
    """spans that got no token"""


def check_spans(spans: Sequence[TextSpan], length: int, unit: str) -> list[TextSpan]:
    """The spans of a text of `length` units, sorted and free of overlaps; raises otherwise."""
    ordered = sorted(spans, key=lambda span: span[:2])
    end = 0
    for start, stop, _ in ordered:
        if not 0 <= start < stop <= length:
            what = "is empty" if start == stop else f"is not within the {length:,} {unit}"
            raise WrongSpan(f"span from {start:,} to {stop:,} {what}")
        if start < end:
            raise WrongSpan(f"span from {start:,} to {stop:,} overlaps the one before it")
        end = stop
    return ordered


def to_tokens(text: Bytes, spans: Sequence[TextSpan], ends: Offsets) -> TokenSpans:
    """Spans of characters as spans of tokens; token k ends at byte `ends[k]`.

    A token goes to the span that covers most of its bytes; ties go to the first. So a span is lost
    only if other spans take all tokens that it touches.
    """
    first_bytes = np.flatnonzero((text & 0xC0) != 0x80)
    ordered = check_spans(spans, len(first_bytes), "characters")
    if not ordered or not len(ends):
        return TokenSpans([], len(ordered))
    edges = np.append(first_bytes, len(text))
    starts = edges[np.array([span[0] for span in ordered])]
    stops = edges[np.array([span[1] for span in ordered])]
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    first = np.searchsorted(ends, starts, "right")
    last = np.searchsorted(begins, stops, "left") - 1
    owners = _owners_of_shared(begins, ends, starts, stops, first, last)
    found, num_lost = list[TextSpan](), 0
    for k, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        begin = low if owners.get(low) == k else low + 1
        # A character may be several tokens of which the first has all its bytes.
        end = int(np.searchsorted(ends, ends[high], "right")) if owners.get(high) == k else high
        if begin < end:
            found.append((begin, end, ordered[k][2]))
        else:
            num_lost += 1
    return TokenSpans(found, num_lost)


def _owners_of_shared(
    begins: Offsets,
    ends: Offsets,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
) -> dict[int, int]:
    """Which span each token at the edge of a span goes to."""
    owners, most = dict[int, int](), dict[int, int]()
    for k in range(len(starts)):
        for token in {int(first[k]), int(last[k])} - {len(ends)}:
            begin, end = max(begins[token], starts[k]), min(ends[token], stops[k])
            if end - begin > most.get(token, 0):
                owners[token], most[token] = k, int(end - begin)
    return owners


def lay_over(
    spans: Sequence[TextSpan], length: int, document: dict[str, Any] | None, shift: int
) -> Blobs:
    """The metadata of a document's `length` records, as encoded spans of records.

    Spans are moved by `shift`, the number of marks before the text. If the document has metadata of
    its own, records outside of spans carry that alone, and records inside carry both.
    """
    whole = None if document is None else encode(document)
    covered, end = Blobs(), 0
    for start, stop, payload in spans:
        if whole is not None and end < start + shift:
            covered.append((end, start + shift, whole))
        end = stop + shift
        covered.append((start + shift, end, encode({**(document or {}), "span": payload})))
    if whole is not None and end < length:
        covered.append((end, length, whole))
    return covered
