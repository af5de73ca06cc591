"""`verify` on files of other formats and their companions."""

import shutil
import time

import numpy as np
import pytest

import millstream
from millstream.cli import main
from millstream.converting import convert
from millstream.verifying import find_problems
from tests.helpers.datasets import write_documents


def test_verify_reads_a_file_once_however_many_shards_lie_in_it(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"input_ids": arrow.array([[1, 2, 3]] * 100, arrow.list_(arrow.uint16()))})
    with arrow.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        for batch in table.to_batches(10):
            writer.write_batch(batch)
    data, read = millstream.open(tmp_path / "t.arrow"), []
    assert find_problems(data, progress=read.append) == []
    assert read[-1].done == data.size_bytes


@pytest.mark.parametrize(
    ("to", "name"),
    [("datatrove", "00000.ds.index"), ("datatrove", "00000.ds.loss"), ("megatron", "00000.idx")],
)
def test_verify_finds_a_damaged_companion(tmp_path, to, name):
    data = write_documents(tmp_path / "in", [[k] * 5 for k in range(20)], masked=to == "datatrove")
    convert(data, tmp_path / "out", to)
    path = tmp_path / "out" / name
    if name.endswith(".idx"):  # one document takes a sequence of the next
        words = np.frombuffer(path.read_bytes()[-8 * 21 :], "<i8").copy()
        words[3] += 1
        path.write_bytes(path.read_bytes()[: -8 * 21] + words.tobytes())
    elif name.endswith(".index"):
        ends = np.fromfile(path, "<u8")
        ends[3] += 1
        ends.tofile(path)
    else:
        path.write_bytes(bytes(100))
    assert find_problems(millstream.open(tmp_path / "out")) != []


def test_verify_does_not_claim_checksums_that_are_not_there(tmp_path, capsys):
    np.arange(9, dtype="<u2").tofile(tmp_path / "t.bin")
    assert main(["verify", str(tmp_path / "t.bin")]) == 0
    assert "checksums" not in capsys.readouterr().out


def test_an_error_ends_the_other_shards_too(tmp_path):
    np.zeros(40_000_000, "<u2").tofile(tmp_path / "t.bin")
    data, seen = millstream.open(tmp_path / "t.bin"), []

    def interrupt(progress):
        seen.append(progress.done)
        if len(seen) == 1:
            raise KeyboardInterrupt
        time.sleep(0.05)  # a whole shard of 77 MiB takes seconds then

    for k in range(3):
        shutil.copy(tmp_path / "t.bin", tmp_path / f"{k}.bin")
    documents = millstream.open(tmp_path / "*.bin")
    with pytest.raises(KeyboardInterrupt):
        convert(
            documents, tmp_path / "out", "llmchnk", workers=2, shard_bytes=1, progress=interrupt
        )
    assert len(seen) < 50, f"{seen[-1]:,} of {data.size_bytes:,} bytes were read after it"


def test_verify_finds_a_changed_companion_and_a_changed_table(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = write_documents(tmp_path / "in", [[1, 2, 3], [4], [5, 6]])
    convert(data, tmp_path / "ds", "datatrove")
    text = tmp_path / "ds" / "00000.ds.metadata"
    text.write_bytes(text.read_bytes().replace(b"T", b"U"))
    problems = find_problems(millstream.open(tmp_path / "ds"))
    assert any("00000.ds.metadata: xxh3 is" in each for each in problems)
    convert(data, tmp_path / "mg", "megatron")
    opened = millstream.open(tmp_path / "mg")
    assert find_problems(opened) == []
    (table,) = (tmp_path / "cache" / "millstream" / "tables").iterdir()
    content = bytearray(table.read_bytes())
    content[8] += 1  # the end of the first document
    table.write_bytes(content)
    assert any(
        "remove it, and it is made again" in each
        for each in find_problems(millstream.open(tmp_path / "mg"))
    )
