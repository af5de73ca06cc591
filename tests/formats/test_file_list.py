"""File lists: strict parsing, checks against the files, and one writer among many processes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.cli import main
from millstream.errors import FormatError, MillstreamError, MissingDataError, ReadError, UsageError
from millstream.formats.file_list import (
    ListedFile,
    is_current,
    list_files,
    measure_files,
    read_file_list,
    write_file_list,
)
from tests.helpers.paths import GOLDEN

WRITTEN_BY_DATATROVE = GOLDEN / "datatrove_compat" / "paths.json"


def make_files(root, sizes):
    root.mkdir(exist_ok=True)
    for name, size in sizes.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(bytes(size))
    return [root / name for name in sizes]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def paths(root):
    return make_files(root, {"a.ds": 10, "sub/b.ds": 0, "c \u00e9\udc80.ds": 7})


def never():
    raise AssertionError("the files were looked for, though the list is good")


def test_a_list_comes_back_as_it_was_written(tmp_path, root, paths):
    outside = make_files(tmp_path / "other", {"d.ds": 3})
    files = measure_files(paths + outside)
    files[0] = ListedFile(files[0].path, 10, None, "0123456789abcdef")
    write_file_list(tmp_path / "list.json", root, files)
    assert read_file_list(tmp_path / "list.json", root) == files
    assert is_current(files)


def test_datatrove_can_read_the_list(tmp_path, root, paths):
    list_files(tmp_path / "list.json", root, lambda: paths)
    entries = json.loads((tmp_path / "list.json").read_text())
    assert [(entry["path"], entry["size"]) for entry in entries] == [
        ("a.ds", 10),
        ("sub/b.ds", 0),
        ("c \u00e9\udc80.ds", 7),
    ]


def test_a_list_of_datatrove_is_used(root):
    sizes = {"000.ds": 1240, "001.ds": 260, "002.ds": 80, "010.ds": 400}
    make_files(root, sizes)
    expected = [ListedFile(root / name, size) for name, size in sizes.items()]
    assert list_files(WRITTEN_BY_DATATROVE, root, never) == expected


def test_a_list_moves_with_its_files(tmp_path, root, paths):
    list_files(root / "list.json", root, lambda: paths)
    root.rename(tmp_path / "moved")
    moved = list_files(tmp_path / "moved" / "list.json", tmp_path / "moved", never)
    assert [file.path.name for file in moved] == ["a.ds", "b.ds", "c \u00e9\udc80.ds"]


def change_size(path):
    path.write_bytes(b"another size")
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    "change",
    [change_size, lambda path: os.utime(path, ns=(5, 5)), Path.unlink],
    ids=["size", "time", "gone"],
)
def test_a_list_is_made_again_when_a_file_changed(tmp_path, root, paths, change):
    os.utime(paths[0], ns=(1, 1))
    before = list_files(tmp_path / "list.json", root, lambda: paths)
    assert list_files(tmp_path / "list.json", root, never) == before
    change(paths[0])
    left = [path for path in paths if path.exists()]
    after = list_files(tmp_path / "list.json", root, lambda: left)
    assert after == measure_files(left) != before
    assert read_file_list(tmp_path / "list.json", root) == after


def test_without_times_the_size_decides(tmp_path, root, paths):
    (tmp_path / "list.json").write_text('[{"path": "a.ds", "size": 10}]')
    paths[0].write_bytes(b"0123456789")
    assert [file.size_bytes for file in list_files(tmp_path / "list.json", root, never)] == [10]
    paths[0].write_bytes(b"0123456789+")
    assert len(list_files(tmp_path / "list.json", root, lambda: paths)) == 3


@pytest.mark.slow
def test_every_half_of_a_list_is_made_again(tmp_path, root, paths):
    path = tmp_path / "list.json"
    expected = list_files(path, root, lambda: paths)
    whole = path.read_bytes()
    halves = [whole[:end] for end in range(len(whole) - 1)]
    datatroves = WRITTEN_BY_DATATROVE.read_bytes()
    for half in [*halves, datatroves[:-1], bytes(100), whole[:40] + bytes(60), b"[]"]:
        path.write_bytes(half)
        assert list_files(path, root, lambda: paths) == expected, half
        assert path.read_bytes() == whole, half


@pytest.mark.parametrize("text", ['{"lr": 1}', "[1, 2]", "seed: 3", '[{"name": "a"}]', "\x80\x81"])
def test_a_file_that_never_was_a_list_is_not_replaced(tmp_path, root, paths, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=re.escape(str(path))):
        list_files(path, root, lambda: paths)
    assert path.read_text() == text


def test_no_files_are_no_list(tmp_path, root):
    assert list_files(tmp_path / "list.json", root, list) == []
    assert os.listdir(tmp_path) == []
    files = make_files(root, {"late.ds": 1})
    assert list_files(tmp_path / "list.json", root, lambda: files) == measure_files(files)


def test_where_nothing_can_be_written_files_are_found_each_time(root, paths):
    for place in ("/proc/self/list.json", "/proc/nothing/here/list.json"):
        assert list_files(Path(place), root, lambda: paths) == measure_files(paths)


def test_a_new_folder_is_made_for_the_list(tmp_path, root, paths):
    list_files(tmp_path / "cache" / "lists" / "list.json", root, lambda: paths)
    assert os.listdir(tmp_path / "cache" / "lists") == ["list.json"]


def test_what_is_no_file_is_named(tmp_path, root, paths):
    with pytest.raises(ReadError, match="data: not a regular file"):
        list_files(root, root, lambda: paths)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReadError, match="pipe: not a regular file"):
        read_file_list(tmp_path / "pipe", root)
    with pytest.raises(FormatError, match="pipe: not a regular file"):
        list_files(tmp_path / "list.json", root, lambda: [tmp_path / "pipe"])
    with pytest.raises(MissingDataError, match=r"gone\.ds: missing"):
        list_files(tmp_path / "list.json", root, lambda: [root / "gone.ds"])
    with pytest.raises(MissingDataError, match=r"list\.json: no such file list"):
        read_file_list(tmp_path / "list.json", root)


# Attacks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "{} is not a file list"),
        ("null", "None is not a file list"),
        ("[3]", "[0]: 3 is not an object"),
        ('[{"path": "a", "size": 1}, {"size": 1}]', "[1].path: None is not"),
        ('[{"path": "", "size": 1}]', "[0].path: '' is not"),
        ('[{"path": 7, "size": 1}]', "[0].path: 7 is not"),
        ('[{"path": "a\\u0000b", "size": 1}]', "[0].path: 'a\\x00b' is not"),
        ('[{"path": "a\\ud800b", "size": 1}]', "[0].path: 'a\\ud800b' is not"),
        ('[{"path": "a"}]', "[0].size: None is not"),
        ('[{"path": "a", "size": -1}]', "[0].size: -1 is not"),
        ('[{"path": "a", "size": true}]', "[0].size: True is not"),
        ('[{"path": "a", "size": 1.0}]', "[0].size: 1.0 is not"),
        ('[{"path": "a", "size": NaN}]', "[0].size: nan is not"),
        ('[{"path": "a", "size": "1"}]', "[0].size: '1' is not"),
        ('[{"path": "a", "size": 9223372036854775808}]', "[0].size: 9223372036854775808 is not"),
        ('[{"path": "a", "size": 1, "mtime_ns": true}]', "[0].mtime_ns: True is not"),
        ('[{"path": "a", "size": 1, "mtime_ns": 1e3}]', "[0].mtime_ns: 1000.0 is not"),
        ('[{"path": "a", "size": 1, "xxh3": "00"}]', "[0].xxh3: '00' is not"),
        ('[{"path": "a", "size": 1, "xxh3": 3}]', "[0].xxh3: 3 is not"),
        ('[{"path": "a", "size": ' + "9" * 5000 + "}]", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('[{"path": "a", "size": 1}', "not valid JSON"),
    ],
)
def test_a_bad_value_is_named_by_its_place(tmp_path, text, message):
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        read_file_list(path, tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 400


def test_a_list_too_large_to_be_one_is_not_read_to_its_end(tmp_path):
    (tmp_path / "list.json").touch()
    os.truncate(tmp_path / "list.json", 1 << 40)
    with pytest.raises(FormatError, match="too large for a file list"):
        read_file_list(tmp_path / "list.json", tmp_path)


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["path", "size", "mtime_ns", "xxh3", "x"]), inner),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(values)
@example([{"path": "../../etc/passwd", "size": 0, "x": 1}])
def test_any_json_is_a_list_or_is_refused(value):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "list.json")
        path.write_text(json.dumps(value))
        try:
            files = read_file_list(path, Path(folder))
        except MillstreamError:
            return
        assert [file.size_bytes for file in files] == [entry["size"] for entry in value]
        is_current(files)


# Many processes

SWARM = """
import os, sys, time
from pathlib import Path
from millstream.formats.file_list import list_files
root, path, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
calls = os.open(sys.argv[4], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def find():
    os.write(calls, b"x")
    time.sleep(0.2)
    return sorted(root.glob("*.ds"))
wait, go = os.pipe()
children = []
for _ in range(count):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(go)
            os.read(wait, 1)  # all of them at the same moment
            status = 0 if len(list_files(path, root, find)) == 20 else 2
        finally:
            os._exit(status)
    children.append(child)
os.close(go)
bad = [s for s in (os.waitpid(child, 0)[1] for child in children) if s]
print(len(children), len(bad))
"""


def swarm(root, path, calls, count=150):
    command = [sys.executable, "-c", SWARM, *map(str, (root, path, count, calls))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == f"{count} 0\n", done.stderr[-2000:]


@pytest.mark.process
def test_one_of_150_processes_looks_for_the_files(tmp_path, root):
    make_files(root, {f"{k}.ds": k for k in range(20)})
    (tmp_path / "lists").mkdir()
    path, calls = tmp_path / "lists" / "list.json", tmp_path / "calls"
    swarm(root, path, calls)
    assert calls.read_bytes() == b"x"
    assert os.listdir(tmp_path / "lists") == ["list.json"]
    path.write_bytes(path.read_bytes()[:-9])  # another program was killed while it wrote
    swarm(root, path, calls)
    assert calls.read_bytes() == b"xx"
    (root / "7.ds").write_bytes(b"changed")
    os.utime(root / "7.ds", ns=(1, 1))
    swarm(root, path, calls)
    assert calls.read_bytes() == b"xxx"


KILLED = """
import os, signal, sys
from pathlib import Path
from millstream.formats.file_list import list_files
def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "while finding":
    find = die
else:
    find = lambda: sorted(Path(sys.argv[1]).glob("*.ds"))
    setattr(os, sys.argv[3], die)
list_files(Path(sys.argv[2]), Path(sys.argv[1]), find)
"""


@pytest.mark.process
@pytest.mark.parametrize("moment", ["while finding", "fsync", "rename"])
def test_a_killed_process_leaves_nothing_that_misleads(tmp_path, root, moment):
    paths = make_files(root, {"a.ds": 1, "b.ds": 2})
    (tmp_path / "lists").mkdir()
    path = tmp_path / "lists" / "list.json"
    command = [sys.executable, "-c", KILLED, str(root), str(path), moment]
    died = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not path.exists()
    assert list_files(path, root, lambda: paths) == measure_files(paths)
    assert os.listdir(tmp_path / "lists") == ["list.json"]


def test_an_error_while_finding_frees_the_lock(tmp_path, root, paths):
    with pytest.raises(ZeroDivisionError):
        list_files(tmp_path / "list.json", root, lambda: [Path() for _ in range(1 // 0)])
    assert len(list_files(tmp_path / "list.json", root, lambda: paths)) == 3


@pytest.mark.process
def test_listing_files_imports_nothing_large():
    program = (
        "import sys, millstream.formats.file_list\n"
        "assert not {'torch', 'pyarrow', 'rich'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# Lists that lead elsewhere


@pytest.mark.parametrize("name", ["../secret.bin", "{root}/secret.bin", "sub/../../secret.bin"])
@pytest.mark.parametrize("as_companion", [False, True])
def test_a_list_opens_files_outside_of_its_directory_only_if_that_is_allowed(
    tmp_path, name, as_companion
):
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    for path in (tmp_path / "secret.bin", folder / "own.bin"):
        path.write_bytes(b"\1\0\2\0")
    outside = {"path": name.format(root=tmp_path), "size": 4}
    entries = [{"path": "own.bin", "size": 4, "companions": [outside]}]
    if not as_companion:
        entries = [{"path": "own.bin", "size": 4}, outside]
    (folder / "files.json").write_text(json.dumps(entries))
    for source in (folder, folder / "files.json", f"{tmp_path}/data/../data"):
        with pytest.raises(UsageError, match=r"outside of its directory.*allow_outside=True"):
            millstream.open(source)
    opened = millstream.open(folder, allow_outside=True)
    assert opened.num_records == (2 if as_companion else 4)
    assert [main(["verify", str(folder), *more]) for more in ([], ["--allow-outside"])] == [1, 0]


def test_a_list_may_name_its_own_files_absolutely_and_by_links(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "blob").write_bytes(b"\1\0\2\0")
    (folder / "own.bin").symlink_to(tmp_path / "blob")
    entries = [{"path": str(folder / "own.bin"), "size": 4}]
    (folder / "files.json").write_text(json.dumps(entries))
    assert millstream.open(folder).num_records == 2


def test_a_list_kept_elsewhere_works_as_long_as_the_source_is_named(tmp_path):
    folder, listed = tmp_path / "data", tmp_path / "lists" / "mine.json"
    folder.mkdir()
    (folder / "own.bin").write_bytes(b"\1\0\2\0")
    for _ in range(2):
        assert millstream.open(folder, file_list=listed).num_records == 2
    with pytest.raises(UsageError, match="outside of its directory"):
        millstream.open(listed)
