"""Encoding documents by caches and merges (`text/tokenizers/encoding.pyx`)."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import FormatError
from millstream.text.splitting.character_classes import character_classes
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.splitting.pieces import split
from millstream.text.tokenizers.encoding import Encoder, max_ids
from millstream.text.tokenizers.token_pieces import TokenPieces
from tests.helpers.merge_tables import BYTES, merged, tables_of

pytestmark = pytest.mark.kernels

TOKENS = [*BYTES, b" t", b"he", b" the", b"in", b"ing"]
TABLES = tables_of(TOKENS)
TABLES.find_pairs()
GPT2 = PATTERNS["gpt2"].code
SHARED = Encoder(TABLES, TokenPieces(TABLES), GPT2, character_classes(), 10)


def encode(encoder, texts, *, before=b"", after=b""):
    """The ids of each text; others lie around them in memory."""
    data = np.frombuffer(before + b"".join(texts) + after, np.uint8)
    offsets = len(before) + np.cumsum([0, *map(len, texts)])
    ids = np.full(max_ids(sum(map(len, texts))), 77, np.uint32)
    id_offsets = np.full(len(offsets), -1)
    count = encoder.encode(data, offsets, ids, id_offsets)
    assert id_offsets[-1] == count
    return [ids[a:b].tolist() for a, b in pairwise(id_offsets)]


def model(text):
    data = np.frombuffer(text, np.uint8)
    ends = np.empty(len(data), np.int64)
    count = split(data, GPT2, character_classes(), ends)
    pieces = [text[a:b] for a, b in pairwise([0, *ends[:count].tolist()])]
    return [number for piece in pieces for number in merged(TABLES, piece)]


@pytest.mark.slow
@given(
    texts=st.lists(
        st.text(st.sampled_from("hint .") | st.characters(codec="utf-8"), max_size=90), max_size=9
    ),
    after=st.binary(max_size=20),
)
def test_ids_are_those_of_the_pieces_alone_whatever_is_remembered(texts, after):
    encoded = [text.encode() for text in texts]
    expected = [model(text) for text in encoded]
    for _ in range(3):  # merged, found in the second place, found in the first
        assert encode(SHARED, encoded, before=b"\xff", after=after) == expected


@pytest.mark.parametrize("size", [1, 7, 8, 9, 14, 15, 16, 17, 62, 63, 64, 65, 96, 97, 20_000])
def test_pieces_of_every_length_are_remembered(size):
    encoder = Encoder(TABLES, TokenPieces(TABLES), GPT2, character_classes(), 10)
    text = (b"thing" * size)[:size]
    for after in (b"", bytes(100)):
        for _ in range(3):
            assert encode(encoder, [text, text], after=after) == [model(text)] * 2


def test_pieces_that_differ_in_zero_bytes_are_different():
    texts = [b"\0" * size for size in range(1, 20)]
    assert encode(
        Encoder(TABLES, TokenPieces(TABLES), GPT2, character_classes(), 10), texts, after=bytes(20)
    ) == [[0] * size for size in range(1, 20)]


def test_there_may_be_no_text():
    assert encode(SHARED, []) == []
    assert encode(SHARED, [b""]) == [[]]
    assert encode(SHARED, [b"", b"in", b""]) == [[], [259], []]


def test_a_piece_that_is_hardly_text_is_refused_and_the_next_is_encoded():
    encoder = Encoder(TABLES, TokenPieces(TABLES), GPT2, character_classes(), 10)
    with pytest.raises(FormatError, match="a piece of 4,194,305 bytes; the limit is"):
        encode(encoder, [b"x" * ((1 << 22) + 1)])
    assert encode(encoder, [b" the"]) == [[258]]


def test_documents_outside_of_the_text_are_refused():
    data, ids = np.frombuffer(b"four", np.uint8), np.empty(max_ids(4), np.uint32)
    for offsets in ([0, 5], [-1, 4], [0, 3, 2, 4], []):
        with pytest.raises(ValueError, match=r"offsets|document"):
            SHARED.encode(data, np.array(offsets, np.int64), ids, np.empty(len(offsets), np.int64))
    with pytest.raises(ValueError, match="room for 6 ids"):
        SHARED.encode(data, np.array([0, 4]), ids[:6], np.empty(2, np.int64))
    with pytest.raises(ValueError, match="offset"):
        SHARED.encode(data, np.array([0, 4]), ids, np.empty(1, np.int64))
