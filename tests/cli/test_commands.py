"""The command line: output, exit codes and one-line errors."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import millstream
from millstream.cli import main
from tests.helpers.datasets import write_dataset


@pytest.fixture
def path(tmp_path, tokens):
    write_dataset(tmp_path / "set", tokens, cuts=[400])
    return str(tmp_path / "set")


@pytest.mark.process
def test_help_shows_examples_and_imports_nothing_heavy():
    program = (
        "import sys; from millstream.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'torch', 'rich', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "millstream audit data/fineweb" in result.stdout


def test_pack_prints_a_path_that_can_be_copied(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["pack", path, "--seq-len", "64"]) == 0
    (rows,) = Path(path, "plans").glob("*.rows")
    assert str(rows) in capsys.readouterr().out.splitlines()


def test_pack_reports_every_policy_and_stores_the_one_that_is_asked_for(path, capsys, tmp_path):
    assert main(["pack", path, "--seq-len", "64", "--report"]) == 0
    printed = capsys.readouterr().out
    assert "2 documents, 1,003 tokens: 502 on average, 603 at most" in printed
    assert re.search(r"512 to 1,023 +1 +█+ +60.1%", printed)
    assert re.search(r"concat +15 +0.0000% +100.00% +0.00% +42", printed)
    assert re.search(r"best_fit +16 +2.0508% +100.00% +0.00% +0", printed)
    assert re.search(r"best_fit_truncate +2 +0.0000% +100.00% +87.04% +0", printed)
    assert re.search(r"best_fit_drop +0 +0.0000% +0.00% +0.00% +0", printed)
    assert "best_fit_truncate cuts 2 documents; 873 tokens in no row" in printed
    assert "best_fit_drop drops 2 documents with 1,003 tokens" in printed
    assert re.search(r"bos_best_fit +2 +0.0000% +100.00% +87.04% +0", printed)
    assert re.search(r"bos_best_fit_keep +16 +2.0508% +100.00% +0.00% +0", printed)
    assert not (tmp_path / "set" / "plans").exists()
    assert main(["pack", path, "--seq-len", "64"]) == 0
    (stored,) = (tmp_path / "set" / "plans").glob("best_fit-64-*.rows")
    assert stored.name in "".join(capsys.readouterr().out.split())
    assert main(["pack", path, "--seq-len", "500", "--overflow", "drop"]) == 0
    assert "best_fit_drop drops 1 document with 603 tokens" in capsys.readouterr().out
    assert main(["pack", path, "--policy", "bos_best_fit", "--overflow", "drop"]) == 1
    assert "leave out overflow" in capsys.readouterr().err


def test_audit_goes_on_to_the_tokens(path, capsys):
    arguments = ["audit", path, "--seq-len", "64", "--batch-size", "1"]
    assert main([*arguments, "--view", "packed"]) == 0
    assert "1,003 of 1,003 are inputs exactly once" in _output(capsys)
    assert main([*arguments, "--view", "documents"]) == 0
    assert "128 of 1,003 are inputs exactly once, the others never" in _output(capsys)
    assert main(arguments) == 0
    assert "960 of 1,003 are inputs" in _output(capsys)


def test_audit_refuses_an_order_that_a_loader_would_refuse(path, capsys):
    arguments = ["audit", path, "--view", "documents", "--seq-len", "64", "--batch-size", "1"]
    assert main([*arguments, "--shuffle", "lengths:1"]) == 1
    assert "sorted by length" in capsys.readouterr().err
    assert main([*arguments, "--shuffle", "lengths:1", "--by-length"]) == 0


def _output(capsys):
    return capsys.readouterr().out


def test_verify_adds_checksums_to_a_dataset_of_an_older_version(path, capsys):
    companion = Path(path) / "00000.checksums"
    content = companion.read_bytes()
    companion.unlink()
    assert main(["verify", path]) == 0
    assert not companion.exists()
    assert main(["verify", path, "--add-checksums"]) == 0
    assert companion.read_bytes() == content


def test_verify_says_that_all_is_right_or_what_is_wrong(path, tmp_path, capsys):
    assert main(["verify", path]) == 0
    assert "are correct" in capsys.readouterr().out
    shard = tmp_path / "set" / "00001.stream"
    damaged = bytearray(shard.read_bytes())
    damaged[5] ^= 1
    shard.write_bytes(damaged)
    (tmp_path / "set" / "00000.documents").unlink()
    assert main(["verify", path]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"00001\.stream: xxh3 is [0-9a-f]{16}, but the manifest says", printed)
    assert "00000.documents: missing" in printed
    assert "2 problems" in printed


def test_audit_proves_a_run_with_changes(path, capsys):
    arguments = ["audit", path, "--seq-len", "5", "--batch-size", "3", "--ranks", "4"]
    changes = ["--change", "3:ranks=2", "--change", "10:ranks=5,batch=1"]
    assert main([*arguments, *changes, "--epochs", "2", "--tail", "wrap"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("200 of 200 samples served exactly once, none twice") == 2
    assert "from step   10: 5 ranks x 1 rows" in printed


def test_audit_proves_a_run_with_a_schedule_of_global_batch_sizes(path, capsys):
    arguments = ["audit", path, "--seq-len", "5", "--batch-size", "3", "--ranks", "4"]
    sizes = ["--global-batch-size", "0:16,100:40", "--change", "9:ranks=2,global=25"]
    assert main([*arguments, *sizes, "--epochs", "2", "--tail", "wrap"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("200 of 200 samples served exactly once, none twice") == 2
    assert "from step   0: 4 ranks x 3 rows in steps of 0:16,100:40" in printed
    assert "from step   9: 2 ranks x 3 rows in steps of 25" in printed
    assert "steps       18 on every rank" in printed  # 7 of 16, 2 of 40, 9 of 25


def test_audit_refuses_sizes_that_are_not_a_schedule(path, capsys):
    with pytest.raises(SystemExit):
        main(["audit", path, "--global-batch-size", "0:16,40"])
    assert "write it as in 256 or 0:256,100000:512" in capsys.readouterr().err
    assert main(["audit", path, "--seq-len", "5", "--global-batch-size", "5:16"]) == 1
    assert "its first pair must be (0, rows)" in capsys.readouterr().err


@pytest.mark.parametrize("shuffle", ["none", "blocks:7", "inside-blocks:7", "bands:7"])
def test_audit_takes_every_order(path, capsys, shuffle):
    assert main(["audit", path, "--seq-len", "5", "--shuffle", shuffle, "--batch-size", "8"]) == 0
    assert "200 of 200" in capsys.readouterr().out


def test_audit_says_which_changes_were_not_reached(path, capsys):
    assert main(["audit", path, "--seq-len", "5", "--change", "900:ranks=4"]) == 0
    assert "from step   900: 4 ranks x 32 rows  (not reached)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["audit", "--ranks", "0"], ["audit", "--epochs", "-1"], ["bench", "--rounds", "0"]],
)
def test_numbers_that_make_no_sense_are_refused_by_the_parser(path, capsys, arguments):
    with pytest.raises(SystemExit):
        main([arguments[0], path, *arguments[1:]])
    assert "is not a positive integer" in capsys.readouterr().err


def test_names_that_look_like_markup_are_printed_as_they_are(tmp_path, capsys):
    write_dataset(tmp_path / "d", range(10), tokenizer={"name": "gpt[/2]"})
    assert main(["inspect", str(tmp_path / "d"), "--seq-len", "4"]) == 0
    assert "gpt[/2]" in capsys.readouterr().out


def test_bench_measures(path, capsys):
    arguments = ["bench", path, "--seq-len", "5", "--batches", "5", "--rounds", "1", "--cold"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert all(re.search(rf"{name} +│ +[\d,]+ │", printed) for name in ("Loader", "NumPy memmap"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "nowhere"], "nowhere: no such file or directory"),
        (["audit", "{path}", "--change", "5:rank=2"], "write it as in 1000:ranks=4,batch=64"),
        (["audit", "{path}", "--shuffle", "much"], "use global, none, blocks:256"),
        (["audit", "{path}", "--seq-len", "4000"], "no samples"),
        (["verify", "nothing-*"], "the pattern matches nothing"),
        (["audit", "{path}", "--seq-len", "5", "--change", "0:ranks=2"], "from step 1 on"),
        (["audit", "{path}", "--seq-len", "5", "--change", "3:ranks=2,ranks=4"], "write it as"),
        (["audit", "{path}", "--seq-len", "5", "--change", "3:ranks=0"], "ranks is 0"),
        (["inspect", "{path}", "--seq-len", "5", "--sample", "-1"], "there are 200 samples"),
        (["inspect", "{path}", "--seq-len", "5", "--sample", "999"], "there are 200 samples"),
        (["demo", "--dir", "{path}"], "not from an earlier demo"),
        (["demo", "--dir", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_a_users_mistake_is_one_line_and_no_traceback(path, capsys, arguments, words):
    assert main([argument.format(path=path) for argument in arguments]) == 1
    errors = capsys.readouterr().err
    assert words in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ["convert", "missing", "OUT", "--to", "flat"],
        ["convert", "SOURCE", "OUT", "--to", "nothing"],
        ["convert", "SOURCE", "OUT", "--to", "llmbatch"],
        ["repack", "missing.txt", "--out", "OUT"],
        ["tokenize", "TEXT", "--tokenizer", "missing", "--out", "OUT"],
        ["tokenize", "TEXT", "--tokenizer", "bytes", "--out", "OUT", "--val-fraction", "2"],
        ["tokenize", "TEXT", "--tokenizer", "bytes", "--out", "OUT", "--split-by", "id"],
        ["train-tokenizer", "TEXT", "--vocab-size", "5", "--out", "OUT"],
        ["fetch", "not a url", "--out", "OUT"],
        ["pack", "SOURCE", "--seq-len", "4", "--policy", "bos_best_fit", "--buffer-size", "0"],
    ],
)
def test_commands_with_wrong_arguments_leave_nothing(tmp_path, out, command):
    with millstream.Writer(tmp_path / "source", vocab_size=99) as writer:
        writer.append([1, 2, 3])
    (tmp_path / "text.txt").write_text("one\n")
    names = {"OUT": out, "SOURCE": tmp_path / "source", "TEXT": tmp_path / "text.txt"}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        sys.exit(main([str(names.get(word, word)) for word in command]))
    assert ended.value.code != 0
    assert sorted(tmp_path.rglob("*")) == before


def test_verify_checks_several_datasets_one_by_one(tmp_path, capsys):
    for name, fields in (("a", None), ("b", [("token", "<u4"), ("concept", "<u2")])):
        with millstream.Writer(
            tmp_path / name, vocab_size=None if fields else 9, fields=fields
        ) as writer:
            tokens = np.arange(5)
            writer.append({"token": tokens, "concept": tokens} if fields else tokens)
    assert main(["verify", f"{tmp_path}/*"]) == 0
    assert capsys.readouterr().out.count("are correct") == 2
    (tmp_path / "b" / "00000.stream").write_bytes(bytes(30))
    assert main(["verify", f"{tmp_path}/a", f"{tmp_path}/b"]) == 1
