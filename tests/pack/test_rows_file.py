"""Stored rows: where they are, when they are made, and what a failure leaves."""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import millstream
from millstream.errors import MillstreamError, ReadError
from millstream.pack.rows_file import find_rows
from millstream.verifying import find_problems
from tests.helpers.numbered_documents import MEMORY, POLICIES, write_numbered

LENGTHS = np.random.default_rng(8).integers(0, 40, 300).tolist()


@pytest.fixture
def path(tmp_path):
    write_numbered(tmp_path / "data", LENGTHS, shard_bytes=4000)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "millstream" / "plans"


def views_of(path):
    data = millstream.open(path)
    return [
        *(data.packed(32, policy=policy) for policy in POLICIES),
        data.documents(32),
        data.documents(32, overflow="split", by_length=True),
    ]


def rows_of(view):
    """What the view's rows are, whoever made them and wherever they lie."""
    return view.rows.pieces.tolist(), view.rows.row_first.tolist()


def files_in(directory):
    return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []


def test_a_name_depends_on_all_that_decides_the_rows_and_on_nothing_else(tmp_path):
    write_numbered(tmp_path / "one", [4, 5, 6])
    write_numbered(tmp_path / "tokens", [4, 5, 6], first=9)
    write_numbered(tmp_path / "shards", [4, 5, 6], shard_bytes=1)
    write_numbered(tmp_path / "lengths", [4, 6, 5])
    one, tokens, shards, lengths = (
        millstream.open(tmp_path / name) for name in ("one", "tokens", "shards", "lengths")
    )
    views = [
        one.packed(8),
        one.packed(9),
        one.packed(8, policy="bos_best_fit"),
        one.packed(8, policy="bos_best_fit", buffer_size=7),
        one.packed(8, policy="bos_best_fit_keep"),
        one.documents(8),
        one.documents(8, overflow="split"),
        one.documents(8, by_length=True),
        one.documents(8, overflow="split", by_length=True),
        shards.packed(8),
        lengths.packed(8),
        millstream.open([tmp_path / "one", tmp_path / "tokens"]).packed(8),
    ]
    names = [view.stored_in.name for view in views]
    assert len(set(names)) == len(names)
    for view in (
        tokens.packed(8),
        one.packed(8, buffer_size=7),
        one.packed(8, extras="document_ids", mask_ends=False, pad_id=3, static_shapes=True),
    ):
        assert view.stored_in.name == names[0]
    assert one.documents(8, pad_to=4).stored_in == views[5].stored_in


def test_rows_are_made_once(path):
    for view in views_of(path):
        rows, file = rows_of(view), view.stored_in.stat()
        again = replace(view, dataset=millstream.open(path))
        assert again.rows is not view.rows
        assert rows_of(again) == rows
        after = view.stored_in.stat()
        assert (after.st_ino, after.st_mtime_ns) == (file.st_ino, file.st_mtime_ns)


def test_rows_lie_beside_the_dataset_and_nothing_else_is_left_there(path, cache):
    names = sorted(view.stored_in.name for view in views_of(path))
    assert files_in(path / "plans") == names
    assert files_in(cache) == []
    data = millstream.open(path)
    assert find_problems(data) == []
    assert data.num_documents == len(LENGTHS)


def test_rows_of_several_directories_lie_beside_the_first(tmp_path):
    for name in ("a", "b"):
        write_numbered(tmp_path / name, [3, 4, 5])
    both = millstream.open([tmp_path / "b", tmp_path / "a"]).packed(8)
    assert both.stored_in.parent == tmp_path / "b" / "plans"
    assert rows_of(both) == rows_of(millstream.open([tmp_path / "a", tmp_path / "b"]).packed(8))


@pytest.mark.parametrize("lengths", [[], [0, 0, 0]])
def test_a_dataset_without_records_stores_nothing(tmp_path, lengths):
    write_numbered(tmp_path / "data", lengths)
    for view in views_of(tmp_path / "data"):
        assert len(view) == 0
        assert view.stored_in is None
        assert list(view) == []
        assert view.read([])["input_ids"].shape[0] == 0
        assert view.report.num_empty == len(lengths)
        with pytest.raises(IndexError):
            view[0]
    assert not (tmp_path / "data" / "plans").exists()


def test_rows_go_to_the_user_s_cache_where_the_dataset_cannot_be_written(path, cache):
    (path / "plans").write_text("a file is in the way")
    for view in views_of(path):
        assert view.stored_in.parent == cache
        stat = view.stored_in.stat()
        again = next(other for other in views_of(path) if other.recipe == view.recipe)
        assert again.stored_in == view.stored_in
        assert again.stored_in.stat().st_mtime_ns == stat.st_mtime_ns


