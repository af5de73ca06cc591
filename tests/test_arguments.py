"""Wrong arguments are refused with a remedy."""

from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cli import main
from millstream.errors import UsageError


@pytest.fixture
def data(tmp_path: Path) -> millstream.Dataset:
    with millstream.Writer(tmp_path / "data", vocab_size=50) as writer:
        writer.append(range(50))
    return millstream.open(tmp_path / "data")


@pytest.mark.parametrize("source", [None, 3, b"data", [3], object()])
def test_what_is_no_path_is_not_opened(source: Any) -> None:
    with pytest.raises(UsageError, match="open takes a path, a pattern, or a list of them, not"):
        millstream.open(source)


@pytest.mark.parametrize("extras", [None, 3, True])
def test_extras_are_names(data: millstream.Dataset, extras: Any) -> None:
    with pytest.raises(UsageError, match=r"extras is .*; it must be a list of names"):
        data.windows(4, extras=extras)


def test_a_loss_mask_is_a_name(data: millstream.Dataset) -> None:
    wrong: Any = True
    with pytest.raises(UsageError, match=r"loss_mask is True; the records have \['token'\]"):
        data.windows(4, loss_mask=wrong)


def test_a_writer_notes_a_tokenizer_as_strings(tmp_path: Path) -> None:
    wrong: Any = "gpt2"
    with pytest.raises(UsageError, match="tokenizer is 'gpt2'; it must be a dict of strings"):
        millstream.Writer(tmp_path / "out", vocab_size=9, tokenizer=wrong)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("task", [3, "0/3", (1, 2, 3)])
def test_a_share_of_tasks_is_two_numbers(tmp_path: Path, task: Any) -> None:
    with pytest.raises(UsageError, match=r"task is .*; it must be \(i, n\)"):
        millstream.tokenize(__file__, "bytes", tmp_path / "out", task=task)


@pytest.mark.parametrize("columns", ["text", {"text": "body"}])
def test_columns_are_columns(tmp_path: Path, columns: Any) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(UsageError, match=r"columns must be a Columns, .*; found"):
        millstream.Source(tmp_path / "a.jsonl", columns=columns)


def test_one_name_of_metadata_is_not_its_letters() -> None:
    one: Any = "url"
    assert millstream.Columns(metadata=one).metadata == ("url",)
    wrong: Any = [3]
    with pytest.raises(UsageError, match="column names must be strings; found 3"):
        millstream.Columns(metadata=wrong)


def test_convert_takes_an_open_dataset(tmp_path: Path) -> None:
    path: Any = "data"
    with pytest.raises(UsageError, match=r"an open dataset; pass millstream.open\('data'\)"):
        millstream.convert(path, tmp_path / "out", to="flat")


def test_what_decode_takes_are_ids() -> None:
    text: Any = "hello"
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        millstream.load_tokenizer("bytes").decode(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "tokenize a.csv --tokenizer bytes --out out",
            "not supported; convert the file to Parquet or JSONL",
        ),
        ("tokenize a.txt --tokenizer bytes --out out --text body", "leave out columns=… (--text,"),
        ("tokenize a.txt --tokenizer gpt2 --out out", "millstream fetch gets a tokenizer.json"),
        (
            "tokenize a.txt --tokenizer bytes --out out --val-count 1 --split-by url",
            "no column is (--metadata)",
        ),
        (
            "tokenize a.txt --tokenizer bytes --out a.csv",
            "is a file, not a directory; choose another path",
        ),
        (
            "tokenize a.json --tokenizer bytes --out out",
            "expected one object per line; convert it with jq",
        ),
        ("repack a.json --out out --bad-rows skip", "jq -c '.[]'"),
        ("convert data out --to llmbatch", "(--seq-len, --batch-size)"),
        ("finish dat", "no such directory; did you mean 'data'?"),
    ],
)
def test_commands_say_which_option_helps(
    data: millstream.Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "a.txt"):
        Path(name).write_text("a line\n")
    Path("a.json").write_text('[\n {"text": "one"},\n {"text": "two"}\n]\n')
    assert main(arguments.split()) == 1
    assert message in capsys.readouterr().err
    assert not Path("out").exists()
