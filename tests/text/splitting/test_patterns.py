"""Split patterns give the pieces and character classes of the real engines."""

import itertools

import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import example, given, settings

from millstream.text.splitting.character_classes import CLASSES, character_classes
from millstream.text.splitting.patterns import PATTERNS, find_pattern
from millstream.text.splitting.pieces import last_certain_end, split
from millstream.text.tokenizers.fast_tokenizer import FastTokenizer
from millstream.text.tokenizers.tokenizer_json import read_tokenizer_json
from tests.helpers.vocabularies import (
    TEXTS,
    gpt2_json,
    some_text,
    vocabulary,
)

EVERY_CHARACTER = "".join(chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000)


def pieces(text, code):
    data = np.frombuffer(text.encode(), np.uint8)
    ends = np.empty(len(data), np.int64)
    ends = [0, *ends[: split(data, code, character_classes(), ends)].tolist()]
    return [data[a:b].tobytes().decode() for a, b in itertools.pairwise(ends)]


@pytest.mark.slow
@pytest.mark.parametrize("regex", CLASSES)
def test_characters_have_the_classes_that_both_libraries_give_them(regex):
    bytes_alone = {bytes([i]): i for i in range(256)}
    matched = tiktoken.Encoding("x", pat_str=regex, mergeable_ranks=bytes_alone, special_tokens={})
    by_tiktoken = bytes(matched.encode_ordinary(EVERY_CHARACTER)).decode()
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(regex), "removed", invert=True)
    by_tokenizers = "".join(piece for piece, _ in split.pre_tokenize_str(EVERY_CHARACTER))
    ours = character_classes()[np.frombuffer(EVERY_CHARACTER.encode("utf-32-le"), np.uint32)]
    expected = "".join(
        character
        for character, kind in zip(EVERY_CHARACTER, ours.tolist(), strict=True)
        if kind & CLASSES[regex]
    )
    assert by_tiktoken == expected
    assert by_tokenizers == expected


# The library that this asks takes {1,3}+ for one or more times {1,3}.
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*PATTERNS} - {"cl100k"}))
@settings(max_examples=400, deadline=None)
@given(text=TEXTS)
@example(text="don't DON'T '\u017f we'll I'Ve x'R  \n\n y   \r\n z1234567  ")
@example(text="\u0301A \u0301a ʰA中A aBCd//\n/ 'S's")
def test_pieces_are_those_of_the_regular_expression(name, text):
    pattern = PATTERNS[name]
    reference = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern.regex), "isolated")
    assert pieces(text, pattern.code) == [piece for piece, _ in reference.pre_tokenize_str(text)]


@pytest.mark.parametrize("text", ["中" + "A" * 20, "x \u0301" + "É" * 20, "ʰAAA日AAAAAAAAAAA"])
def test_no_cut_is_made_before_capitals_that_may_belong_to_the_word(text):
    code = PATTERNS["o200k"].code
    start = np.frombuffer(text.encode(), np.uint8)
    cut = int(last_certain_end(start, code, character_classes()))
    whole = np.frombuffer(f"{text}a b".encode(), np.uint8)
    ends = np.zeros(len(whole), np.int64)
    assert cut in [0, *ends[: split(whole, code, character_classes(), ends)]]


def test_a_long_text_can_be_cut_near_its_end():
    text = np.frombuffer(some_text().encode(), np.uint8)
    fast = FastTokenizer(vocabulary(PATTERNS["nanochat"].regex), "x")
    assert len(text) - 200 < fast.cut(text) < len(text)


@pytest.mark.slow
def test_known_spellings_are_found():
    assert find_pattern(r"\w+") is None
    for name, pattern in PATTERNS.items():
        assert find_pattern(name) == find_pattern(pattern.regex) == pattern
    assert read_tokenizer_json(gpt2_json().encode()).pattern == PATTERNS["gpt2"].regex
