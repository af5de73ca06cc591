"""Hostile vocabularies: each is read as intended, or refused by name.

A tokenizer.json or a file of ranks comes from anybody. Ids index tables, so they are checked and
bounded; a token without its bytes, or a byte without a token, would lose text in silence.
"""

import base64
import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import FormatError, MillstreamError, MissingDataError
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.tokenizers.fast_tokenizer import FastTokenizer
from millstream.text.tokenizers.loading import load_tokenizer
from millstream.text.tokenizers.tokenizer_json import (
    NotByteLevelError,
    read_tokenizer_json,
    to_tokenizer_json,
)
from millstream.text.tokenizers.vocabulary import Vocabulary, read_tiktoken, to_tiktoken

SOUND = Vocabulary(
    tokens=(*(bytes([byte]) for byte in range(256)), b"", b"ab", b" a"),
    merges=None,
    pattern=PATTERNS["gpt4"].regex,
    specials={"<|end|>": 256},
    whole_pieces=True,
)
RANKS = to_tiktoken(SOUND)
JSON = json.loads(to_tokenizer_json(SOUND))
AB = base64.b64encode(b"ab")


def changed(*path, to):
    """The sound file with one value replaced."""
    found = copy.deepcopy(JSON)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return json.dumps(found).encode()


def test_sound_files_are_read():
    assert read_tiktoken(RANKS) == SOUND.tokens
    found = read_tokenizer_json(json.dumps(JSON).encode())
    assert found.tokens == SOUND.tokens
    assert found.merges.tolist() == [[97, 98, 257], [32, 97, 258]]
    assert found.specials == SOUND.specials


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (b"", "256 of the 256 bytes have no token, such as 0x00"),
        (RANKS[10:], "line 1: "),
        (RANKS.split(b"\n", 1)[1], "1 of the 256 bytes have no token, such as 0x00"),
        (
            RANKS + b"YWJj\n",
            "line 259: expected a token in base64, a space and an id; found b'YWJj'",
        ),
        (RANKS + b"YW!j 300\n", "line 259: "),
        (RANKS + b"YWJj -1\n", "line 259: expected an id; found b'-1'"),
        (RANKS + b"YWJj 1e3\n", "line 259: expected an id; found b'1e3'"),
        (RANKS + b"YWJj 2097151\n", "expected an id from 0 to 2,097,150; found 2097151"),
        (RANKS + b"YWJj " + b"9" * 100_000, "expected an id; found b'999"),
        (RANKS + b"YWJj 258\n", "its id 258 is already taken by b' a'"),
        (RANKS + b"AA== 0\n", r"its id 0 is already taken by b'\\x00'"),
        (RANKS + AB + b" 300\n", "b'ab' has two ids: 257 and 300"),
        (RANKS + b"= 300\n", "line 259: "),
        (b"PK\x03\x04" + bytes(range(256)) * 10, "is this a file of tiktoken ranks"),
    ],
)
def test_damaged_ranks_are_named_with_their_line(ranks, message):
    with pytest.raises(FormatError, match=message):
        read_tiktoken(ranks)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a tokenizer.json"),
        (b"\x80\x04\x95", "not a tokenizer.json"),  # a pickle
        (b"[" * 200_000, "not a tokenizer.json"),
        (b"[]", "it has no model"),
        (changed("model", to=[]), "it has no model"),
        (changed("model", "vocab", to=None), "lacks vocab or merges"),
        (changed("model", "merges", to={}), "lacks vocab or merges"),
        (changed("model", "vocab", "a", to=98), "its id 98 is already taken by"),
        (changed("model", "vocab", "ab", to=-1), "2,097,150; found -1"),
        (changed("model", "vocab", "ab", to=True), "2,097,150; found True"),
        (changed("model", "vocab", "ab", to="7"), "2,097,150; found '7'"),
        (changed("model", "vocab", "ab", to=1 << 40), "2,097,150; found 1099511627776"),
        (changed("model", "vocab", "", to=300), "the token with id 300 is empty"),
        (
            changed("model", "vocab", "<|end|>", to=300),
            "300 in vocab, 256 in added_tokens",
        ),
        (changed("model", "merges", to=["a b c"]), "merge 0: 'a b c': expected two tokens"),
        (changed("model", "merges", to=["a c"]), "merge 0: 'a c': expected two tokens"),
        (changed("model", "merges", to=[7]), "merge 0: 7: expected two tokens"),
        (changed("model", "merges", to=[["a", ["b"]]]), "expected two tokens that join to a third"),
        (changed("model", "merges", to=["a <|end|>"]), "expected two tokens that join to a third"),
        (changed("added_tokens", to=7), "not an added token: 7"),
        (changed("added_tokens", to=["x"]), "not an added token: 'x'"),
        (changed("added_tokens", 0, "id", to=97), "two ids: 256 in vocab, 97 in added_tokens"),
        (changed("added_tokens", 0, "id", to=2**70), "expected an id from 0 to"),
        (
            changed("added_tokens", to=JSON["added_tokens"] * 2),
            "two of 2 added tokens have the same text or id",
        ),
    ],
)
def test_a_damaged_tokenizer_json_is_named(content, message):
    with pytest.raises(FormatError, match=message) as raised:
        read_tokenizer_json(content)
    assert not isinstance(raised.value, NotByteLevelError)


