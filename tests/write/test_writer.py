"""`Writer`: the files that it writes, and that no failure leaves half a dataset."""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import millstream
from millstream.errors import (
    DatasetExistsError,
    FormatError,
    MillstreamError,
    MissingDataError,
    UsageError,
)
from millstream.verifying import find_problems
from tests.helpers.programs import run_python

TOKEN_AND_CONCEPT = [("token", "<u4"), ("concept", "<u2")]


@pytest.fixture
def quick_path():
    """A directory in memory where the system has one: hundreds of syncs cost nothing there."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


ONE_SHARD = [
    "00000.checksums",
    "00000.documents",
    "00000.stream",
    "millstream.checksums",
    "millstream.json",
]


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def write(path, *documents, **options):
    options.setdefault("vocab_size", 100)
    with millstream.Writer(path, **options) as writer:
        for document in documents:
            writer.append(document)
    return path


def tokens_of(path):
    data = millstream.open(path)
    return data.records(0, data.num_records).tolist()


# What is on disk


def test_the_bytes_of_a_written_dataset_never_change(tmp_path):
    # A user's data outlive our release: change these bytes only with a new format version.
    fields = [("token", "<u4"), ("concept", "<u2"), ("frame", "|u1", (2,))]
    with millstream.Writer(
        tmp_path,
        fields=fields,
        vocab_size=70_000,
        metadata=str.encode,
        shard_bytes=25,
        tokenizer={"name": "gpt2", "hash": "ab"},
        bos_id=1,
        eos_id=2,
    ) as writer:
        first = {"token": [1, 65_536], "concept": [2, 3], "frame": [[4, 5], [6, 7]]}
        writer.append(first, "whole")
        second = {"token": [9, 8, 7], "concept": [0, 0, 1], "frame": [[1, 1], [2, 2], [3, 3]]}
        writer.append(second, spans=[(1, 2, "é"), (2, 3, "")])
        writer.append({"token": [5], "concept": [6], "frame": [[7, 8]]})
    hexes = {
        path.name: path.read_bytes().hex()
        for path in tmp_path.iterdir()
        if path.suffix not in (".json", ".checksums")
    }
    assert hexes == {
        "00000.stream": (
            "01000000020004050000000000000100030006070000000009000000000001 01ffffffff"
            "0800000000000202010000000700000001000303 02000000"
        ).replace(" ", ""),
        "00000.documents": "000000000000000002000000000000000500000000000000",
        "00000.index": "0000000000000000050000000000000007000000000000000700000000000000",
        "00000.metadata": "77686f6c65c3a9",
        "00001.stream": "0500000006000708ffffffff",
        "00001.documents": "00000000000000000100000000000000",
        "00001.index": "0000000000000000",
        "00001.metadata": "",
    }
    assert (tmp_path / "millstream.json").read_text() == GOLDEN_MANIFEST
    line, rest = (tmp_path / "00000.checksums").read_bytes().split(b"\n", 1)
    assert line.decode() == GOLDEN_CHECKSUMS
    assert rest.hex() == "ac65b4f3a97e2e0de2da9cfd0e85e3d1339ad25b7b296404"


GOLDEN_CHECKSUMS = (
    '{"format": "millstream-checksums", "version": 1, "block_bytes": 4096, '
    '"files": {"00000.stream": {"bytes": 60, "xxh3": "b4c15b72427c363c"}, '
    '"00000.documents": {"bytes": 24, "xxh3": "a51e3e4f43939743"}, '
    '"00000.index": {"bytes": 32, "xxh3": "c16e88d540339ce0"}, '
    '"00000.metadata": {"bytes": 7, "xxh3": "b1265650012fe262"}}}'
)
GOLDEN_MANIFEST = """\
{
 "format": "millstream-stream",
 "version": 1,
 "fields": [
  [
   "token",
   "<u4"
  ],
  [
   "concept",
   "<u2"
  ],
  [
   "frame",
   "|u1",
   [
    2
   ]
  ],
  [
   "metadata_id",
   "<u4"
  ]
 ],
 "vocab_size": 70000,
 "tokenizer": {
  "name": "gpt2",
  "hash": "ab"
 },
 "bos_id": 1,
 "eos_id": 2,
 "shards": [
  {"name": "00000", "records": 5, "documents": 2, "spans": 3, "files": {".stream": {"bytes": 60, "xxh3": "b4c15b72427c363c"}, ".documents": {"bytes": 24, "xxh3": "a51e3e4f43939743"}, ".index": {"bytes": 32, "xxh3": "c16e88d540339ce0"}, ".metadata": {"bytes": 7, "xxh3": "b1265650012fe262"}}},
  {"name": "00001", "records": 1, "documents": 1, "spans": 0, "files": {".stream": {"bytes": 12, "xxh3": "9b174cf36d2a8cd7"}, ".documents": {"bytes": 16, "xxh3": "0cfbaea74a8cc0e5"}, ".index": {"bytes": 8, "xxh3": "c77b3abb6f87acd9"}, ".metadata": {"bytes": 0, "xxh3": "2d06800538d394c2"}}}
 ]
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("vocab_size", "width"),
    [(1, 2), (65_536, 2), (65_537, 4), (1 << 32, 4), ((1 << 32) + 1, 8), ((1 << 63) - 1, 8)],
)
def test_the_token_width_follows_from_the_vocabulary(tmp_path, vocab_size, width):
    write(tmp_path, [0, vocab_size - 1], vocab_size=vocab_size)
    data = millstream.open(tmp_path)
    assert data.fields == np.dtype([("token", f"<u{width}")])
    assert data.records(0, 2).tolist() == [0, vocab_size - 1]


