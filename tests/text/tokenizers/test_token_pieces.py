"""Pieces that are one token (`text/tokenizers/token_pieces.pyx`), as the encoder uses them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.text.splitting.character_classes import character_classes
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.tokenizers.encoding import Encoder, max_ids
from millstream.text.tokenizers.token_pieces import TokenPieces
from tests.helpers.merge_tables import BYTES, tables_of

pytestmark = pytest.mark.kernels

GPT2 = PATTERNS["gpt2"].code


def ids_of(encoder, text):
    data = np.frombuffer(text, np.uint8)
    ids, ends = np.zeros(max_ids(len(text)), np.uint32), np.zeros(2, np.int64)
    return ids[: encoder.encode(data, np.array([0, len(text)]), ids, ends)].tolist()


# Those of more than 15 bytes are not in the table, and those that no pairs make are in it only if
# whole pieces are taken.
LETTERS = st.text("abc", min_size=2, max_size=17).map(str.encode)


@given(st.lists(LETTERS, min_size=1, max_size=60, unique=True), st.booleans())
def test_a_word_has_the_ids_that_merging_gives_it(words, takes_whole_pieces):
    tables = tables_of([*BYTES, *words])
    tables.add_pairs(
        np.array([[97, 97], [97, 98], [98, 99]]), np.array([256, 257, 258]) % (256 + len(words))
    )
    tables.index_bytes()
    if takes_whole_pieces:
        tables.take_whole_pieces()
    encoder = Encoder(tables, TokenPieces(tables), GPT2, character_classes(), 10)
    for word in [*words, *words]:  # then from the cache
        # What follows lets the word be looked up: 16 bytes are read at a time.
        expected = tables.merge(np.frombuffer(word, np.uint8)).tolist()
        assert ids_of(encoder, word + b"\n" * 20)[: len(expected)] == expected
        assert ids_of(encoder, word) == expected


def test_tokens_that_share_a_set_are_all_found():
    words = [f"{number:05}".encode() for number in range(30_000)]
    tables = tables_of([*BYTES, *words])
    tables.take_whole_pieces()
    encoder = Encoder(tables, TokenPieces(tables), GPT2, character_classes(), 10)
    text = b"".join(b"+" + word for word in words) + b"\n" * 20
    found = ids_of(encoder, text)[: 2 * len(words)]
    assert found[1::2] == list(range(256, 256 + len(words)))


def test_pairs_cannot_be_added_once_bytes_are_indexed():
    tables = tables_of([*BYTES, b"ab"])
    tables.index_bytes()
    with pytest.raises(ValueError, match="indexed"):
        tables.add_pairs(np.array([[97, 98]]), np.array([256]))
