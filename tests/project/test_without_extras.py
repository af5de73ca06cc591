"""From text to batches with the required packages only; wheels are tested with this too."""

import subprocess
import sys

import numpy as np
import pytest

import millstream
from millstream.testing import assert_resumes_exactly

pytestmark = pytest.mark.process

WORDS = ["the ", "quick ", "brown ", "fox ", "jumps\n", "over ", "lazy ", "dogs: ", "12 ", "été "]


def run(*arguments):
    command = [sys.executable, "-m", "millstream", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=100)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Four files of text."""
    directory = tmp_path_factory.mktemp("text")
    choices = np.random.default_rng(0)
    for number in range(4):
        text = "".join(choices.choice(WORDS, 3000))
        (directory / f"{number}.txt").write_text(text, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def tokenizer(texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tok"
    run("train-tokenizer", texts / "*.txt", "--vocab-size", 300, "--out", path)
    return path


@pytest.fixture(scope="module")
def shards(texts, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("shards") / "data"
    # The check compares with a package that is an extra.
    run("tokenize", texts / "*.txt", "--tokenizer", tokenizer, "--out", path, "--no-check")
    return path


def test_tokens_spell_the_text(texts, tokenizer):
    text = (texts / "0.txt").read_bytes()
    loaded = millstream.load_tokenizer(tokenizer)
    ids, offsets = loaded.encode(np.frombuffer(text, np.uint8), np.array([0, len(text)]))
    assert offsets.tolist() == [0, len(ids)]
    assert b"".join(loaded.vocabulary.tokens[number] for number in ids) == text
    assert len(ids) < len(text) // 2


@pytest.mark.parametrize("access", ["pread", "mmap"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_epoch_holds_every_row_once(shards, access, prefetch):
    view = millstream.open(shards, access=access).windows(16)
    with millstream.Loader(view, 1, seed=3, output="numpy", prefetch=prefetch) as loader:
        rows = np.concatenate([batch["input_ids"] for batch in loader])
    with millstream.Loader(view, 1, shuffle=False, output="numpy", prefetch=0) as loader:
        in_order = np.concatenate([batch["input_ids"] for batch in loader])
    assert len(rows) > 100
    assert sorted(rows.tolist()) == sorted(in_order.tolist()) != rows.tolist()


def test_packed_rows_resume_exactly(shards):
    view = millstream.open(shards).packed(64)
    assert_resumes_exactly(lambda: millstream.Loader(view, 2, output="numpy"), steps=10)


def test_batches_straight_from_text_resume_exactly(texts, tokenizer):
    def loader():
        return millstream.TextLoader(
            str(texts / "*.txt"), tokenizer, batch_size=2, seq_len=32, output="numpy"
        )

    assert_resumes_exactly(loader, steps=10)