def test_a_given_width_wins_over_the_vocabulary(tmp_path):
    write(tmp_path, [7], vocab_size=100, fields="<u4")
    assert millstream.open(tmp_path).fields["token"] == np.uint32


def test_a_shard_ends_with_the_document_that_fills_it(tmp_path):
    write(tmp_path, [1] * 3, [2] * 3, [3], [4], shard_bytes=8)
    shards = millstream.open(tmp_path).shards
    assert [(shard.num_records, shard.num_documents) for shard in shards] == [(6, 2), (2, 2)]


def test_a_dataset_without_documents_is_a_dataset(tmp_path):
    data = millstream.open(write(tmp_path))
    assert (data.num_records, data.num_documents, data.shards) == (0, 0, ())
    assert data.records(0, 10).tolist() == []
    assert find_problems(data) == []


def test_empty_documents_count_as_documents(tmp_path):
    data = millstream.open(write(tmp_path, [], [5], [], []))
    assert (data.num_records, data.num_documents) == (1, 4)
    offsets = np.fromfile(tmp_path / "00000.documents", "<u8")
    assert offsets.tolist() == [0, 0, 1, 1, 1]


def test_metadata_of_every_record_can_be_found_again(tmp_path):
    spans = [[(0, 2, "a"), (3, 4, "bc")], [], [(0, 1, "")], [(1, 3, "é"), (0, 1, "first")]]
    with millstream.Writer(tmp_path, vocab_size=9, metadata=str.encode, shard_bytes=20) as writer:
        for each in spans:
            writer.append([1, 2, 3, 4], spans=each)
    expected = ["a", "a", None, "bc"] + [None] * 4 + ["", None, None, None]
    expected += ["first", "é", "é", None]
    found = []
    data = millstream.open(tmp_path)
    for shard in data.shards:
        ids = np.fromfile(shard.path(".stream"), data.fields)["metadata_id"]
        index = np.fromfile(shard.path(".index"), "<u8").tolist()
        blob = shard.path(".metadata").read_bytes()
        for k in ids.tolist():
            text = None if k == 0xFFFF_FFFF else blob[index[k] : index[k + 1]].decode()
            found.append(text)
    assert len(data.shards) > 1
    assert found == expected
    assert find_problems(data) == []


def test_nothing_but_the_dataset_is_left_in_the_directory(tmp_path):
    write(tmp_path, [1], [2])
    assert names_in(tmp_path) == ONE_SHARD


METADATA_FILES = ["00000.index", "00000.metadata"]


@pytest.mark.parametrize("kind", ["tokens", "objects"])
def test_without_metadata_there_are_no_files_for_it(tmp_path, kind):
    tokens = {"vocab_size": 100}
    options, document = (tokens, [1, 2]) if kind == "tokens" else ({"encode": bytes}, b"\1\2")
    with millstream.Writer(tmp_path / "plain", **options) as writer:
        writer.append(document)
    with millstream.Writer(tmp_path / "more", **options, metadata=bytes) as writer:
        writer.append(document, b"m")
    assert names_in(tmp_path / "plain") == ONE_SHARD
    assert names_in(tmp_path / "more") == sorted([*ONE_SHARD, *METADATA_FILES])


@pytest.mark.parametrize("kind", [np.int64, np.uint16, np.uint64])
def test_numpy_integers_are_as_good_as_python_ones(tmp_path, kind):
    write(tmp_path, [1, 2], vocab_size=kind(100), bos_id=kind(1), eos_id=kind(2))
    manifest = json.loads((tmp_path / "millstream.json").read_text())
    assert (manifest["vocab_size"], manifest["bos_id"], manifest["eos_id"]) == (100, 1, 2)
    assert tokens_of(tmp_path) == [1, 2]


# Several processes

WRITE_PART = """
import sys, millstream
path, part = sys.argv[1], int(sys.argv[2])
with millstream.Writer(path, vocab_size=1000, part=part, shard_bytes=40) as writer:
    for k in range(30):
        writer.append([part * 100 + k] * 7)
"""


