"""The tokenizer stored with a dataset, and decoding."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError, UsageError
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.tokenizers.adapter import adapt
from millstream.text.tokenizers.tokenizer_json import to_tokenizer_json
from tests.helpers.vocabularies import some_text, trained_ranks

TEXTS = ["Straße, 日本語 and 😀.", "", "a <|endoftext|> b\r\n\tc", some_text()[:3000]]


def word_level_json():
    """A tokenizer.json that is not byte-level BPE."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>", "</s>"])
    return made.to_str(pretty=True).replace("\n", "\r\n")


def encoding_of(pattern):
    return tiktoken.Encoding(
        "mine",
        pat_str=pattern,
        mergeable_ranks=trained_ranks(PATTERNS["gpt2"].regex),
        special_tokens={"<|endoftext|>": 1200, "<|bos|>": 1300},
    )


@pytest.fixture(scope="module")
def made_of(tmp_path_factory):
    """Tokenizers of every kind, by name, each as a user would give it to `tokenize`."""
    directory = tmp_path_factory.mktemp("tokenizers")
    gpt2_like = encoding_of(PATTERNS["gpt2"].regex)
    small_json = to_tokenizer_json(adapt(gpt2_like).vocabulary)
    (directory / "small.json").write_text(small_json)
    (directory / "words.json").write_bytes(word_level_json().encode())
    return {
        "json": directory / "small.json",
        "not byte-level": directory / "words.json",
        "tiktoken": gpt2_like,
        "tiktoken, own pattern": encoding_of(r"\p{L}+|[^\p{L}]"),
        "tokenizers": tokenizers.Tokenizer.from_str(small_json),
        "bytes": "bytes",
    }


KINDS = ["json", "not byte-level", "tiktoken", "tiktoken, own pattern", "tokenizers", "bytes"]
LOADED = {}


def loaded(made_of, kind):
    given = made_of[kind]
    if kind not in LOADED:
        is_object = hasattr(given, "encode_ordinary") or hasattr(given, "to_str")
        LOADED[kind] = adapt(given) if is_object else millstream.load_tokenizer(given)
    return LOADED[kind]


def encode(tokenizer, texts):
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)])
    return tokenizer.encode(np.frombuffer(b"".join(encoded), np.uint8), offsets)[0].tolist()


def tokenize(tmp_path, tokenizer, name="out", **options):
    source = millstream.Source.from_documents(TEXTS)
    millstream.tokenize(source, tokenizer, tmp_path / name, add="none", workers=1, **options)
    return tmp_path / name


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_knows_its_tokenizer(tmp_path, made_of, kind):
    data = millstream.open(tokenize(tmp_path, made_of[kind]))
    stored = data.tokenizer
    assert stored is not None
    assert stored.fingerprint == data.manifests[0].tokenizer["fingerprint"]
    assert encode(stored, TEXTS) == data.records(0, data.num_records).tolist()
    assert stored.vocab_size == data.vocab_size


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stored_is_stored_again_alike(tmp_path, made_of, kind):
    stored = millstream.open(tokenize(tmp_path, made_of[kind])).tokenizer
    again = millstream.open(tokenize(tmp_path, stored, "again"))
    names = [path.name for path in (tmp_path / "out").glob("tokenizer*")]
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    assert again.tokenizer.bos_id == stored.bos_id
    assert again.tokenizer.eos_id == stored.eos_id


def test_each_side_of_a_split_stands_alone(tmp_path, made_of):
    out = tokenize(tmp_path, made_of["json"], split=millstream.Split(count=1), shuffle=0)
    assert not list(out.glob("tokenizer*"))
    for side in ("train", "val"):
        copied = shutil.copytree(out / side, tmp_path / "elsewhere" / side)
        assert millstream.open(copied).tokenizer.vocab_size == 1301
    assert millstream.open([out / "train", out / "val"]).tokenizer is not None


def test_the_directory_is_a_tokenizer_for_others_too(tmp_path, made_of):
    out = tokenize(tmp_path, made_of["json"])
    ids = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json")).encode("the café").ids
    assert millstream.load_tokenizer(out).decode(ids) == "the café"


