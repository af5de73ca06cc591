"""What `penstock inspect` shows of texts."""

import pytest

import penstock
from penstock.cli import main
from penstock.text.tokenizers.byte_tokenizer import ByteTokenizer


@pytest.fixture
def shown(capsys):
    """Run `inspect`; what it prints."""

    def run(*arguments):
        assert main(["inspect", *map(str, arguments)]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def stored(tmp_path):
    """A dataset of texts, with its tokenizer."""
    texts = penstock.Source.from_documents(
        ["the cat\x1b[31m\tsat\u202e", "日本語 C:\\temp", "x" * 500]
    )
    penstock.tokenize(texts, "bytes", tmp_path / "data", workers=1)
    return tmp_path / "data"


def write_tokens(directory, tokens, **options):
    with penstock.Writer(directory, vocab_size=300, **options) as writer:
        writer.append(tokens)
    return directory


def test_text_is_shown_with_the_tokenizer_of_the_dataset(stored, shown):
    out = shown(stored, "--view", "documents", "--seq-len", "600")
    assert "the cat\\x1b[31m\\tsat\\u202e<|endoftext|>\n" in out
    assert "日本語 C:\\\\temp<|endoftext|>\n" in out
    assert f"{'x' * 240} …\n" in out
    assert "as numbers" not in out


def test_text_is_shown_with_a_tokenizer_that_is_given(tmp_path, stored, shown):
    data = write_tokens(tmp_path / "written", [*b"what is it", 256])
    assert "[119, 104, 97," in (plain := shown(data, "--seq-len", "10"))
    assert "--tokenizer FILE shows their text" in plain
    out = shown(data, "--seq-len", "10", "--tokenizer", "bytes")
    assert "what is it" in out
    assert "numbers" not in out


def test_half_a_character_does_not_disturb(tmp_path, shown):
    data = write_tokens(tmp_path / "written", [*"日本".encode()[:4], *[97] * 9])
    assert "日\ufffdaaaa" in shown(data, "--seq-len", "8", "--tokenizer", "bytes")


def test_a_tokenizer_with_too_few_ids_is_an_error(tmp_path, capsys):
    data = write_tokens(tmp_path / "written", [72, 105, 299, 1])
    assert main(["inspect", str(data), "--seq-len", "3", "--tokenizer", "bytes"]) == 1
    error = capsys.readouterr().err
    assert "bytes has no token with the id 299: its ids are below 257" in error


def test_another_tokenizer_than_that_of_the_dataset_is_named(tmp_path, shown):
    noted = {"name": "mine.json", "fingerprint": "another"}
    data = write_tokens(tmp_path / "written", [72, 105, 33], tokenizer=noted)
    out = shown(data, "--seq-len", "2", "--tokenizer", "bytes")
    assert "were made with another tokenizer, mine.json" in out


def test_a_damaged_tokenizer_beside_the_dataset_leaves_numbers(tmp_path, shown):
    noted = {"name": "mine.json", "fingerprint": "another"}
    data = write_tokens(tmp_path / "written", [72, 105, 33], tokenizer=noted)
    (data / "tokenizer.json").write_text("{}")
    out = shown(data, "--seq-len", "2")
    assert "shown as numbers: " in out
    assert "not a tokenizer.json" in out
    assert "[72, 105]" in out


def test_tokens_without_a_label_are_dim_and_special_ones_coloured(tmp_path, shown, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    fields = [("token", "<u2"), ("loss_mask", "u1")]
    tokens, mask = [*b"question? answer", ByteTokenizer.eos_id], [0] * 10 + [1] * 7
    with penstock.Writer(tmp_path / "masked", fields=fields) as writer:
        writer.append({"token": tokens, "loss_mask": mask})
    out = shown(tmp_path / "masked", "--view", "packed", "--seq-len", "17", "--tokenizer", "bytes")
    assert "q\x1b[2muestion? \x1b[0manswer\x1b[1;36m<|endoftext|>\x1b[0m" in out


def test_a_field_that_cannot_be_a_loss_mask_is_only_shown(tmp_path, shown):
    fields = [("token", "<u2"), ("loss_mask", "<f4")]
    with penstock.Writer(tmp_path / "weights", fields=fields) as writer:
        writer.append({"token": [1, 2, 3], "loss_mask": [0.5, 1, 0]})
    assert "loss_mask: [0.5, 1.0]" in shown(tmp_path / "weights", "--seq-len", "2")