SPLIT, BYTE_LEVEL = JSON["pre_tokenizer"]["pretokenizers"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("model", "type", to="Unigram"), "the model type is 'Unigram'"),
        (changed("model", "dropout", to=0.1), "dropout"),
        (changed("model", "end_of_word_suffix", to="</w>"), "end_of_word_suffix"),
        (changed("normalizer", to={"type": "NFC"}), "normalizer"),
        (changed("truncation", to={"max_length": 8}), "truncation"),
        (changed("added_tokens", 0, "special", to=False), "'<|end|>' is not special"),
        (changed("model", "vocab", "▁a", to=300), "characters that do not represent bytes"),
        (changed("model", "merges", to=["a b", ["a", "b"]]), "occurs twice"),
        (changed("pre_tokenizer", to=None), "does not end with ByteLevel"),
        (changed("pre_tokenizer", to={"type": "Sequence"}), "does not end with ByteLevel"),
        (changed("pre_tokenizer", to={"type": "ByteLevel"}), "add_prefix_space"),
        (changed("pre_tokenizer", "pretokenizers", to=[]), "does not end with ByteLevel"),
        (changed("pre_tokenizer", "pretokenizers", to=[BYTE_LEVEL]), "not one Split"),
        (changed("pre_tokenizer", "pretokenizers", to=[SPLIT, SPLIT, BYTE_LEVEL]), "not one Split"),
        (changed("pre_tokenizer", "pretokenizers", 0, "behavior", to="Removed"), "its Split is"),
        (changed("pre_tokenizer", "pretokenizers", 0, "pattern", to={"String": " "}), "no regular"),
    ],
)
def test_what_is_not_byte_level_bpe_is_said_by_its_name(content, message):
    with pytest.raises(NotByteLevelError, match=message.replace("|", r"\|")):
        read_tokenizer_json(content)


@pytest.mark.slow
def test_files_that_are_missing_or_too_large_are_not_read(tmp_path):
    with pytest.raises(MissingDataError, match=r"gone\.json"):
        read_tokenizer_json(tmp_path / "gone.json")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    for read in (read_tiktoken, read_tokenizer_json):
        with pytest.raises(FormatError, match="larger than 268,435,456 bytes"):
            read(tmp_path / "large")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_value_anywhere_is_read_or_refused(data):
    found = copy.deepcopy(JSON)
    place = found
    while True:
        key = data.draw(
            st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place)))
        )
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(JSON_VALUES)
            break
        place = place[key]
    try:
        vocabulary = read_tokenizer_json(json.dumps(found).encode())
    except MillstreamError:
        return
    text = np.frombuffer(b"the text, and 'that'", np.uint8)
    fast = FastTokenizer(replace(vocabulary, pattern=PATTERNS["gpt2"].regex), "x")
    ids, _ = fast.encode(text, np.array([0, len(text)]))
    assert b"".join(vocabulary.tokens[number] for number in ids.tolist()) == text.tobytes()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(RANKS) - 1), st.binary(max_size=4), st.integers(0, 4))
def test_any_bytes_in_ranks_are_read_or_refused(place, new, num_replaced):
    try:
        tokens = read_tiktoken(RANKS[:place] + new + RANKS[place + num_replaced :])
    except MillstreamError:
        return
    assert {bytes([byte]) for byte in range(256)} <= set(tokens)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"pattern": "gpt4", "specials": {"<s>": -5}}, "2,097,150; found -5"),
        ({"pattern": "gpt4", "specials": {"<s>": "5"}}, "2,097,150; found '5'"),
        ({"pattern": "gpt4", "specials": {"<s>": 1 << 40}}, "expected an id from 0 to"),
        ({"pattern": "gpt4", "specials": {"<s>": 5}}, "its id 5 belongs to the token"),
        ({"pattern": "gpt4", "specials": {"<s>": 9999, "</s>": 9999}}, "two special tokens"),
        ({"pattern": "gpt4", "specials": ["<s>"]}, "specials must be an object"),
        ({"pattern": "gpt4", "specials": None}, "specials must be an object"),
        ({"pattern": "gpt4", "bos_token": ["<s>"]}, "is not a special token"),
        ({"pattern": ["gpt4"]}, "pattern must be a string"),
        ({"pattern": "(["}, "tiktoken rejects the split pattern"),
        ({"pattern": r"\p{L}+"}, "1 bytes would be lost"),
    ],
)
def test_a_configuration_beside_ranks_is_read_or_refused(tmp_path, config, reason):
    (tmp_path / "tokenizer.tiktoken").write_bytes(RANKS)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(MillstreamError, match=reason):
        load_tokenizer(tmp_path).encode(np.frombuffer(b"a b", np.uint8), np.array([0, 3]))
