"""Tokenizers give the ids of the real tiktoken and the real tokenizers."""

import base64
import itertools
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.tokenizers.fast_tokenizer import FastTokenizer
from millstream.text.tokenizers.library_engines import HuggingFaceTokenizer, TiktokenTokenizer
from millstream.text.tokenizers.loading import load_tokenizer
from millstream.text.tokenizers.tokenizer_json import to_tokenizer_json
from millstream.text.tokenizers.vocabulary import Vocabulary
from tests.helpers.vocabularies import (
    TEXTS,
    gpt2_json,
    some_text,
    vocabulary,
)


def batch(texts):
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def ids_of(tokenizer, texts):
    ids, offsets = tokenizer.encode(*batch(texts))
    assert ids.dtype == np.uint32
    assert offsets.dtype == np.int64
    return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [pattern.regex for pattern in PATTERNS.values()])
@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXTS, max_size=8))
@example(texts=["", "a", "", "\n  ", "x \n\n  "])
@example(texts=["ab" * n for n in range(0, 400, 7)])
@example(texts=[" " * 15, " " * 16, " " * 17, "=" * 63, "=" * 64, "=" * 5000, "の" * 999])
def test_ranks_give_the_ids_of_tiktoken(pattern, texts):
    fast = FastTokenizer(vocabulary(pattern), "x")
    assert ids_of(fast, texts) == ids_of(TiktokenTokenizer(vocabulary(pattern), "x"), texts)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    added=st.lists(st.text("abc", min_size=2, max_size=5), unique=True, max_size=30),
    texts=st.lists(st.text("abc ", max_size=120), max_size=5),
    seed=st.randoms(use_true_random=False),
)
@example(added=["abc", "ab"], texts=["xabcx"], seed=None)
def test_ranks_that_no_training_makes_give_the_ids_of_tiktoken(added, texts, seed):
    tokens = [bytes([byte]) for byte in range(256)] + [token.encode() for token in added]
    if seed is not None:
        seed.shuffle(tokens)
    known = vocabulary(PATTERNS["gpt4"].regex, tokens=tuple(tokens), specials={})
    fast = FastTokenizer(known, "x")
    assert ids_of(fast, texts) == ids_of(TiktokenTokenizer(known, "x"), texts)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2") / "tokenizer.json"
    path.write_text(gpt2_json())
    return path


@pytest.mark.slow
def test_gpt2_gives_the_ids_of_all_engines_on_real_text(gpt2):
    text = some_text()
    texts = [text, *(text[i : i + 997] for i in range(0, len(text), 997)), "<|endoftext|> hi"]
    expected = ids_of(load_tokenizer(gpt2, "huggingface"), texts)
    assert ids_of(load_tokenizer(gpt2, "fast"), texts) == expected
    assert ids_of(load_tokenizer(gpt2, "tiktoken"), texts) == expected


@pytest.mark.slow
def test_gpt2_gives_the_ids_of_tokenizers(gpt2):
    fast, reference = load_tokenizer(gpt2), load_tokenizer(gpt2, "reference")

    @settings(max_examples=300, deadline=None)
    @given(texts=st.lists(TEXTS, max_size=8))
    def check(texts):
        assert ids_of(fast, texts) == ids_of(reference, texts)

    check()


def test_long_runs_are_merged_as_by_tiktoken():
    texts = ["a" * 70_000, "abc" * 30_000, " " * 50_000 + "x", "0" * 99, "é日" * 20_000]
    known = vocabulary(PATTERNS["gpt2"].regex)
    fast = FastTokenizer(known, "x")
    assert ids_of(fast, texts) == ids_of(TiktokenTokenizer(known, "x"), texts)


def test_a_run_without_end_is_refused_by_its_length():
    fast = FastTokenizer(vocabulary(PATTERNS["gpt4"].regex), "x")
    with pytest.raises(FormatError, match="4,194,305 bytes"):
        fast.encode(np.full((1 << 22) + 1, ord("a"), np.uint8), np.array([0, (1 << 22) + 1]))


def test_ids_do_not_depend_on_what_was_encoded_before():
    known = vocabulary(PATTERNS["nanochat"].regex)
    words = [f"{word}{i}" for word in some_text().split()[:3000] for i in range(40)]
    fast = FastTokenizer(known, "x")
    first = ids_of(fast, words[:2000])
    ids_of(fast, [" ".join(words), "\n".join(words[::-1])])
    assert ids_of(fast, words[:2000]) == first


def test_offsets_may_begin_anywhere_and_ids_are_those_of_a_whole_batch():
    data, offsets = batch(["one", " two", "three " * 30, "", "four"])
    fast = FastTokenizer(vocabulary(PATTERNS["gpt4"].regex), "x")
    ids, id_offsets = fast.encode(data, offsets)
    some, some_offsets = fast.encode(data, offsets[1:4])
    assert some.tolist() == ids[id_offsets[1] : id_offsets[3]].tolist()
    assert some_offsets.tolist() == (id_offsets[1:4] - id_offsets[1]).tolist()