@pytest.mark.process
def test_processes_write_their_parts_of_one_dataset_at_once(tmp_path):
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITE_PART, str(tmp_path), str(part)])
        for part in range(4)
    ]
    assert [process.wait(60) for process in processes] == [0] * 4
    with pytest.raises(MissingDataError, match=r"finished parts but no millstream\.json"):
        millstream.open(tmp_path)
    millstream.finish(tmp_path, parts=4)
    expected = [part * 100 + k for part in range(4) for k in range(30) for _ in range(7)]
    assert tokens_of(tmp_path) == expected
    assert find_problems(millstream.open(tmp_path)) == []
    assert not [name for name in names_in(tmp_path) if name.endswith((".tmp", ".lock"))]


def test_finish_names_the_missing_and_the_surplus_parts(tmp_path):
    write(tmp_path, [1], part=0)
    write(tmp_path, [2], part=2)
    with pytest.raises(MissingDataError, match=r"missing \['00001.part.json'\]"):
        millstream.finish(tmp_path)
    with pytest.raises(MissingDataError, match=r"unexpected \['00002.part.json'\]"):
        millstream.finish(tmp_path, parts=1)
    write(tmp_path, [3], part=1)
    millstream.finish(tmp_path, parts=3)
    assert tokens_of(tmp_path) == [1, 3, 2]


def test_finish_refuses_parts_that_do_not_belong_together(tmp_path):
    write(tmp_path, [1], part=0)
    write(tmp_path, [2], part=1, vocab_size=50)
    with pytest.raises(FormatError, match=r"00001.part.json: vocab_size differ"):
        millstream.finish(tmp_path)
    assert "00001.part.json" in names_in(tmp_path)


def test_finish_waits_for_no_living_writer_but_refuses(tmp_path):
    write(tmp_path, [1], part=0)
    with millstream.Writer(tmp_path, vocab_size=100, part=1) as writer:
        writer.append([2])
        with pytest.raises(DatasetExistsError, match="another process is writing"):
            millstream.finish(tmp_path)
    millstream.finish(tmp_path)
    assert tokens_of(tmp_path) == [1, 2]


def test_finish_of_nothing_says_so(tmp_path):
    with pytest.raises(MissingDataError, match="no such directory"):
        millstream.finish(tmp_path / "absent")
    with pytest.raises(MissingDataError, match="has no finished parts to join"):
        millstream.finish(tmp_path)


def test_the_file_in_the_way_of_a_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DatasetExistsError, match=rf"^{tmp_path}/file: is a file"):
        millstream.Writer(tmp_path / "file" / "deep" / "er", vocab_size=100)


def test_an_empty_path_is_not_this_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"path is empty; use '\.'"):
        millstream.Writer("", vocab_size=100)
    with millstream.Writer(".", vocab_size=100) as writer:
        writer.append([1])
    assert tokens_of(tmp_path) == [1]


@pytest.mark.parametrize("name", ["bos_id", "eos_id"])
def test_marks_are_ids_of_the_vocabulary(tmp_path, name):
    with pytest.raises(UsageError, match=f"{name} is 10; it must be an integer from 0 to 9"):
        millstream.Writer(tmp_path, vocab_size=10, **{name: 10})
    with millstream.Writer(tmp_path, vocab_size=10, **{name: 9}) as writer:
        writer.append([1])


def test_a_finished_dataset_is_not_finished_again(tmp_path):
    write(tmp_path, [1], part=0)
    millstream.finish(tmp_path)
    with pytest.raises(DatasetExistsError, match="finished already"):
        millstream.finish(tmp_path)


def test_parts_that_a_killed_finish_has_left_are_removed(tmp_path):
    for part in range(3):
        write(tmp_path, [part + 1], part=part)
    left = {path: path.read_text() for path in tmp_path.glob("0000[12].part.json")}
    millstream.finish(tmp_path)
    for path, content in left.items():
        path.write_text(content)
    millstream.finish(tmp_path)
    assert not list(tmp_path.glob("*.part.json"))
    assert tokens_of(tmp_path) == [1, 2, 3]
    with pytest.raises(DatasetExistsError, match="finished already"):
        millstream.finish(tmp_path)


def test_a_part_is_not_silently_left_out_of_a_dataset_finished_meanwhile(tmp_path):
    whole = millstream.Writer(tmp_path, vocab_size=100)
    whole.append([1])
    try:
        part = millstream.Writer(tmp_path, vocab_size=100, part=0)
    except DatasetExistsError:
        whole.finish()
        return
    part.append([2])
    with contextlib.suppress(DatasetExistsError):
        whole.finish()
        with pytest.raises(DatasetExistsError):
            part.finish()
        return
    part.finish()
    millstream.finish(tmp_path)
    assert tokens_of(tmp_path) == [2]


# Accidents