def test_shares_and_finish_keep_it(tmp_path, made_of):
    (tmp_path / "text.txt").write_text("one\ntwo\nthree")
    for index in range(2):
        millstream.tokenize(
            tmp_path / "text.txt",
            made_of["json"],
            tmp_path / "out",
            task=(index, 2),
            task_bytes=4,
            workers=1,
        )
    millstream.finish(tmp_path / "out")
    data = millstream.open(tmp_path / "out")
    assert data.tokenizer.decode(data.document(2)) == "three<|endoftext|>"
    assert not (tmp_path / "out" / "tasks").exists()


def test_a_run_killed_before_its_plan_leaves_no_tokenizer_to_the_next(tmp_path, made_of):
    leftover = tmp_path / "out" / "tasks" / "tokenizer"
    leftover.mkdir(parents=True)
    (leftover / "tokenizer.json").write_text(word_level_json())
    out = tokenize(tmp_path, made_of["tiktoken"])
    assert sorted(path.name for path in out.glob("tokenizer*") if path.suffix != ".checksums") == [
        "tokenizer.tiktoken",
        "tokenizer_config.json",
    ]
    assert millstream.open(out).tokenizer is not None


def test_a_tokenizer_that_only_python_has_is_noted_by_name(tmp_path):
    class Lengths:
        def encode(self, text):
            return [len(word) for word in text.split()]

    out = tokenize(tmp_path, Lengths())
    assert not list(out.glob("tokenizer*"))
    data = millstream.open(out)
    assert data.tokenizer is None
    assert data.manifests[0].tokenizer["name"] == "Lengths"


def test_another_tokenizer_in_its_place_is_refused(tmp_path, made_of):
    out = tokenize(tmp_path, made_of["json"])
    stored = json.loads((out / "tokenizer.json").read_text())
    vocab = stored["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (out / "tokenizer.json").write_text(json.dumps(stored))
    data = millstream.open(out)
    with pytest.raises(FormatError, match="not the tokenizer of this dataset"):
        _ = data.tokenizer


def test_datasets_without_one_work_as_before(tmp_path, made_of):
    out = tokenize(tmp_path, made_of["json"])
    for file in out.glob("tokenizer*"):
        file.unlink()
    assert millstream.open(out).tokenizer is None
    with millstream.Writer(tmp_path / "written", vocab_size=300) as writer:
        writer.append([1, 2])
    assert millstream.open(tmp_path / "written").tokenizer is None
    copy = shutil.copytree(tmp_path / "written", tmp_path / "copy")
    assert millstream.open([tmp_path / "written", copy]).tokenizer is None


def test_a_tokenizer_that_is_no_regular_file_is_refused_at_once(tmp_path, made_of):
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(FormatError, match="not a regular file"):
        millstream.load_tokenizer(tmp_path)
    with pytest.raises(FormatError, match="not a regular file"):
        millstream.load_tokenizer(tmp_path / "tokenizer.json")


def test_converting_takes_it_along(tmp_path, made_of):
    out = tokenize(tmp_path, made_of["json"])
    millstream.convert(millstream.open(out), tmp_path / "copy", to="millstream")
    assert millstream.open(tmp_path / "copy").tokenizer.vocab_size == 1301


@pytest.mark.process
def test_opening_does_not_read_it(tmp_path, made_of):
    out = tokenize(tmp_path, made_of["json"])
    code = (
        "import sys, millstream; millstream.open(sys.argv[1]).num_records\n"
        "print([name for name in sys.modules if 'tokenizers' in name])"
    )
    assert subprocess.check_output([sys.executable, "-c", code, out], text=True) == "[]\n"


# Text from ids


@pytest.mark.parametrize("kind", ["json", "tiktoken", "tiktoken, own pattern", "bytes"])
@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=60))
def test_ids_become_the_text_they_came_from(made_of, kind, text):
    tokenizer = loaded(made_of, kind)
    assert tokenizer.decode(encode(tokenizer, [text])) == text


def test_half_a_character_and_special_tokens_are_shown():
    tokenizer = millstream.load_tokenizer("bytes")
    assert tokenizer.decode([*"é".encode()[:1], 256]) == "\ufffd<|endoftext|>"


@pytest.mark.parametrize("kind", ["json", "not byte-level", "tiktoken", "bytes"])
@pytest.mark.parametrize("number", [-1, 60000])
def test_ids_that_a_tokenizer_does_not_have_are_named(made_of, kind, number):
    tokenizer = loaded(made_of, kind)
    with pytest.raises(UsageError, match=f"no token has the id {number:,}; its ids are 0 to"):
        tokenizer.decode([number])
