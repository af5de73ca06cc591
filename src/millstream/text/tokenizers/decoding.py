"""Decodes ids to text, for tokenizers whose tokens are bytes."""

import operator
from collections.abc import Iterable, Mapping, Sequence

from millstream.errors import UsageError


def decode_ids(
    ids: Iterable[int], tokens: Sequence[bytes], specials: Mapping[str, int], name: str
) -> str:
    """Return the text of ids, special tokens by name.

    >>> decode_ids([1, 0, 2], (b"b", b"a"), {"<|end|>": 2}, "tiny")
    'ab<|end|>'
    """
    names = {number: special.encode() for special, number in specials.items()}
    pieces = []
    for number in map(operator.index, ids):
        piece = names.get(number)
        if piece is None:
            if not 0 <= number < len(tokens):
                raise unknown_id(number, max(len(tokens) - 1, *names, -1) + 1, name)
            piece = tokens[number]
        pieces.append(piece)
    return b"".join(pieces).decode(errors="replace")


def unknown_id(number: int, vocab_size: int, name: str) -> UsageError:
    """Return the error for an id outside the vocabulary."""
    return UsageError(
        f"{name}: no token has the id {number:,}; its ids are 0 to {vocab_size - 1:,}; these ids "
        "were made by another tokenizer"
    )
