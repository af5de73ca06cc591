"""Splits of text: training and validation files are never read as one source."""

import json

import pytest

import millstream
from millstream.cli import main
from millstream.errors import MissingDataError, SplitsError, UsageError
from millstream.text.repacking import repack
from millstream.text.sources import Source


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    directory = tmp_path / "qs"
    directory.mkdir()
    for name in ("train", "validation"):
        (directory / f"{name}.jsonl").write_text(f'{{"text": "{name}"}}\n')
    monkeypatch.chdir(tmp_path)
    return directory


def texts(source):
    return [batch.text(0).decode() for piece in source.slices(1) for batch in source.read(piece)]


@pytest.mark.parametrize("source", ["qs", "qs/*.jsonl", "**/*.jsonl", ["qs"]])
def test_several_splits_are_refused_unless_one_is_chosen(corpus, source):
    with pytest.raises(SplitsError, match=r'train \(1 file\), val \(1 file\).*"train" of Source'):
        Source(source)
    assert texts(Source(source, split="train")) == ["train"]
    assert texts(Source(source, split="val")) == ["validation"]
    assert texts(Source(source, split="all")) == ["train", "validation"]
    with pytest.raises(UsageError, match="no split 'test'"):
        Source(source, split="test")


def test_files_that_are_named_are_read_as_they_are(corpus):
    both = ["qs/train.jsonl", "qs/validation.jsonl"]
    assert texts(Source(both)) == ["train", "validation"]
    assert texts(Source("qs/train*.jsonl")) == ["train"]
    with pytest.raises(UsageError, match="has no splits; leave out split"):
        Source("qs/train.jsonl", split="train")


def test_everything_that_reads_text_refuses_several_splits(corpus, tmp_path, capsys):
    with pytest.raises(SplitsError):
        millstream.TextLoader("qs", "bytes", 1, 4)
    with pytest.raises(SplitsError):
        repack("qs", "out")
    for command in (
        ["tokenize", "qs", "--tokenizer", "bytes", "--out", "out"],
        ["train-tokenizer", "qs", "--vocab-size", "300", "--out", "out"],
    ):
        assert main(command) == 1
        assert "--split train" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["tokenize", "qs", "--split", "val", "--tokenizer", "bytes", "--out", "out"]) == 0
    assert millstream.open("out").num_records == len("validation") + 1


def test_val_files_choose_what_is_held_out(corpus, capsys):
    command = ["tokenize", "qs", "--tokenizer", "bytes", "--val-files", "validation*", "--out"]
    assert main([*command, "out"]) == 0
    assert millstream.open("out", split="train").num_records == len("train") + 1
    report = millstream.tokenize(
        "qs", "bytes", "again", split=millstream.Split(files="validation*")
    )
    assert report.splits["val"][0] == 1
    (corpus / "test.jsonl").write_text('{"text": "test"}\n')
    assert main([*command, "other"]) == 1
    error = capsys.readouterr().err
    assert "without the files for validation: contains several splits: test" in error


@pytest.fixture
def unfinished(tmp_path):
    """What a `repack` leaves that is killed after its first shard."""
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    out = tmp_path / "out"
    repack(tmp_path / "lines.txt", out, to="jsonl")
    (out / ".finished.json").unlink()
    (out / "unfinished.json").write_text(json.dumps({"wanted": {}, "command": "repack"}))
    (out / "00000.done.json").write_text("{}")
    (out / "00001-counts.json").write_text("{}")
    return out


@pytest.mark.parametrize("pattern", ["", "*", "*.jsonl.zst", "shard_00000.jsonl.zst"])
def test_a_repack_that_was_killed_is_not_read(unfinished, pattern):
    with pytest.raises(MissingDataError, match=r"is unfinished.*run millstream repack again"):
        Source(unfinished / pattern)
    with pytest.raises(MissingDataError, match="is unfinished"):
        millstream.TextLoader(unfinished / pattern, "bytes", 1, 4)


def test_a_repack_that_was_killed_at_once_is_not_read(unfinished):
    (unfinished / "shard_00000.jsonl.zst").unlink()
    for kind in (None, "jsonl", "parquet"):
        with pytest.raises(MissingDataError, match="is unfinished"):
            Source(unfinished, kind=kind)


def test_marks_of_a_finished_repack_are_not_data(unfinished):
    (unfinished / "unfinished.json").rename(unfinished / ".finished.json")
    assert [path.rpartition("/")[2] for path in Source(unfinished).files] == [
        "shard_00000.jsonl.zst"
    ]


def test_a_source_is_read_though_a_repack_of_it_goes_on_below_it(unfinished):
    with pytest.warns(match=f"skipped Millstream's own output: {unfinished};"):
        assert len(Source(unfinished.parent, kind="text").files) == 1


@pytest.mark.parametrize("name", ["table.csv", "table.tsv.gz"])
def test_tables_as_text_are_to_be_converted(tmp_path, name):
    (tmp_path / name).write_text("id,text\n1,one\n")
    for source in (tmp_path, tmp_path / name):
        with pytest.raises(
            UsageError, match=r"not supported; convert the file to Parquet or JSONL$"
        ):
            Source(source)


def test_a_misspelt_text_key_of_jsonl_gets_a_hint(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"content": "one"}\n')
    source = Source(tmp_path / "a.jsonl", columns=millstream.Columns(text="contents"))
    with pytest.raises(millstream.errors.FormatError, match="did you mean 'content'"):
        repack(source, tmp_path / "out")