def test_rows_that_lie_nowhere_are_an_error_that_says_where(path, cache):
    (path / "plans").write_text("")
    cache.parent.mkdir(parents=True)
    cache.write_text("")
    with pytest.raises(ReadError, match=r"cannot store .*set XDG_CACHE_HOME") as caught:
        len(millstream.open(path).packed(32))
    assert str(path / "plans") in str(caught.value)
    assert str(cache) in str(caught.value)


def test_a_user_without_a_home_can_have_rows_beside_the_dataset(path, monkeypatch):
    def no_such_user(uid):
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", no_such_user)
    assert len(millstream.open(path).packed(32)) > 0


def test_a_user_without_a_home_is_told_so_where_the_dataset_cannot_be_written(path, monkeypatch):
    def no_such_user(uid):
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", no_such_user)
    (path / "plans").write_text("")
    with pytest.raises(ReadError, match="cannot store the planned rows"):
        len(millstream.open(path).packed(32))


def run(program, *arguments, timeout=100):
    """What a program prints, as JSON, and how it ends."""
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert result.stderr == "", result.stderr
    return result.returncode, json.loads(result.stdout) if result.stdout else None


# All that is imported is imported first: somebody else may not read the interpreter's own files.
READ_ONLY = """
import json, os, sys
import millstream
millstream.open(sys.argv[2]).packed(32)[:]
if os.getuid() == 0:
    os.setuid(65534)
view = millstream.open(sys.argv[1]).packed(32)
print(json.dumps([str(view.stored_in), view[:]["input_ids"].tolist()]))
"""


@pytest.mark.process
def test_a_directory_of_somebody_else_is_read_and_the_rows_lie_in_the_cache(monkeypatch):
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        path, cache, warm = (Path(root) / name for name in ("data", "cache", "warm"))
        write_numbered(path, LENGTHS)
        write_numbered(warm, [3, 4])
        cache.mkdir()
        for directory, mode in ((Path(root), 0o755), (path, 0o555), (cache, 0o777)):
            directory.chmod(mode)
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        status, (stored_in, rows) = run(READ_ONLY, path, warm)
        path.chmod(0o755)
        assert status == 0
        assert Path(stored_in).parent == cache / "millstream" / "plans"
        assert not (path / "plans").exists()
        assert rows == millstream.open(path).packed(32)[:]["input_ids"].tolist()


LIMITED = """
import json, os, resource, sys
import millstream, millstream.pack.policy
from pathlib import Path
data, answers = millstream.open(sys.argv[1]), []
for limit in map(int, sys.argv[3:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
    try:
        answers.append(len(data.packed(32, policy=sys.argv[2])))
    except millstream.MillstreamError as error:
        answers.append(str(error))
    answers.append(sorted(os.listdir(Path(sys.argv[1]) / "plans")))
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
print(json.dumps(answers))
"""


@pytest.mark.process
@pytest.mark.parametrize("policy", POLICIES)
def test_a_disk_without_room_is_an_error_and_leaves_nothing(path, cache, policy):
    expected = len(millstream.open(path).packed(32, policy=policy))
    (stored_in,) = (path / "plans").iterdir()
    size = stored_in.stat().st_size
    stored_in.unlink()
    status, answers = run(LIMITED, path, policy, 0, 100, 4096, size - 8, size)
    assert status == 0
    assert answers[1::2] == [[], [], [], [], [stored_in.name]]
    assert all("File too large" in error for error in answers[:-2:2])
    assert answers[-2] == expected
    assert files_in(cache) == []


class ProgressError(Exception):
    """What a progress bar might raise."""


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ProgressError])
def test_an_interrupt_while_rows_are_made_leaves_nothing(path, cache, index, error):
    view = views_of(path)[index]

    def interrupt(count):
        raise error

    with pytest.raises((error, ReadError)):
        find_rows(view.dataset, view.recipe, interrupt)
    assert (files_in(path / "plans"), files_in(cache)) == ([], [])
    assert len(view) > 0


KILLED = """
import os, signal, sys
import millstream, millstream.pack.policy
from millstream.pack.rows_file import find_rows
data = millstream.open(sys.argv[1])
view = data.documents(32) if sys.argv[2] == "truncate" else data.packed(32, policy=sys.argv[2])
left = int(sys.argv[3])

def progress(count):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

find_rows(data, view.recipe, progress)
"""


