"""Vocabularies of byte-level BPE, and files of tiktoken ranks.

Such a file holds the tokens alone, one a line, in base64, with their ids; where two neighbours join
to a token, the one of the lowest id is merged first. The split pattern and the special tokens must
come from elsewhere; a tokenizer.json (`tokenizer_json.py`) says everything.

What is read is checked: a file may come from anybody.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError, MissingDataError
from penstock.reprs import one_line

StoredVocabulary = str | os.PathLike[str] | bytes
"""a path, or what a file holds"""

NUM_BYTES = 256
_MAX_FILE_BYTES = 1 << 28  # the largest in use have 33 MB
_MAX_IDS = (1 << 21) - 1  # the largest vocabularies in use have 2^18
MAX_MERGES = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Vocabulary:
    """A byte-level BPE: all that its ids depend on."""

    tokens: tuple[bytes, ...]
    """by id; empty where no text makes that id"""
    merges: NDArray[np.int64] | None
    """left id, right id and new id, first merge first; None: the lowest id that two join to"""
    pattern: str
    """the regular expression that texts are split by before anything is merged"""
    specials: Mapping[str, int]
    """tokens that no text makes, and their ids"""
    whole_pieces: bool
    """a piece that is a token is not merged but taken as it is"""

    @one_line
    def __repr__(self) -> str:
        return f"of {self.vocab_size:,} ids, {len(self.specials):,} special"

    @property
    def vocab_size(self) -> int:
        """All ids are below it."""
        return max([len(self.tokens), *(number + 1 for number in self.specials.values())])


def read_tiktoken(stored: StoredVocabulary) -> tuple[bytes, ...]:
    """The tokens of a file of tiktoken ranks, by id; empty where an id has none."""
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
            f"{excerpt(line)} is not a token in base64, a space and its id; is this a file of "
            "tiktoken ranks?"
        ) from None
    if not rank.isdigit() or len(rank) > 10:  # a number of any length takes any time to read
        raise FormatError(f"{excerpt(rank)} is not an id")
    enter(by_id, int(rank), token)


def to_tiktoken(vocabulary: Vocabulary) -> bytes:
    """What a file of tiktoken ranks holds."""
    return b"".join(
        b"%s %d\n" % (base64.b64encode(token), number)
        for number, token in enumerate(vocabulary.tokens)
        if token
    )


def content_of(stored: StoredVocabulary) -> tuple[bytes, str]:
    """What a file holds, and what to call it in errors."""
    if isinstance(stored, bytes):
        return stored, "the vocabulary"
    path = Path(stored)
    if path.exists() and not path.is_file():  # to open a pipe would wait for somebody to write
        raise FormatError(f"{path}: not a regular file, so no vocabulary")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise MissingDataError(f"{path}: there is no such vocabulary") from None
    if len(content) > _MAX_FILE_BYTES:
        raise FormatError(f"{path}: more than {_MAX_FILE_BYTES:,} bytes are no vocabulary")
    return content, str(path)


def enter(by_id: dict[int, bytes], number: object, token: bytes) -> None:
    """Note a token under an id that is one, and that no other has."""
    checked = checked_id(number)
    if checked in by_id:
        raise FormatError(f"its id {checked} is also that of {excerpt(by_id[checked])}")
    by_id[checked] = token


def checked_id(number: object) -> int:
    """An id that can be one."""
    if type(number) is not int or not 0 <= number < _MAX_IDS:
        raise FormatError(f"the id {excerpt(number)} is not from 0 to {_MAX_IDS - 1:,}")
    return number


def tokens_by_id(by_id: Mapping[int, bytes], name: str) -> tuple[bytes, ...]:
    """The tokens in their places; all bytes must be there, and no token twice."""
    known: dict[bytes, int] = {}
    for number, token in by_id.items():
        if not token:
            raise FormatError(f"{name}: the token of id {number} is empty")
        if token in known:
            raise FormatError(
                f"{name}: {excerpt(token)} is the token of id {known[token]} and of id {number}"
            )
        known[token] = number
    missing = [byte for byte in range(NUM_BYTES) if bytes([byte]) not in known]
    if missing:
        raise FormatError(
            f"{name}: {len(missing)} of the 256 bytes are not tokens, such as {missing[0]:#04x}: "
            "there are texts that it cannot encode"
        )
    return tuple(by_id.get(number, b"") for number in range(max(by_id) + 1))


def excerpt(found: object) -> str:
    """The beginning of a value, for errors."""
    shown = repr(found[:80] if isinstance(found, str | bytes) else found)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