WRITE_AND_WAIT = """
import sys, time, millstream
options = {"part": int(sys.argv[2])} if len(sys.argv) > 2 else {}
with millstream.Writer(sys.argv[1], vocab_size=100, shard_bytes=2000, **options) as writer:
    for k in range(20):
        writer.append([k] * 300)
    print("written", flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def living_writer(path, *arguments):
    command = [sys.executable, "-c", WRITE_AND_WAIT, str(path), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "written\n"
            yield process
        finally:
            process.kill()


@pytest.mark.process
def test_a_killed_writer_leaves_nothing_that_opens_and_nothing_that_stays(tmp_path):
    with living_writer(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert any(name.endswith(".tmp") for name in names_in(tmp_path))
    with pytest.raises(MissingDataError, match="the writer did not finish"):
        millstream.open(tmp_path)
    write(tmp_path, [1, 2], [3])
    assert tokens_of(tmp_path) == [1, 2, 3]
    assert find_problems(millstream.open(tmp_path)) == []
    assert names_in(tmp_path) == ONE_SHARD


@pytest.mark.process
def test_finished_parts_survive_the_death_of_another(tmp_path):
    write(tmp_path, [1], part=0)
    with living_writer(tmp_path, 1) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with pytest.raises(MissingDataError, match=r"00001\.part\.json"):
        millstream.finish(tmp_path, parts=2)
    write(tmp_path, [2], part=1)
    millstream.finish(tmp_path, parts=2)
    assert tokens_of(tmp_path) == [1, 2]
    assert not [name for name in names_in(tmp_path) if name.endswith((".tmp", ".lock"))]


@pytest.mark.process
def test_of_two_living_writers_with_one_name_the_second_is_refused(tmp_path):
    with living_writer(tmp_path) as process:
        with pytest.raises(DatasetExistsError, match="another process is writing"):
            millstream.Writer(tmp_path, vocab_size=100)
        process.send_signal(signal.SIGKILL)
    first = millstream.Writer(tmp_path, vocab_size=100)
    first.append([1, 2])
    with pytest.raises(DatasetExistsError, match="another process is writing"):
        millstream.Writer(tmp_path, vocab_size=100)
    first.append([3])
    first.finish()
    assert tokens_of(tmp_path) == [1, 2, 3]


def test_of_two_living_writers_of_one_part_the_second_is_refused(tmp_path):
    with millstream.Writer(tmp_path, vocab_size=100, part=3) as writer:
        writer.append([1])
        with pytest.raises(DatasetExistsError, match="a part number"):
            millstream.Writer(tmp_path, vocab_size=100, part=3)
        with millstream.Writer(tmp_path, vocab_size=100, part=4) as other:
            other.append([2])
    assert {"00003.part.json", "00004.part.json"} <= set(names_in(tmp_path))


# Ends a process at the n-th line that millstream.write executes, for every second n, and looks at
# what is left.
CRASH_EVERYWHERE = """
import json, os, shutil, signal, sys
from pathlib import Path
import millstream
from millstream.errors import MissingDataError
from millstream.verifying import find_problems

root, job, accident, first = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])

def write_whole(path):
    with millstream.Writer(path, vocab_size=100, metadata=bytes, shard_bytes=10) as writer:
        for k in range(2):
            writer.append([k, k], b"m")

def write_parts(path):
    for part in range(2):
        with millstream.Writer(path, vocab_size=100, part=part) as writer:
            writer.append([part, part])

def tracer(stop_at):
    lines = 0
    def trace(frame, event, argument):
        nonlocal lines
        name = frame.f_code.co_filename
        if "/millstream/write/" not in name and not name.endswith("/millstream/atomic.py"):
            return None
        if event == "line":
            lines += 1
            if lines == stop_at and accident == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif lines == stop_at:
                raise KeyboardInterrupt
        return trace
    return trace

def run_until(stop_at, path):
    child = os.fork()
    if child == 0:
        sys.settrace(tracer(stop_at))
        try:
            write_whole(path) if job == "write" else millstream.finish(path)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]

def problem(path):
    try:
        data = millstream.open(path)
    except MissingDataError as error:
        if (path / "millstream.json").exists():
            return str(error)
        if job == "write":
            write_whole(path)
        else:
            millstream.finish(path, parts=2)
        data = millstream.open(path)
        leftovers = [p.name for p in path.iterdir() if p.name.endswith((".tmp", ".lock"))]
        if leftovers and job == "write":
            return f"left {leftovers}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    problems = "; ".join(find_problems(data))
    return problems or (data.num_records != 4 and f"{data.num_records} records")

if job == "finish":
    write_parts(root / "parts")
problems, stop_at = [], first - 2
while True:
    stop_at += 2
    path = root / str(stop_at)
    if job == "finish":
        shutil.copytree(root / "parts", path)
    else:
        path.mkdir()
    ended = run_until(stop_at, path)
    found = problem(path)
    if found:
        problems.append(f"line event {stop_at}: {found}")
    shutil.rmtree(path)
    if ended == 0:
        break