@pytest.mark.slow
def test_threads_share_a_tokenizer():
    fast = FastTokenizer(vocabulary(PATTERNS["gpt4"].regex), "x")
    lines = some_text().splitlines()
    expected = [ids_of(fast, lines[i::8]) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert list(pool.map(lambda i: ids_of(fast, lines[i::8]), range(8))) == expected


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [pattern.regex for pattern in PATTERNS.values()])
@settings(max_examples=150, deadline=None)
@given(parts=st.lists(TEXTS, min_size=2, max_size=6))
@example(parts=["a   ", "  b"])
@example(parts=["11 \n11111日", ""])
@example(parts=["it'", "s it'", "ll  ", "\n  ", "x"])
def test_a_text_cut_where_it_may_be_gives_the_ids_of_the_whole(pattern, parts):
    fast = FastTokenizer(vocabulary(pattern), "x")
    ids, rest = [], b""
    for part in parts:
        held = rest + part.encode()
        cut = fast.cut(np.frombuffer(held, np.uint8))
        ids += ids_of(fast, [held[:cut].decode()])[0]
        rest = held[cut:]
    ids += ids_of(fast, [rest.decode()])[0]
    assert ids == ids_of(fast, ["".join(parts)])[0]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fast", "tiktoken", "huggingface"])
def test_the_text_of_special_tokens_is_ordinary_text(gpt2, engine):
    tokenizer = load_tokenizer(gpt2, engine)
    assert tokenizer.eos_id == 50256
    [ids] = ids_of(tokenizer, ["a<|endoftext|>b"])
    assert 50256 not in ids
    assert ids == ids_of(load_tokenizer(gpt2, "tiktoken"), ["a<|endoftext|>b"])[0]


def test_a_word_that_is_also_a_special_token_is_ordinary_text(tmp_path):
    known = vocabulary(PATTERNS["nanochat"].regex)
    special = {"bos": known.specials["<|bos|>"]}
    (tmp_path / "tokenizer.json").write_text(to_tokenizer_json(replace(known, specials=special)))
    expected = ids_of(load_tokenizer(tmp_path, "fast"), ["bos at bos"])
    assert special["bos"] not in expected[0]
    assert ids_of(load_tokenizer(tmp_path, "huggingface"), ["bos at bos"]) == expected


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fast", "tiktoken", "huggingface"])
def test_tokens_end_where_their_bytes_do(gpt2, engine):
    texts = ["héllo wörld", "", "日本語 and more", "x" * 100]
    tokenizer = load_tokenizer(gpt2, engine)
    ids, offsets, ends = tokenizer.encode_with_ends(*batch(texts))
    assert ids.tolist() == tokenizer.encode(*batch(texts))[0].tolist()
    spelled = load_tokenizer(gpt2, "fast").vocabulary.tokens
    for number, text in enumerate(texts):
        mine = slice(offsets[number], offsets[number + 1])
        expected = np.cumsum([len(spelled[i]) for i in ids[mine]]).tolist()
        if engine == "huggingface":  # which counts a part of a character as all of it
            characters = np.cumsum([0, *(len(c.encode()) for c in text)])
            expected = [int(characters[np.searchsorted(characters, end)]) for end in expected]
        assert ends[mine].tolist() == expected


@pytest.mark.slow
def test_a_pickled_tokenizer_is_the_same(gpt2):
    for engine in ("fast", "tiktoken", "huggingface"):
        tokenizer = load_tokenizer(gpt2, engine)
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert (copy.engine, copy.fingerprint) == (engine, tokenizer.fingerprint)
        assert ids_of(copy, ["some text"]) == ids_of(tokenizer, ["some text"])


