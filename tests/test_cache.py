"""The user's cache: entries are made once, by one process, and again if damaged."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import millstream
from tests.helpers import paths
from tests.helpers.datasets import documents_of

GOLDEN = paths.GOLDEN / "formats"
CACHED = {
    "decoded": GOLDEN / "arrow" / "list_int32.parquet",
    "tables": GOLDEN / "megatron" / "multi.bin",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "millstream"


@pytest.mark.parametrize("kind", CACHED)
def test_a_damaged_copy_is_made_again(cache, kind):
    expected = documents_of(millstream.open(CACHED[kind]))
    files = sorted(path for path in (cache / kind).rglob("*") if path.is_file())
    assert files
    for file in files:
        whole = file.read_bytes()
        for damaged in (whole[:-1], whole + b"\0", b"", whole[: len(whole) // 2]):
            file.write_bytes(damaged)
            assert documents_of(millstream.open(CACHED[kind])) == expected
            if file.suffix not in (".json", ".checksums"):
                assert file.read_bytes() == whole


SLOW = """
import os, signal, sys
import millstream
from millstream.atomic import NewFile
finish = NewFile.finish
def finish_or_die(self):
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(sys.argv[3], "a") as log:
        print(os.getpid(), file=log)
    return finish(self)
NewFile.finish = finish_or_die
data = millstream.open(sys.argv[1])
print([data.document(k).tolist() for k in range(data.num_documents)])
"""


def start(path, how, log):
    command = [sys.executable, "-c", SLOW, str(path), how, str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


@pytest.mark.process
@pytest.mark.parametrize("kind", CACHED)
def test_a_process_that_dies_while_it_makes_one_leaves_nothing_that_misleads(kind, tmp_path):
    with start(CACHED[kind], "die", tmp_path / "log") as process:
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert documents_of(millstream.open(CACHED[kind]))


@pytest.mark.process
@pytest.mark.parametrize("kind", CACHED)
def test_of_many_processes_one_makes_it(kind, tmp_path):
    processes = [start(CACHED[kind], "live", tmp_path / "log") for _ in range(4)]
    outputs = {process.communicate(timeout=100)[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert len(outputs) == 1
    assert len(set((tmp_path / "log").read_text().split())) == 1


def test_a_file_that_changed_is_decoded_again_even_if_its_time_was_set_back(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, columns = tmp_path / "t.parquet", arrow.list_(arrow.uint16())
    parquet.write_table(arrow.table({"input_ids": arrow.array([[1, 2]], columns)}), path)
    assert documents_of(millstream.open(path)) == [[1, 2]]
    before = path.stat()
    parquet.write_table(arrow.table({"input_ids": arrow.array([[3, 4]], columns)}), path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert documents_of(millstream.open(path)) == [[3, 4]]


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        millstream.MillstreamError, match="set XDG_CACHE_HOME to a writable directory"
    ):
        documents_of(millstream.open(CACHED["decoded"]))
    data = millstream.open(CACHED["tables"])  # windows need no table
    assert data.windows(4)[0]["input_ids"].dtype == np.int64