print(json.dumps([stop_at, problems]))
"""


@pytest.mark.process
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("accident", ["kill", "interrupt"])
@pytest.mark.parametrize("job", ["write", "finish"])
def test_wherever_it_is_stopped_data_are_whole_or_not_there(quick_path, job, accident, first):
    result = run_python(CRASH_EVERYWHERE, quick_path, job, accident, first)
    assert result.returncode == 0, result.stderr
    num_places, problems = json.loads(result.stdout)
    assert num_places > 50
    assert problems == []


INTERRUPT = """
import random, signal, sys
import numpy as np
import millstream
from millstream.errors import UsageError
from millstream.verifying import find_problems

def interrupt(number, frame):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

def append_the_rest():
    while writer.num_documents < len(documents):
        writer.append(documents[writer.num_documents])

signal.signal(signal.SIGALRM, interrupt)
wait = random.Random(0)
documents = [np.full(1 + k % 700, k % 50_000, np.uint16) for k in range(4_000)]
armed, interrupted = False, 0
for number in range(8):
    path = f"{sys.argv[1]}/{number}"
    writer = millstream.Writer(path, vocab_size=50_000, shard_bytes=900_000)
    while writer.num_documents < len(documents):
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, wait.uniform(0.0001, 0.003))
            append_the_rest()  # from Python 3.12 on, `try` does not cover the jump that ends a loop
            armed = False
        except KeyboardInterrupt:
            interrupted += 1
            try:
                writer.extend([], [])
            except UsageError:  # it was at work on its files, and removed them
                writer = millstream.Writer(path, vocab_size=50_000, shard_bytes=900_000)
    writer.finish()
    data = millstream.open(path)
    assert not find_problems(data)
    assert np.array_equal(data.records(0, data.num_records), np.concatenate(documents))
print(interrupted)
"""


@pytest.mark.process
def test_an_interrupt_loses_and_doubles_no_document(quick_path):
    result = run_python(INTERRUPT, quick_path)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 10


@pytest.mark.slow
def test_threads_that_share_a_writer_lose_no_document(quick_path):
    def append(thread):
        for k in range(400):
            document = [thread * 400 + k] * (k % 50 + 1)
            writer.append(document if k % 7 else np.array(document, ">u4"))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with millstream.Writer(quick_path, vocab_size=20_000, shard_bytes=100_000) as writer:
            threads = [threading.Thread(target=append, args=[k]) for k in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    data = millstream.open(quick_path)
    assert find_problems(data) == []
    documents = [data.document(k).tolist() for k in range(data.num_documents)]
    of_threads = [[each for each in documents if each[0] // 400 == k] for k in range(4)]
    assert of_threads == [
        [[thread * 400 + k] * (k % 50 + 1) for k in range(400)] for thread in range(4)
    ]


def test_an_error_in_the_with_block_leaves_nothing(tmp_path):
    class OwnError(Exception):
        pass

    def fail_after_three_shards():
        with millstream.Writer(tmp_path, vocab_size=100, shard_bytes=1) as writer:
            for k in range(3):
                writer.append([k])
            raise OwnError

    with pytest.raises(OwnError):
        fail_after_three_shards()
    assert names_in(tmp_path) == []


def test_an_encoder_that_fails_leaves_the_writer_usable(tmp_path):
    with millstream.Writer(tmp_path, vocab_size=100, metadata=str.encode) as writer:
        with pytest.raises(TypeError):
            writer.append([1], 5)
        with pytest.raises(UsageError, match="has shape"):
            writer.append([[1]], "x")
        writer.append([2], "x")
    assert tokens_of(tmp_path)[0][0] == 2
    assert find_problems(millstream.open(tmp_path)) == []


def test_foreign_files_in_the_directory_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model.index").write_text("mine")
    (tmp_path / "00000-00000.stream").write_text("a part's")
    with contextlib.suppress(RuntimeError), millstream.Writer(tmp_path, vocab_size=9) as writer:
        writer.append([1])
        raise RuntimeError
    assert names_in(tmp_path) == ["00000-00000.stream", "model.index", "notes.txt"]


def test_a_full_disk_is_an_error_and_harms_nothing_that_was_finished(small_disk):
    write(small_disk / "old", range(100))
    writer = millstream.Writer(small_disk / "new", vocab_size=100, shard_bytes=1 << 16)
    full = pytest.raises(OSError, match="No space left")
    with full as caught, writer:
        for _ in range(1000):
            writer.append([7] * 1000)
    assert caught.value.errno == errno.ENOSPC
    assert not (small_disk / "new").exists()
    assert tokens_of(small_disk / "old") == list(range(100))
    assert find_problems(millstream.open(small_disk / "old")) == []
    assert tokens_of(write(small_disk / "new", [1, 2])) == [1, 2]


def test_a_disk_that_is_full_only_for_the_manifest_leaves_nothing(small_disk):
    def write_with_a_large_manifest():
        # The tokens fit; the tokenizer's name, which goes into the manifest, does not.
        write(small_disk / "new", [1], tokenizer={"name": "x" * 500_000})

    with pytest.raises(OSError, match="No space left"):
        write_with_a_large_manifest()
    assert not (small_disk / "new").exists()
    write(small_disk / "parts", [1], part=0, tokenizer={"name": "x" * 100_000})
    (small_disk / "ballast").write_bytes(bytes(100_000))
    with pytest.raises(OSError, match="No space left"):
        millstream.finish(small_disk / "parts")
    (small_disk / "ballast").unlink()
    millstream.finish(small_disk / "parts")
    assert tokens_of(small_disk / "parts") == [1]


FILL_QUOTA = """
import errno, resource, signal, sys, millstream
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    with millstream.Writer(sys.argv[1], vocab_size=100) as writer:
        for _ in range(1000):
            writer.append([7] * 1000)
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.process
def test_a_file_that_may_grow_no_further_is_an_error_and_leaves_nothing(tmp_path):
    write(tmp_path / "old", [1, 2, 3])
    result = run_python(FILL_QUOTA, tmp_path / "new")
    assert (result.stdout, result.stderr) == ("EFBIG\n", "")
    assert not (tmp_path / "new").exists()
    assert find_problems(millstream.open(tmp_path / "old")) == []


