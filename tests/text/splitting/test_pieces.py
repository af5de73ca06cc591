"""Splitting texts into pieces (`text/splitting/pieces.pyx`)."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.text.splitting.character_classes import character_classes
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.splitting.pieces import PatternFamily, last_certain_end, pattern_code, split

pytestmark = pytest.mark.kernels

regex = pytest.importorskip("regex")

TEXTS = st.text(st.sampled_from("aZsé中ʰǅ09٣ \t\n\r\u3000'/.,\u0301\U0001f600") | st.characters())


def array(text):
    return np.frombuffer(text if isinstance(text, bytes) else text.encode(), np.uint8)


def pieces(text, code):
    data = array(text)
    ends = np.empty(len(data), np.int64)
    count = split(data, code, character_classes(), ends)
    return [data[a:b].tobytes() for a, b in pairwise([0, *ends[:count].tolist()])]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", ["It", "'s", " 2024", ",", "   ", " ok", "!?", "\n"]),
        ("gpt4", ["It", "'s", " ", "202", "4", ",", "   ", " ok", "!?\n"]),
        ("qwen2", ["It", "'s", " ", "2", "0", "2", "4", ",", "   ", " ok", "!?\n"]),
        ("o200k", ["It's", " ", "202", "4", ",", "   ", " ok", "!?\n"]),
    ],
)
def test_each_pattern_has_its_pieces(name, expected):
    text = "It's 2024,    ok!?\n"
    assert pieces(text, PATTERNS[name].code) == [piece.encode() for piece in expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
@given(text=TEXTS)
def test_pieces_are_those_of_the_regular_expression(name, text):
    text = text.encode(errors="ignore").decode()
    known = all(is_known_to_both(character) for character in text)
    found = pieces(text, PATTERNS[name].code)
    assert b"".join(found).decode() == text
    if known:
        assert found == [m.group().encode() for m in regex.finditer(PATTERNS[name].regex, text)]


def is_known_to_both(character):
    """Whether `regex` and our table, which are of different Unicode versions, agree on it."""
    ours = int(character_classes()[ord(character)])
    return all(
        bool(ours & bit) == bool(regex.fullmatch(of, character))
        for of, bit in [(r"\p{L}", 1), (r"\p{N}", 2), (r"\s", 4)]
    )


@pytest.mark.parametrize("name", PATTERNS)
@given(data=st.binary(max_size=40))
def test_bytes_that_are_not_text_are_split_to_the_last(name, data):
    assert b"".join(pieces(data, PATTERNS[name].code)) == data


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
@given(text=TEXTS, more=TEXTS)
def test_a_certain_end_is_one_whatever_follows(name, text, more):
    code = PATTERNS[name].code
    text, more = text.encode(errors="ignore"), more.encode(errors="ignore")
    cut = last_certain_end(array(text), code, character_classes())
    assert pieces(text[:cut], code) + pieces(text[cut:] + more, code) == pieces(text + more, code)


def test_words_longer_than_a_machine_word_end_where_their_letters_end():
    for size in range(1, 40):
        for after in ("", ".", "é", "9", " "):
            text = f" {'x' * size}{after}"
            end = size + (2 if after == "é" else 1)
            for name in ("gpt2", "gpt4", "o200k"):
                letters = text[:end].encode()
                assert pieces(text, PATTERNS[name].code)[0] == letters


def test_wrong_arguments_are_refused():
    data, ends = array("two words"), np.empty(9, np.int64)
    with pytest.raises(ValueError, match="invalid pattern code"):
        split(data, 3, character_classes(), ends)
    with pytest.raises(ValueError, match="room for 8 pieces"):
        split(data, 0, character_classes(), ends[:8])
    with pytest.raises(ValueError, match="code points, expected 1114112"):
        last_certain_end(data, 0, character_classes()[:-1])
    with pytest.raises(ValueError, match="digits"):
        pattern_code(PatternFamily.GPT4, 4, False)


def test_codes_are_what_fingerprints_hold():
    assert {name: pattern.code for name, pattern in PATTERNS.items()} == {
        "gpt2": 0,
        "gpt4": 13,
        "cl100k": 29,
        "nanochat": 9,
        "qwen2": 5,
        "o200k": 14,
    }
