"""Commands run again: when finished, with other options, after a failure."""

import json
import os

import pytest

import millstream
from millstream.cli import main
from millstream.converting import convert
from millstream.errors import DatasetExistsError
from millstream.text.repacking import repack
from millstream.text.sources import Source


def state_of(directory):
    """Every file with its content and its time."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def dataset(path, documents=((1, 2, 3), (4, 5))):
    with millstream.Writer(path, vocab_size=100) as writer:
        for document in documents:
            writer.append(document)
    return millstream.open(path)


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines of text.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    return path


@pytest.mark.parametrize("shuffle", [None, 3])
def test_a_finished_repack_says_so_and_writes_nothing(tmp_path, lines, capsys, shuffle):
    out = tmp_path / "out"
    first = repack(lines, out, shuffle=shuffle)
    before = state_of(out)
    again = repack(lines, out, shuffle=shuffle, workers=1)
    assert (again.was_finished, first.was_finished) == (True, False)
    assert (again.files, again.num_characters) == (first.files, first.num_characters)
    command = ["repack", str(lines), "--out", str(out), "--bad-rows", "skip"]
    assert main([*command, *([] if shuffle is None else ["--shuffle", "3"])]) == 0
    assert "already complete; nothing was written" in capsys.readouterr().out
    assert state_of(out) == before


def test_a_finished_repack_notices_that_something_else_is_wanted(tmp_path, lines):
    out = tmp_path / "out"
    repack(lines, out)
    for options, difference in [
        ({"to": "jsonl"}, "to is parquet there, jsonl here"),
        ({"shuffle": 1}, "shuffle is None there, 1 here"),
        ({"shard_chars": 5}, "shard_chars is 250000000 there, 5 here"),
    ]:
        with pytest.raises(DatasetExistsError, match=f"{difference}; choose another path"):
            repack(lines, out, **options)
    (tmp_path / "more.jsonl").write_text('{"text": "three"}')
    with pytest.raises(DatasetExistsError, match=r"more\.jsonl was not among the files"):
        repack([lines, tmp_path / "more.jsonl"], out)
    lines.write_text('{"text": "three"}')
    with pytest.raises(DatasetExistsError, match=r"lines of text\.jsonl has changed since"):
        repack(lines, out)
    with pytest.raises(DatasetExistsError, match="documents that come from Python cannot be"):
        repack(Source.from_documents(["one"]), out)


def test_what_was_noted_is_not_taken_for_data(tmp_path, lines):
    report = repack(lines, tmp_path / "out")
    everything = sorted((tmp_path / "out").iterdir())
    assert Source(everything).files == tuple(map(str, report.files))
    assert Source(tmp_path / "out").files == tuple(map(str, report.files))
    with pytest.raises(millstream.errors.MissingDataError, match="not a file of text"):
        Source(tmp_path / "out" / ".finished.json")
    convert(dataset(tmp_path / "in"), tmp_path / "flat", "flat")
    assert millstream.open(sorted((tmp_path / "flat").iterdir())).num_records == 5


@pytest.mark.parametrize("options", [{"to": "flat"}, {"to": "millstream", "shard_bytes": 2}])
def test_a_finished_convert_says_so_and_writes_nothing(tmp_path, options):
    data, out = dataset(tmp_path / "in"), tmp_path / "out"
    first = convert(data, out, **options)
    before = state_of(out)
    again = convert(millstream.open(tmp_path / "in"), out, **options)
    assert (again.was_finished, first.was_finished) == (True, False)
    assert (again.files, again.size_bytes, again.lost) == (
        first.files,
        first.size_bytes,
        first.lost,
    )
    assert state_of(out) == before


def test_a_finished_convert_with_a_seed_says_so(tmp_path):
    data = dataset(tmp_path / "in")
    options = {"to": "llmbatch", "seq_len": 2, "batch_size": 1, "seed": 5}
    first = convert(data, tmp_path / "out", **options)
    assert convert(data, tmp_path / "out", **options).files == first.files
    with pytest.raises(DatasetExistsError, match="seed is 5 there, 6 here"):
        convert(data, tmp_path / "out", **options | {"seed": 6})


def test_a_finished_convert_notices_that_something_else_is_wanted(tmp_path):
    data, out = dataset(tmp_path / "in"), tmp_path / "out"
    convert(data, out, "flat")
    with pytest.raises(DatasetExistsError, match="shard_bytes is 1073741824 there, 8 here"):
        convert(data, out, "flat", shard_bytes=8)
    other = dataset(tmp_path / "other", [[1, 2, 3], [4, 6]])
    with pytest.raises(DatasetExistsError, match="source is different, or has changed"):
        convert(other, out, "flat")


def test_what_another_command_made_is_not_called_done(tmp_path, lines):
    repack(lines, tmp_path / "text")
    with pytest.raises(
        DatasetExistsError, match="holds the result of another job: by another command"
    ):
        convert(dataset(tmp_path / "in"), tmp_path / "text", "flat")
    convert(dataset(tmp_path / "other"), tmp_path / "flat", "flat")
    with pytest.raises(
        DatasetExistsError, match="holds the result of another job: by another command"
    ):
        repack(lines, tmp_path / "flat")


def test_what_was_finished_and_is_harmed_is_not_called_done(tmp_path, lines):
    data = dataset(tmp_path / "in")
    for out, again in [
        (tmp_path / "a", lambda: repack(lines, tmp_path / "a")),
        (tmp_path / "b", lambda: convert(data, tmp_path / "b", "flat")),
    ]:
        file = again().files[0]
        content = file.read_bytes()
        for harm in (file.unlink, lambda file=file, content=content: file.write_bytes(content[1:])):
            harm()
            with pytest.raises(DatasetExistsError, match="missing, or changed since it was"):
                again()
        (out / ".finished.json").write_text("[]")
        with pytest.raises(DatasetExistsError, match=f"remove {out} to write all of it again"):
            again()
        (out / ".finished.json").unlink()
        os.mkfifo(out / ".finished.json")
        with pytest.raises(DatasetExistsError, match="cannot be read"):
            again()


@pytest.mark.parametrize(
    ("to", "name"),
    [("millstream", "millstream.json"), ("megatron", "files.json")],
)
def test_a_finished_convert_without_its_manifest_is_not_called_done(tmp_path, lines, to, name):
    millstream.tokenize(lines, "bytes", tmp_path / "in")
    data, out = millstream.open(tmp_path / "in"), tmp_path / "out"
    convert(data, out, to)
    (out / name).unlink()
    with pytest.raises(DatasetExistsError, match=f"{name}: missing, or changed"):
        convert(data, out, to)


def test_a_plan_or_report_that_is_a_pipe_does_not_block(tmp_path, lines):
    for name in ("plan.json", "report.json"):
        out = tmp_path / name
        out.mkdir()
        os.mkfifo(out / name)
        with pytest.raises(millstream.errors.MillstreamError):
            millstream.tokenize(lines, "bytes", out)


def test_a_run_killed_before_its_marks_went_is_finished(tmp_path, lines):
    out = tmp_path / "out"
    first = repack(lines, out)
    marks = ["tasks/00000.json", "unshuffled/millstream.json", "unfinished.json"]
    while marks:
        for name in marks:
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_text("{}")
        assert repack(lines, out).files == first.files
        shard = ["shard_00000.checksums", "shard_00000.parquet"]
        assert sorted(os.listdir(out)) == [".finished.json", *shard]
        del marks[0]


def test_a_tokenize_killed_before_its_plan_went_is_finished(tmp_path, lines):
    out = tmp_path / "out"
    millstream.tokenize(lines, "bytes", out, task=(0, 1))
    plan = (out / "plan.json").read_bytes()
    report = millstream.finish(out)
    for again in (millstream.finish, lambda out: millstream.tokenize(lines, "bytes", out)):
        (out / "plan.json").write_bytes(plan)
        assert again(out) == report
        assert not [*out.glob("plan.json"), *out.glob("tasks")]


@pytest.mark.parametrize("options", [["repack"], ["tokenize", "--tokenizer", "bytes"]])
def test_a_folder_called_tasks_of_somebody_else_is_kept(tmp_path, lines, options, capsys):
    mine = tmp_path / "out" / "tasks" / "monday.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert main([*options, str(lines), "--out", str(tmp_path / "out")]) == 1
    assert "is not empty (tasks/monday.txt is there)" in capsys.readouterr().err
    assert mine.read_text() == "mine"


def test_bad_rows_may_be_skipped_by_the_call_that_goes_on(tmp_path):
    rows = ['{"text": "%s"}' % ("x" * 100)] * 50 + ["{broken"]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    with pytest.raises(millstream.errors.FormatError, match="bad_rows='skip'"):
        repack(tmp_path / "a.jsonl", tmp_path / "out", shard_chars=1000, workers=1)
    assert list((tmp_path / "out" / "tasks").glob("*.json"))
    source = Source(tmp_path / "a.jsonl", bad_rows="skip")
    report = repack(source, tmp_path / "out", shard_chars=1000, workers=1)
    assert (report.num_documents, report.skipped) == (50, 1)


def test_a_finished_tokenize_says_so_and_writes_nothing(tmp_path, lines, capsys):
    out = tmp_path / "out"
    command = ["tokenize", str(lines), "--tokenizer", "bytes", "--out", str(out)]
    assert main(command) == 0
    assert "already complete" not in capsys.readouterr().out
    before = state_of(out)
    assert main(command) == 0
    assert "already complete; nothing was written" in capsys.readouterr().out
    assert millstream.tokenize(lines, "bytes", out).was_finished
    assert state_of(out) == before


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "command", [["tokenize", "--tokenizer", "bytes"], ["repack", "--to", "jsonl"]]
)
def test_the_output_may_lie_inside_the_source(lines, command, capsys):
    source, out = lines.parent, lines.parent / "out"
    arguments = [*command, str(source), "--out", str(out)]
    assert main(arguments) == 0
    before = state_of(out)
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "already complete; nothing was written" in captured.out
    assert f"skipped Millstream's own output: {out};" in captured.err
    assert state_of(out) == before


def test_parts_that_are_joined_already_are_no_error_of_the_command(tmp_path, capsys):
    with millstream.Writer(tmp_path, vocab_size=10, part=0) as writer:
        writer.append([1])
    assert main(["finish", str(tmp_path)]) == 0
    assert "the parts are joined" in capsys.readouterr().out
    before = state_of(tmp_path)
    assert main(["finish", str(tmp_path)]) == 0
    assert "already complete; nothing was written" in capsys.readouterr().out
    assert state_of(tmp_path) == before


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_shares_of_tasks_may_be_written_inside_the_source(lines):
    source, out = lines.parent, lines.parent / "out"
    lines.write_text('{"text": "some words"}\n' * 30)
    arguments = ["tokenize", str(source), "--tokenizer", "bytes", "--out", str(out)]
    for share in range(3):
        assert main([*arguments, "--task-bytes", "100", "--task", f"{share}/3"]) == 0
    assert main(["finish", str(out)]) == 0
    assert millstream.open(out).num_documents == 30
    assert main([*arguments, "--task-bytes", "100", "--task", "1/3"]) == 0


def test_a_finished_tokenize_says_what_differs(tmp_path, lines):
    out = tmp_path / "out"
    millstream.tokenize(lines, "bytes", out)
    with pytest.raises(
        DatasetExistsError,
        match=r"job: add is eos there, none here; shuffle is None there, 3",
    ):
        millstream.tokenize(lines, "bytes", out, add="none", shuffle=3)
    lines.write_text('{"text": "other"}')
    with pytest.raises(DatasetExistsError, match="job: other files, or changed ones; choose"):
        millstream.tokenize(lines, "bytes", out)
    report = json.loads((out / "report.json").read_text())
    del report["options"]  # as older versions wrote it
    (out / "report.json").write_text(json.dumps(report))
    with pytest.raises(DatasetExistsError, match="job: of other files or options; choose"):
        millstream.tokenize(lines, "bytes", out)