RUN_OUT_OF_DESCRIPTORS = """
import os, resource, sys, millstream
writer = millstream.Writer(sys.argv[1], vocab_size=100)
highest = max(int(name) for name in os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, 1024))
try:
    writer.append([1])
except OSError:
    pass
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
print(os.path.exists(sys.argv[1]))
"""


@pytest.mark.process
def test_a_writer_that_cannot_open_all_its_files_leaves_none(tmp_path):
    result = run_python(RUN_OUT_OF_DESCRIPTORS, tmp_path / "new")
    assert result.stderr == ""
    assert result.stdout == "False\n"


# Misuse


def test_a_finished_dataset_is_not_written_again(tmp_path):
    write(tmp_path, [1])
    for options in ({}, {"part": 0}):
        with pytest.raises(
            DatasetExistsError, match=r"millstream.json: already a finished dataset"
        ):
            millstream.Writer(tmp_path, vocab_size=100, **options)
    assert tokens_of(tmp_path) == [1]


def test_a_finished_part_is_not_written_again(tmp_path):
    write(tmp_path, [1], part=0)
    with pytest.raises(DatasetExistsError, match=r"00000.part.json: part 0 is finished"):
        millstream.Writer(tmp_path, vocab_size=100, part=0)
    with pytest.raises(DatasetExistsError, match="this directory contains parts"):
        millstream.Writer(tmp_path, vocab_size=100)
    millstream.finish(tmp_path)
    assert tokens_of(tmp_path) == [1]


def test_a_path_that_is_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(millstream.MillstreamError, match="file"):
        millstream.Writer(tmp_path / "file", vocab_size=100)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([3, -1], r"document 0: field 'token': -1 is outside the vocabulary, \[0, 100\)"),
        ([100], r"document 0: field 'token': 100 is outside the vocabulary, \[0, 100\)"),
        ([2**70], "object cannot be stored as uint16"),
        ([1.0], "float64 cannot be stored as uint16"),
        (["a"], "cannot be stored as uint16"),
        ([None], "object cannot be stored as uint16"),
        ([[1, 2]], r"has shape \(1, 2\), expected \(1,\)"),
        (5, r"is a single number"),
        ({"token": [1], "other": [1]}, r"has fields \['other', 'token'\], expected \['token'\]"),
        ({}, r"has fields \[\], expected \['token'\]"),
        ([[1], [2, 3]], "document 0"),
    ],
)
def test_a_document_that_cannot_be_stored_is_refused(tmp_path, document, message):
    with millstream.Writer(tmp_path, vocab_size=100) as writer:
        with pytest.raises(UsageError, match=message):
            writer.append(document)
        writer.append([1])
    assert tokens_of(tmp_path) == [1]


def test_structs_as_tuples_are_refused_with_what_to_pass(tmp_path):
    point = np.dtype([("x", "<i4"), ("y", "<i4")])
    with millstream.Writer(tmp_path, fields=[("token", "<u2"), ("p", point)]) as writer:
        with pytest.raises(UsageError, match=r"'p' has type int64, expected structs; pass numpy"):
            writer.append({"token": [1, 2], "p": [(1, 2), (3, 4)]})
        writer.append({"token": [1, 2], "p": np.array([(1, 2), (3, 4)], point)})
        writer.append({"token": [], "p": []})
    assert millstream.open(tmp_path).document(0)["p"]["y"].tolist() == [2, 4]