def test_a_vocabulary_has_one_fingerprint_in_all_its_files(tmp_path):
    known = vocabulary(PATTERNS["nanochat"].regex)
    (tmp_path / "tokenizer.json").write_text(to_tokenizer_json(known))
    ranks = b"".join(b"%s %d\n" % (base64.b64encode(t), i) for i, t in enumerate(known.tokens))
    (tmp_path / "tokenizer.tiktoken").write_bytes(ranks)
    config = {"pattern": "nanochat", "specials": dict(known.specials)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    by_json = load_tokenizer(tmp_path)
    by_ranks = load_tokenizer(tmp_path / "tokenizer.tiktoken")
    assert by_json.name == "tokenizer.json"
    assert (by_json.engine, by_ranks.engine) == ("fast", "fast")
    assert by_json.fingerprint == by_ranks.fingerprint
    assert load_tokenizer(tmp_path, "huggingface").fingerprint == by_json.fingerprint
    assert (by_json.bos_id, by_json.eos_id) == (len(known.tokens), None)
    others = [
        vocabulary(PATTERNS["nanochat"].regex, specials={}),
        vocabulary(PATTERNS["gpt4"].regex),
        Vocabulary(
            tokens=known.tokens[:-1],
            merges=None,
            pattern=known.pattern,
            specials=known.specials,
            whole_pieces=True,
        ),
    ]
    for other in others:
        assert FastTokenizer(other, "x").fingerprint != by_json.fingerprint


@pytest.mark.slow
def test_merges_in_another_order_than_ids_are_not_given_to_tiktoken(tmp_path, gpt2):
    stored = json.loads(gpt2.read_text())
    model = stored["model"]
    model["merges"][1000], model["merges"][1] = model["merges"][1], model["merges"][1000]
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    texts = some_text().splitlines()
    fast, reference = (load_tokenizer(tmp_path, engine) for engine in ("fast", "reference"))
    assert ids_of(fast, texts) == ids_of(reference, texts)
    with pytest.raises(UsageError, match="order"):
        load_tokenizer(tmp_path, "tiktoken")


def test_what_is_not_byte_level_is_left_to_tokenizers(tmp_path):
    words = {"[UNK]": 0, "hello": 1, "world": 2}
    whole_words = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    whole_words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    whole_words.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    assert ids_of(tokenizer, ["hello world hello", "x"]) == [[1, 2, 1], [0]]
    assert tokenizer.encode_with_ends(*batch(["hello  wörld"]))[2].tolist() == [5, 13]
    assert tokenizer.cut(np.zeros(100, np.uint8)) == 0
    with pytest.raises(UsageError, match="the engine 'fast' does not support"):
        load_tokenizer(tmp_path, "fast")


def test_an_unknown_split_pattern_is_left_to_its_own_engine(tmp_path):
    known = vocabulary(r"\w+|\W", whole_pieces=False)
    (tmp_path / "tokenizer.json").write_text(to_tokenizer_json(known))
    assert load_tokenizer(tmp_path).engine == "huggingface"
    assert load_tokenizer(tmp_path, "tiktoken").cut(np.zeros(100, np.uint8)) == 0
    with pytest.raises(UsageError, match=r"does not support the split pattern .*only gpt2"):
        load_tokenizer(tmp_path, "fast")


def test_published_ranks_are_known_by_name(tmp_path):
    known = vocabulary(PATTERNS["cl100k"].regex)
    ranks = b"".join(b"%s %d\n" % (base64.b64encode(t), i) for i, t in enumerate(known.tokens))
    for name in ("r50k_base", "cl100k_base", "o200k_base"):
        (tmp_path / f"{name}.tiktoken").write_bytes(ranks)
        fast = load_tokenizer(tmp_path / f"{name}.tiktoken")
        assert fast.engine == "fast"
        assert ids_of(fast, ["It's 1234\n  "]) == ids_of(
            load_tokenizer(tmp_path / f"{name}.tiktoken", "reference"), ["It's 1234\n  "]
        )


def test_text_that_a_pattern_leaves_out_is_an_error():
    tokenizer = TiktokenTokenizer(vocabulary(r"\w+"), "x")
    assert len(ids_of(tokenizer, ["word"])) == 1
    with pytest.raises(FormatError, match="2 bytes would be lost"):
        ids_of(tokenizer, ["two words!"])


@pytest.mark.slow
def test_mistakes_are_answered(tmp_path, gpt2):
    with pytest.raises(MissingDataError, match="no such file"):
        load_tokenizer(tmp_path / "nothing.json")
    with pytest.raises(MissingDataError, match=r"neither tokenizer\.json nor"):
        load_tokenizer(tmp_path)
    with pytest.raises(UsageError, match="engine is 'quick'"):
        load_tokenizer(gpt2, "quick")
    with pytest.raises(UsageError, match="no other"):
        load_tokenizer(gpt2, "bytes")
    (tmp_path / "tokenizer.pkl").write_bytes(pickle.dumps(print))
    with pytest.raises(UsageError, match="pickles are not loaded, since they can run any code"):
        load_tokenizer(tmp_path / "tokenizer.pkl")
    (tmp_path / "mine.tiktoken").write_bytes(b"PK\x03\x04")
    with pytest.raises(FormatError, match="is this a file of tiktoken ranks"):
        load_tokenizer(tmp_path / "mine.tiktoken")
    ranks = (b"%s %d\n" % (base64.b64encode(bytes([k])), k) for k in range(256))
    (tmp_path / "mine.tiktoken").write_bytes(b"".join(ranks))
    with pytest.raises(UsageError, match="hold no split pattern"):
        load_tokenizer(tmp_path / "mine.tiktoken")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<|none|>"}')
    (tmp_path / "tokenizer.json").write_text(gpt2.read_text())
    with pytest.raises(FormatError, match="not a special token"):
        load_tokenizer(tmp_path)
