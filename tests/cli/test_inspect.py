"""`millstream inspect`: datasets, rows and their text."""

import re

import pytest

import millstream
from millstream.cli import main
from millstream.text.tokenizers.byte_tokenizer import ByteTokenizer
from tests.helpers.datasets import write_dataset


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
    texts = millstream.Source.from_documents(
        ["the cat\x1b[31m\tsat\u202e", "日本語 C:\\temp", "x" * 500]
    )
    millstream.tokenize(texts, "bytes", tmp_path / "data", workers=1)
    return tmp_path / "data"


def write_tokens(directory, tokens, **options):
    with millstream.Writer(directory, vocab_size=300, **options) as writer:
        writer.append(tokens)
    return directory


def test_text_is_shown_with_the_tokenizer_of_the_dataset(stored, shown):
    out = shown(stored, "--view", "documents", "--seq-len", "600")
    assert "the cat\\x1b[31m\\tsat\\u202e<|endoftext|>\n" in out
    assert "日本語 C:\\\\temp<|endoftext|>\n" in out
    assert f"{'x' * 240} …\n" in out
    assert "shown as ids" not in out


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
    assert "bytes: no token has the id 299; its ids are 0 to 256" in error


def test_another_tokenizer_than_that_of_the_dataset_is_named(tmp_path, shown):
    noted = {"name": "mine.json", "fingerprint": "another"}
    data = write_tokens(tmp_path / "written", [72, 105, 33], tokenizer=noted)
    out = shown(data, "--seq-len", "2", "--tokenizer", "bytes")
    assert "was made with another tokenizer, mine.json" in out


def test_a_damaged_tokenizer_beside_the_dataset_leaves_numbers(tmp_path, shown):
    noted = {"name": "mine.json", "fingerprint": "another"}
    data = write_tokens(tmp_path / "written", [72, 105, 33], tokenizer=noted)
    (data / "tokenizer.json").write_text("{}")
    out = shown(data, "--seq-len", "2")
    assert "shown as ids: " in out
    assert "not a tokenizer.json" in out
    assert "[72, 105]" in out


def test_tokens_without_a_label_are_dim_and_special_ones_coloured(tmp_path, shown, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    fields = [("token", "<u2"), ("loss_mask", "u1")]
    tokens, mask = [*b"question? answer", ByteTokenizer.eos_id], [0] * 10 + [1] * 7
    with millstream.Writer(tmp_path / "masked", fields=fields) as writer:
        writer.append({"token": tokens, "loss_mask": mask})
    out = shown(tmp_path / "masked", "--view", "packed", "--seq-len", "17", "--tokenizer", "bytes")
    assert "q\x1b[2muestion? \x1b[0manswer\x1b[1;36m<|endoftext|>\x1b[0m" in out


def test_a_field_that_cannot_be_a_loss_mask_is_only_shown(tmp_path, shown):
    fields = [("token", "<u2"), ("loss_mask", "<f4")]
    with millstream.Writer(tmp_path / "weights", fields=fields) as writer:
        writer.append({"token": [1, 2, 3], "loss_mask": [0.5, 1, 0]})
    assert "loss_mask: [0.5, 1.0]" in shown(tmp_path / "weights", "--seq-len", "2")


@pytest.fixture
def path(tmp_path, tokens):
    write_dataset(tmp_path / "set", tokens, cuts=[400])
    return str(tmp_path / "set")


def test_inspect_prints_what_is_there(path, capsys, tokens):
    assert main(["inspect", path, "--seq-len", "10", "--sample", "7"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"records +1,003", printed)
    assert re.search(r"shards +2", printed)
    assert "windows of 10 tokens: 100 samples, 2 records left over" in printed
    assert "document         0  positions 0 to     9  labels 10" in printed
    assert str(tokens[70:80].tolist()) in printed


def test_inspect_shows_bytes_as_text(tmp_path, capsys):
    write_dataset(tmp_path / "d", list(b"from the sluice"), tokenizer={"name": "bytes"})
    assert main(["inspect", str(tmp_path / "d"), "--seq-len", "14", "--samples", "1"]) == 0
    assert "from the sluic\n" in capsys.readouterr().out


def test_inspect_shows_packed_rows_with_documents_positions_fields_and_metadata(tmp_path, capsys):
    fields = [("token", "<u2"), ("train", "<u1")]
    with millstream.Writer(tmp_path / "d", fields=fields, metadata=str.encode) as writer:
        for text in (b"first", b"second one"):
            columns = {"token": list(text), "train": [1] * len(text)}
            writer.append(columns, spans=[(1, 3, f"of {text[0]}")])
    arguments = ["inspect", str(tmp_path / "d"), "--view", "packed", "--seq-len", "16"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "packed rows of 16 (best_fit): 1 samples, padding 6.250%, 0 of 2 documents" in printed
    assert re.search(r"columns +0 to +9 +document +1 +positions 0 to +9 +labels 9", printed)
    assert re.search(r"columns +10 to +14 +document +0 +positions 0 to +4 +labels 4", printed)
    assert re.search(r"columns +15 to +15 +padding", printed)
    assert "train: [1, 1," in printed
    assert "metadata of columns 1 to 2: of 115" in printed
    assert "metadata of columns 11 to 12: of 102" in printed


def test_a_dataset_shorter_than_a_row_is_shown_with_the_length_that_inspect_names(path, capsys):
    assert main(["inspect", path]) == 0
    printed = capsys.readouterr().out
    assert (
        "windows of 2,048 tokens: none, there are 1,003 records; --seq-len 1002 shows all"
        in printed
    )
    assert main(["inspect", path, "--seq-len", "1002"]) == 0
    assert "1 samples" in capsys.readouterr().out