def test_the_refusal_of_a_scalar_does_not_ask_for_a_shape_of_minus_one(tmp_path):
    writer = millstream.Writer(tmp_path, vocab_size=100)
    with writer, pytest.raises(UsageError) as caught:
        writer.append(5)
    assert "-1" not in str(caught.value)


def test_without_a_vocabulary_ids_must_fit_the_stored_type(tmp_path):
    with millstream.Writer(tmp_path, fields="<i1") as writer:
        writer.append([-128, 127])
        for value in (-129, 128):
            with pytest.raises(
                UsageError, match=rf"{value} is outside the range of int8, \[-128, 128\)"
            ):
                writer.append([value])
    assert tokens_of(tmp_path) == [-128, 127]


def test_columns_of_different_lengths_are_refused(tmp_path):
    with millstream.Writer(tmp_path, fields=TOKEN_AND_CONCEPT) as writer:
        with pytest.raises(UsageError, match=r"'concept' has shape \(3,\), expected \(2,\)"):
            writer.append({"token": [1, 2], "concept": [1, 2, 3]})
        with pytest.raises(UsageError, match=r"got a bare array, but this dataset has the fields"):
            writer.append([1, 2])


@pytest.mark.parametrize(
    ("stored", "values"),
    [
        ("S3", np.array([b"abcdef"])),
        ("<U2", np.array(["abcdef"])),
        ("V3", np.array([b"abcdef"], "V6")),
        ("S3", np.array([12_345])),
        ("S3", np.array([1.25])),
        ("<M8[s]", np.array(["2020-01-01T00:00:00.123"], "M8[ms]")),
        ("<f4", np.array([1e300])),
        ("<f2", np.array([70_000])),
        ("?", np.array([2])),
        ("<i4", np.array([0.5])),
        ("<f8", np.array([1j])),
    ],
)
def test_a_value_that_would_not_come_back_is_refused(tmp_path, stored, values):
    writer = millstream.Writer(tmp_path, fields=[("token", "<u2"), ("extra", stored)])
    with writer, pytest.raises(UsageError, match="extra"):
        writer.append({"token": [1], "extra": values})


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 2, b""), (1, 3, b"")],
        [(0, 2, b""), (0, 2, b"")],
        [(1, 1, b"")],
        [(2, 1, b"")],
        [(-1, 2, b"")],
        [(0, 4, b"")],
        [(0.5, 2.5, b"")],
    ],
)
def test_spans_that_overlap_are_empty_or_leave_the_document_are_refused(tmp_path, spans):
    writer = millstream.Writer(tmp_path, vocab_size=100, metadata=bytes)
    with writer, pytest.raises(UsageError, match="document 0: span"):
        writer.append([1, 2, 3], spans=spans)


def test_metadata_needs_an_encoder_and_the_encoder_must_give_bytes(tmp_path):
    with millstream.Writer(tmp_path / "a", vocab_size=100) as writer:
        with pytest.raises(UsageError, match="no metadata encoder; pass metadata"):
            writer.append([1], b"x")
        with pytest.raises(UsageError, match="no metadata encoder; pass metadata"):
            writer.append([1], spans=[(0, 1, b"x")])
    with millstream.Writer(tmp_path / "b", vocab_size=100, metadata=str) as writer:
        with pytest.raises(UsageError, match="returned str, not bytes"):
            writer.append([1], "x")
        with pytest.raises(UsageError, match="not both"):
            writer.append([1], "x", spans=[(0, 1, "y")])


