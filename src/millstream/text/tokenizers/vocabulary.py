"""`Vocabulary`, a byte-level BPE, and files of tiktoken ranks.

A file of ranks holds only tokens, one per line, in base64, with their ids; the pair that joins to
the lowest id is merged first. Split pattern and special tokens must come from elsewhere; a
tokenizer.json (`tokenizer_json.py`) holds them too.

Files are untrusted input: everything read is checked.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, MissingDataError
from millstream.reprs import one_line

StoredVocabulary = str | os.PathLike[str] | bytes
"""a path, or the content of a file"""

NUM_BYTES = 256
_MAX_FILE_BYTES = 1 << 28  # the largest in use have 33 MB
_MAX_IDS = (1 << 21) - 1  # the largest vocabularies in use have 2^18
MAX_MERGES = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Vocabulary:
    """A byte-level BPE: all that determines its ids."""

    tokens: tuple[bytes, ...]
    """by id; empty for ids that no text encodes to"""
    merges: NDArray[np.int64] | None
    """left id, right id and new id, by merge rank; None: the new id is the rank"""
    pattern: str
    """the regular expression that splits texts into pieces"""
    specials: Mapping[str, int]
    """tokens that no text encodes to, and their ids"""
    whole_pieces: bool
    """a piece that is a token is encoded as that token, without merging"""
    plain_specials: bool = True
    """False if some special tokens take the white space around them, or only match whole words"""

    @one_line
    def __repr__(self) -> str:
        return f"of {self.vocab_size:,} ids, {len(self.specials):,} special"

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max([len(self.tokens), *(number + 1 for number in self.specials.values())])


def read_tiktoken(stored: StoredVocabulary) -> tuple[bytes, ...]:
    """Return the tokens of a file of tiktoken ranks, by id; empty for unused ids."""
    content, name = content_of(stored)
    by_id: dict[int, bytes] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if line:
            try:
                _enter_line(by_id, line)
            except FormatError as error:
                raise FormatError(f"{name}, line {number}: {error}") from None
    return tokens_by_id(by_id, name)


def _enter_line(by_id: dict[int, bytes], line: bytes) -> None:
    try:
        coded, rank = line.split()
        token = base64.b64decode(coded, validate=True)
    except (ValueError, binascii.Error):
        raise FormatError(
            f"expected a token in base64, a space and an id; found {excerpt(line)}; is this a "
            "file of tiktoken ranks?"
        ) from None
    if not rank.isdigit() or len(rank) > 10:  # parsing a longer number could take forever
        raise FormatError(f"expected an id; found {excerpt(rank)}")
    enter(by_id, int(rank), token)


def to_tiktoken(vocabulary: Vocabulary) -> bytes:
    """Return the content of a file of tiktoken ranks."""
    return b"".join(
        b"%s %d\n" % (base64.b64encode(token), number)
        for number, token in enumerate(vocabulary.tokens)
        if token
    )


def content_of(stored: StoredVocabulary) -> tuple[bytes, str]:
    """Return the content of a file, and a name for errors."""
    if isinstance(stored, bytes):
        return stored, "the vocabulary"
    path = Path(stored)
    if path.exists() and not path.is_file():  # opening a pipe would block
        raise FormatError(f"{path}: not a regular file")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise MissingDataError(f"{path}: no such file") from None
    if len(content) > _MAX_FILE_BYTES:
        raise FormatError(f"{path}: larger than {_MAX_FILE_BYTES:,} bytes; not a vocabulary")
    return content, str(path)


def enter(by_id: dict[int, bytes], number: object, token: bytes) -> None:
    """Add a token under its id; raise if the id is invalid or taken."""
    checked = checked_id(number)
    if checked in by_id:
        raise FormatError(f"its id {checked} is already taken by {excerpt(by_id[checked])}")
    by_id[checked] = token


def checked_id(number: object) -> int:
    """Return a valid id; raise otherwise."""
    if type(number) is not int or not 0 <= number < _MAX_IDS:
        raise FormatError(f"expected an id from 0 to {_MAX_IDS - 1:,}; found {excerpt(number)}")
    return number


def tokens_by_id(by_id: Mapping[int, bytes], name: str) -> tuple[bytes, ...]:
    """Return tokens by id; raise if one occurs twice or a byte has no token."""
    known: dict[bytes, int] = {}
    for number, token in by_id.items():
        if not token:
            raise FormatError(f"{name}: the token with id {number} is empty")
        if token in known:
            raise FormatError(f"{name}: {excerpt(token)} has two ids: {known[token]} and {number}")
        known[token] = number
    missing = [byte for byte in range(NUM_BYTES) if bytes([byte]) not in known]
    if missing:
        raise FormatError(
            f"{name}: {len(missing)} of the 256 bytes have no token, such as {missing[0]:#04x}, so "
            "some texts cannot be encoded"
        )
    return tuple(by_id.get(number, b"") for number in range(max(by_id) + 1))


def excerpt(found: object) -> str:
    """Return the start of a value, for errors."""
    shown = repr(found[:80] if isinstance(found, str | bytes) else found)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