@pytest.mark.process
@pytest.mark.parametrize("policy", [*POLICIES, "truncate"])
@pytest.mark.parametrize("after", [1, 4])
def test_a_killed_process_leaves_no_rows_and_the_next_one_makes_them(path, cache, policy, after):
    assert len(millstream.open(path).shards) >= 3
    assert run(KILLED, path, policy, after) == (-signal.SIGKILL, None)
    assert not list((path / "plans").glob("*.rows"))
    view = next(view for view in views_of(path) if view.recipe.policy == policy)
    sound = Path(tempfile.mkdtemp(dir=path.parent)) / "data"
    write_numbered(sound, LENGTHS, shard_bytes=4000)
    expected = next(view for view in views_of(sound) if view.recipe.policy == policy)
    assert rows_of(view) == rows_of(expected)


@pytest.mark.process
@pytest.mark.parametrize("policy", POLICIES[:2])
def test_what_a_killed_process_left_is_removed_by_the_next(path, policy):
    for _ in range(2):
        run(KILLED, path, policy, 2)
    assert len(files_in(path / "plans")) > 0
    stored_in = millstream.open(path).packed(32, policy=policy).stored_in
    assert files_in(path / "plans") == [stored_in.name]


AT_ONCE = """
import hashlib, json, sys
import millstream, millstream.pack.policy
from millstream.pack.rows_file import find_rows
data = millstream.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()  # until all are there
for policy in sys.argv[2:]:
    made = []
    rows = find_rows(data, data.packed(32, policy=policy).recipe, made.append)
    content = hashlib.sha256(rows.pieces.tobytes() + rows.row_first.tobytes()).hexdigest()
    print(json.dumps([bool(made), content, rows.path.stat().st_ino]))
"""


@pytest.mark.process
def test_of_eight_processes_that_come_at_once_one_makes_the_rows(path):
    reader, writer = os.pipe()
    arguments = [sys.executable, "-c", AT_ONCE, str(path), *POLICIES]
    processes = [
        subprocess.Popen(arguments, stdin=reader, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    os.close(reader)
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 8
    os.close(writer)
    printed = [process.communicate(timeout=100)[0].splitlines() for process in processes]
    for answers in zip(*printed, strict=True):
        made, contents, inodes = zip(*map(json.loads, answers), strict=True)
        assert sorted(made) == [False] * 7 + [True]
        assert len(set(contents)) == len(set(inodes)) == 1
    assert len(files_in(path / "plans")) == len(POLICIES)


def read_everything(view, queue):
    queue.put((view.stored_in, view[:]["input_ids"].tolist(), view.stored_in.stat().st_mtime_ns))


@pytest.mark.process
def test_a_view_travels_to_a_spawned_process_and_maps_the_same_rows(path):
    context = multiprocessing.get_context("spawn")
    view = millstream.open(path).packed(32)
    expected = view.stored_in, view[:]["input_ids"].tolist(), view.stored_in.stat().st_mtime_ns
    queue = context.SimpleQueue()
    process = context.Process(target=read_everything, args=(view, queue))
    process.start()
    assert queue.get() == expected
    process.join()


def test_a_pickled_view_is_small_and_opens_its_rows_by_path(path):
    for view in views_of(path):
        expected = view[:]["input_ids"].tolist()
        pickled = pickle.dumps(view)
        assert len(pickled) < 10_000
        copy = pickle.loads(pickled)
        assert copy.rows.path == view.rows.path
        assert copy.report == view.report
        assert copy[:]["input_ids"].tolist() == expected


def test_a_pickled_view_whose_rows_are_gone_finds_others_or_says_so(path):
    view = millstream.open(path).packed(32)
    expected = view[:]["input_ids"].tolist()
    pickled = pickle.dumps(view)
    view.stored_in.unlink()
    assert view[:]["input_ids"].tolist() == expected  # what is mapped stays
    try:
        found = pickle.loads(pickled)[:]["input_ids"].tolist()
    except MillstreamError as error:
        found = str(error)
    assert found == expected or view.stored_in.name in found


@pytest.mark.process
def test_a_loader_over_rows_travels_to_a_forked_and_a_spawned_process(path):
    view = millstream.open(path).documents(32, by_length=True, pad_to=4)
    options = {"shuffle": millstream.LengthBuckets(4), "output": "numpy", "prefetch": 2}
    loader = millstream.Loader(view, 4, **options)
    expected = [batch["input_ids"].tolist() for batch in loader]
    loader.set_epoch(0)
    first = next(iter(loader))["input_ids"].tolist()
    assert first == expected[0]
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=rest_of, args=(loader, queue))
        process.start()
        assert queue.get() == expected[1:]
        process.join()
    loader.close()


def rest_of(loader, queue):
    queue.put([batch["input_ids"].tolist() for batch in loader])