def test_appending_after_finish_is_refused_and_finishing_again_is_harmless(tmp_path):
    writer = millstream.Writer(tmp_path, vocab_size=100)
    writer.append([1])
    writer.finish()
    writer.finish()
    writer.abort()
    with pytest.raises(UsageError, match="this writer is finished"):
        writer.append([2])
    assert tokens_of(tmp_path) == [1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (">u2", "big-endian; records are little-endian"),
        ([("token", "<u2"), ("x", ">f4")], "'x' is big-endian"),
        ("O", "cannot be stored"),
        ([("token", "<u2"), ("x", "O")], "'x' of type object cannot be stored"),
        ([("token", "<u2"), ("x", "S0")], "cannot be stored"),
        ([("token", "<u2"), ("x", [("y", "O")])], "'x': field 'y' of type object cannot be"),
        ([("token", "<u2"), ("x", [("y", ">u2")])], "'x': field 'y' is big-endian"),
        ([("token", "<u2"), ("x", np.dtype("u1,<u4", align=True))], "'x': .* has padding"),
        (np.dtype([("token", "<u2"), ("x", "<u4")], align=True), "padding"),
        ("<f4", "'token' must be one integer"),
        ([("token", "<u2", (2,))], "'token' must be one integer"),
        ([("token", "<u2"), ("metadata_id", "<u4")], "is reserved for the writer"),
        ("nonsense", "nonsense"),
        ([("token", "<u2"), ("x", "<u2", (0,))], "x"),
        ([("token", "<u2"), ("x", "<u2", (1,) * 17)], "x"),
    ],
)
def test_records_that_cannot_be_stored_are_refused(tmp_path, fields, message):
    with pytest.raises(UsageError, match=message):
        millstream.Writer(tmp_path / "out", fields=fields)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "layout",
    [{"offsets": [2, 0]}, {"offsets": [0, 0], "itemsize": 4}, {"offsets": [1, 0]}],
    ids=["out of order", "on top of each other", "overlapping"],
)
def test_fields_at_odd_offsets_are_refused_or_come_back(tmp_path, layout):
    # The manifest has no offsets: fields follow one another in the order in which they are named.
    fields = np.dtype({"names": ["token", "x"], "formats": ["<u2", "<u2"], **layout})
    try:
        with millstream.Writer(tmp_path, fields=fields) as writer:
            writer.append({"token": [1, 2], "x": [7, 8]})
    except UsageError:
        return
    records = millstream.open(tmp_path).records(0, 2)
    assert (records["token"].tolist(), records["x"].tolist()) == ([1, 2], [7, 8])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"vocab_size": 0},
        {"vocab_size": -5},
        {"vocab_size": 1 << 63},
        {"vocab_size": 100.5},
        {"vocab_size": 70_000, "fields": "<u2"},
        {"vocab_size": 129, "fields": "<i1"},
        {"vocab_size": 100, "part": -1},
        {"vocab_size": 100, "part": 100_000},
        {"vocab_size": 100, "part": 1.5},
        {"vocab_size": 100, "shard_bytes": 0},
        {"vocab_size": 100, "bos_id": -1},
        {"vocab_size": 100, "eos_id": 2.5},
        {"vocab_size": 100, "tokenizer": {"name": 1}},
        {"fields": [("metadata_id", "<u4")], "metadata": bytes},
        {"fields": [("token", "<u2"), ("metadata_id", "<u2")], "metadata": bytes},
    ],
    ids=str,
)
def test_arguments_that_cannot_work_are_refused_before_anything_is_written(tmp_path, options):
    # What is only found out by finish, or by open, is found out after hours of writing.
    with pytest.raises(UsageError):
        millstream.Writer(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_metadata_of_an_empty_document_is_refused_as_such(tmp_path):
    with millstream.Writer(tmp_path / "out", vocab_size=9, metadata=bytes) as writer:
        with pytest.raises(UsageError, match="document 0 is empty and cannot have metadata") as one:
            writer.append([], metadata=b"x")
        assert "span" not in str(one.value)
        with pytest.raises(UsageError, match="document 1 is empty"):
            writer.extend([1], [1, 0], [b"x", b"y"])
        writer.extend([1], [1, 0], [b"x", None])
        with pytest.raises(UsageError, match="continues=True needs at least one document"):
            writer.extend([], [], continues=True)
    assert millstream.open(tmp_path / "out").num_documents == 2


def test_a_finished_part_is_written_again_when_its_files_are_removed(tmp_path):
    with millstream.Writer(tmp_path, vocab_size=9, part=3) as writer:
        writer.append([1])
    with pytest.raises(DatasetExistsError, match="remove the files 00003") as caught:
        millstream.Writer(tmp_path, vocab_size=9, part=3)
    pattern = re.search(r"remove the files (\S+) to write", str(caught.value))[1]
    for path in tmp_path.glob(pattern):
        path.unlink()
    millstream.Writer(tmp_path, vocab_size=9, part=3).finish()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"vocab_size": 0},
        {"vocab_size": 9, "part": -1},
        {"vocab_size": 9, "shard_bytes": 0},
        {"vocab_size": 9, "bos_id": -1},
        {"vocab_size": 9, "tokenizer": {"name": object()}},
        {"vocab_size": 9, "split": {1: 2}},
        {"vocab_size": 9, "metadata": "json"},
        {"fields": "object"},
    ],
)
def test_a_rejected_writer_leaves_no_directory(out, options):
    with pytest.raises((MillstreamError, TypeError)):
        millstream.Writer(out, **options)
    assert not out.parent.exists()


def test_an_aborted_writer_leaves_no_directory_unless_it_was_there(tmp_path, out):
    for path in (out, tmp_path / "there"):
        with pytest.raises(UsageError), millstream.Writer(path, vocab_size=9) as writer:
            writer.append([1])
            writer.append([9])
        (tmp_path / "there").mkdir(exist_ok=True)
    assert not out.parent.exists()
    assert (tmp_path / "there").is_dir()


def test_parts_that_others_write_keep_the_directory(out):
    first = millstream.Writer(out, vocab_size=9, part=0)
    second = millstream.Writer(out, vocab_size=9, part=1)
    first.abort()
    second.append([1])
    second.finish()
    with millstream.Writer(out, vocab_size=9, part=0):
        pass
    millstream.finish(out)
    assert millstream.open(out).num_records == 1
