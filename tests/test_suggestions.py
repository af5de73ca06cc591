"""Hints for misspelt names."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream
from millstream.arguments import one_of
from millstream.cli import main
from millstream.errors import MillstreamError, UsageError
from millstream.suggestions import did_you_mean, did_you_mean_path

KNOWN = ("input_ids", "labels", "position_ids", "Text")


@pytest.mark.parametrize(
    ("word", "close"),
    [
        ("input_id", "input_ids"),
        ("lables", "labels"),
        ("position-ids", "position_ids"),
        ("INPUT_IDS", "input_ids"),
        ("text", "Text"),
    ],
)
def test_a_misspelt_name_gets_the_closest_known_one(word: str, close: str) -> None:
    assert did_you_mean(word, KNOWN) == f"; did you mean {close!r}?"


@pytest.mark.parametrize("word", ["", "zzz", "tokens", "labels"])
def test_a_name_that_is_far_from_all_or_known_gets_no_hint(word: str) -> None:
    assert did_you_mean(word, KNOWN) == ""


def test_no_name_is_close_to_an_empty_list() -> None:
    assert did_you_mean("labels", []) == ""


@pytest.mark.process
def test_importing_it_imports_nothing_heavy() -> None:
    code = "import sys, millstream.suggestions; print('difflib' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_a_path_that_is_not_there_gets_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "fineweb").mkdir()
    assert did_you_mean_path(tmp_path / "finweb") == "; did you mean 'fineweb'?"
    assert did_you_mean_path(tmp_path / "nowhere" / "finweb") == ""


# Where names are looked up


@pytest.fixture
def data(tmp_path: Path) -> millstream.Dataset:
    fields = [("token", "<u2"), ("loss_mask", "u1")]
    with millstream.Writer(tmp_path / "data", fields=fields) as writer:
        writer.append({"token": range(20), "loss_mask": [1] * 20})
    return millstream.open(tmp_path / "data")


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "extra": (lambda data: data.windows(4, extras=["position_id"]), "position_ids"),
    "loss mask": (lambda data: data.windows(4, loss_mask="los_mask"), "loss_mask"),
    "policy": (lambda data: data.packed(4, policy="bestfit"), "best_fit"),
    "overflow": (lambda data: data.documents(4, overflow="trunc"), "truncate"),
    "output": (lambda data: millstream.Loader(data.windows(4), 2, output="numy"), "numpy"),
    "access": (lambda data: millstream.open("x", access="map"), "mmap"),
    "format": (lambda data: millstream.open(data.shards[0].directory, format="parqet"), "parquet"),
    "token type": (
        lambda data: millstream.open(data.shards[0].path(".stream"), format="flat:unit16"),
        "uint16",
    ),
    "path": (lambda data: millstream.open(f"{data.shards[0].directory}a"), "data"),
    "convert": (lambda data: millstream.convert(data, "x", to="megatrn"), "megatron"),
    "engine": (lambda data: millstream.load_tokenizer("bytes", "fats"), "fast"),
    "tokenizer": (lambda data: millstream.load_tokenizer("byte"), "bytes"),
    "packing": (lambda data: millstream.Packing(policy="bos_bestfit"), "bos_best_fit"),
    "add": (lambda data: millstream.Packing(add="boths"), "both"),
    "tail": (
        lambda data: millstream.TextLoader(
            millstream.Source(__file__, kind="text"), "bytes", 1, 4, tail="kep"
        ),
        "keep",
    ),
    "pattern": (lambda data: millstream.train_tokenizer(["x"], 300, pattern="nanchat"), "nanochat"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_misspelt_argument_gets_a_hint(data: millstream.Dataset, what: str) -> None:
    wrong, meant = WRONG[what]
    with pytest.raises(MillstreamError, match=f"did you mean '{meant}'"):
        wrong(data)


def test_one_of_takes_no_value_that_is_no_word() -> None:
    for value in (None, 3, ["drop"], np.array(["drop"])):
        with pytest.raises(UsageError, match=r"tail is .*; it must be 'drop' or 'keep'"):
            one_of("tail", value, ("drop", "keep"))
    assert one_of("tail", "drop", ("drop", "keep")) == "drop"


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_misspelt_text_column_gets_a_hint(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"corpus.{kind}"
    if kind == "jsonl":
        path.write_text('{"content": "a"}\n')
    else:
        pq.write_table(pa.table({"content": ["a"]}), path)
    source = millstream.Source(path, columns=millstream.Columns(text="contnt"))
    with pytest.raises(MillstreamError, match="did you mean 'content'"):
        millstream.tokenize(source, "bytes", tmp_path / "out", workers=1)


def test_a_key_of_metadata_that_no_object_has_is_noticed(tmp_path: Path) -> None:
    for number, url in enumerate(["", '"url": "u", ', ""]):
        line = f'{{{url}"text": "a", "license": "MIT"}}\n'
        (tmp_path / f"{number}.jsonl").write_text(line * 3 + "broken\n")
    source = millstream.Source(
        tmp_path, columns=millstream.Columns(metadata=("licence", "license")), bad_rows="skip"
    )
    with pytest.warns(UserWarning, match=r"the key 'licence'; .*did you mean 'license'") as noticed:
        millstream.tokenize(source, "bytes", tmp_path / "out", workers=1)
    assert len(noticed) == 1
    assert noticed[0].filename == __file__
    with pytest.warns(UserWarning, match="the key 'licence'"):
        millstream.repack(source, tmp_path / "packed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tokenise x", "millstream: argument COMMAND: 'tokenise' is not one of .*mean 'tokenize'"),
        ("--versoin", "millstream: unknown option --versoin; did you mean '--version'"),
        (
            "tokenize x --tokeniser=t --out d",
            "unknown option --tokeniser; did you mean '--tokenizer'",
        ),
        ("inspect d --sequence-len 5", "unknown option --sequence-len; did you mean '--seq-len'"),
        ("inspect d --seq 5", "unknown option --seq; did you mean '--seq-len'"),
        ("inspect d --view packd", "--view: 'packd' is not one of .*; did you mean 'packed'"),
        ("inspect d --seq-len two", "--seq-len: 'two' is not a positive integer"),
        ("demo x", "millstream demo: unexpected argument: x "),
        ("inspect", "the following arguments are required: DATA"),
    ],
)
def test_the_command_line_says_in_one_line_what_may_be_meant(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)
    assert line.endswith("--help)")


def test_the_command_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "millstream demo" in capsys.readouterr().out


@pytest.mark.process
def test_a_misspelt_name_of_the_package_is_python_s_to_guess() -> None:
    code = "import millstream; millstream.opn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Did you mean: 'open'" in done.stderr
