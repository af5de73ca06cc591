"""datatrove's datasets: its own items bit for bit, defects fixed."""

import json
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from millstream.compat.datatrove import DatatroveFileDataset, DatatroveFolderDataset
from millstream.errors import FormatError, MillstreamError, MissingDataError, ReadError, UsageError
from tests.helpers import paths

GOLDEN = paths.GOLDEN / "datatrove_compat"
CASES = json.loads((GOLDEN / "items.json").read_text())["cases"]


def write(path, tokens, ends=None, token_size=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.asarray(tokens, f"<u{token_size}").tofile(path)
    if ends is not None:
        np.asarray(ends, "<u8").tofile(f"{path}.index")
    return path


def write_folder(folder, counts):
    """Files of `counts` tokens that go on from file to file, one document each."""
    starts = accumulate(counts.values(), initial=0)
    for (name, count), start in zip(counts.items(), starts, strict=False):
        write(folder / name, range(start, start + count), [count])
    return folder


def first_tokens(dataset):
    return [dataset[k]["input_ids"][0].item() for k in range(len(dataset))]


# Golden items


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['path']} {case['options']}")
def test_items_are_those_of_datatrove(case):
    options = dict(case["options"])
    make = {"file": DatatroveFileDataset, "folder": DatatroveFolderDataset}[case["kind"]]
    if case["kind"] == "folder" and "/" not in options.get("filename_pattern", ""):
        options["recursive"] = False  # datatrove does not descend there
    dataset = make(GOLDEN / case["path"], **options)
    assert len(dataset) == len(case["items"])
    # Backwards first, where datatrove would have to start again for every item.
    for k in [*reversed(range(len(dataset))), *range(len(dataset))]:
        item = dataset[k]
        assert {name: tensor.tolist() for name, tensor in item.items()} == case["items"][k]
        assert {tensor.dtype for tensor in item.values()} == {torch.int64}


def test_the_golden_items_hold_what_they_should():
    kinds = {(case["kind"], "positions" in case["items"][0]) for case in CASES}
    assert kinds == {("file", True), ("file", False), ("folder", True), ("folder", False)}


def test_a_paths_file_of_datatrove_decides_which_files_there_are(tmp_path):
    expected = DatatroveFolderDataset(GOLDEN / "data", 63, recursive=False)
    dataset = DatatroveFolderDataset(GOLDEN / "data", 63, paths_file=GOLDEN / "paths.json")
    assert [Path(file.file_path).name for file in dataset.files] == [
        "000.ds",
        "001.ds",
        "002.ds",
        "010.ds",
    ]
    assert first_tokens(dataset) == first_tokens(expected)


# Positions against a model


def naive_positions(lengths, start, stop):
    starts = [0] * sum(lengths)
    end = 0
    for length in lengths:
        for k in range(length):
            starts[end + k] = end
        end += length
    return [k - max(starts[k], start) for k in range(start, stop)]


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.one_of(st.just(0), st.integers(0, 30)), min_size=1, max_size=40),
    seq_len=st.integers(1, 20),
    token_size=st.sampled_from([2, 4]),
    order=st.randoms(use_true_random=False),
)
@example([3, 0, 2, 0, 8], 9, 2, None)
@example([0, 0, 4, 0], 1, 2, None)
@example([5, 5], 4, 4, None)
def test_positions_count_from_the_start_of_the_document_or_the_window(
    lengths, seq_len, token_size, order
):
    width, ends = seq_len + 1, list(accumulate(lengths))
    tokens = np.arange(1, ends[-1] + 1)
    tokens[[end - 1 for end in ends if end]] = 0
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "a.ds"), tokens, ends, token_size)
        by_index = DatatroveFileDataset(path, seq_len, token_size, return_positions=True)
        by_token = DatatroveFileDataset(path, seq_len, token_size, True, 0)
        assert len(by_index) == len(by_token) == len(tokens) // width
        items = list(range(len(by_index)))
        if order is not None:
            order.shuffle(items)
        for item in items:
            start, stop = item * width, (item + 1) * width
            expected = naive_positions(lengths, start, stop)
            for dataset in (by_index, by_token):
                found = dataset[item]
                assert found["input_ids"].tolist() == tokens[start:stop].tolist()
                assert found["positions"].tolist() == expected


def test_documents_without_tokens_do_not_stop_positions(tmp_path):
    path = write(tmp_path / "a.ds", range(13), [3, 3, 5, 5, 13])
    item = DatatroveFileDataset(path, 9, return_positions=True)[0]
    assert item["positions"].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3, 4]


def test_an_index_is_searched_not_read(tmp_path):
    """256 GiB of empty documents: whoever reads them all does not come back in time."""
    path = write(tmp_path / "a.ds", range(100), [])
    num_bytes = 1 << 38
    os.truncate(f"{path}.index", num_bytes)
    with Path(f"{path}.index").open("r+b") as file:
        file.seek(num_bytes - 16)
        file.write(np.array([70, 100], "<u8").tobytes())
    dataset = DatatroveFileDataset(path, 9, return_positions=True)
    assert dataset[9]["positions"].tolist() == list(range(10))
    assert dataset[6]["positions"].tolist() == list(range(10))
    assert dataset[0]["positions"].tolist() == list(range(10))


# Indices


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_items_count_from_both_ends_and_stop_there(tmp_path, kind):
    write_folder(tmp_path, {"a.ds": 21, "b.ds": 3, "c.ds": 14})
    if kind == "file":
        dataset = DatatroveFileDataset(tmp_path / "a.ds", 3)
    else:
        dataset = DatatroveFolderDataset(tmp_path, 3)
    length = len(dataset)
    assert length == (5 if kind == "file" else 8)
    for k in range(length):
        assert dataset[k - length]["input_ids"].tolist() == dataset[k]["input_ids"].tolist()
    for item in (length, length + 1, -length - 1, 1 << 70):
        with pytest.raises(IndexError, match=f"does not exist; there are {length}"):
            dataset[item]
    assert [item["input_ids"][0].item() for item in dataset] == first_tokens(dataset)


def test_any_integer_is_an_index(tmp_path):
    dataset = DatatroveFileDataset(write(tmp_path / "a.ds", range(2000)), 9)
    for item in (np.uint8(199), np.int32(199), torch.tensor(199), np.int64(-1)):
        assert dataset[item]["input_ids"][0] == 1990
    with pytest.raises(TypeError):
        dataset[1.0]


def test_items_are_their_own_memory(tmp_path):
    path = write(tmp_path / "a.ds", range(40), [40])
    dataset = DatatroveFileDataset(path, 9, return_positions=True)
    expected = {name: tensor.tolist() for name, tensor in dataset[1].items()}
    for tensor in dataset[1].values():
        tensor.fill_(-1)
    assert {name: tensor.tolist() for name, tensor in dataset[1].items()} == expected


# Folders


def test_folders_below_belong_to_the_dataset(tmp_path):
    write_folder(tmp_path, {"b.ds": 4, "c/d.ds": 4, "a/x/y.ds": 4, "a.ds": 4, "a/x/y.txt": 4})
    found = DatatroveFolderDataset(tmp_path, 3)
    names = [file.file_path for file in found.files]
    assert names == ["a.ds", "a/x/y.ds", "b.ds", "c/d.ds"]
    assert first_tokens(found) == [12, 8, 0, 4]
    top = DatatroveFolderDataset(tmp_path, 3, recursive=False)
    assert first_tokens(top) == [12, 0]
    assert first_tokens(DatatroveFolderDataset(tmp_path, 3, "a/**/*.ds")) == [8]
    assert first_tokens(DatatroveFolderDataset(tmp_path, 3, "c/d.ds")) == [4]
    assert first_tokens(DatatroveFolderDataset(tmp_path, 3, "?.ds", recursive=False)) == [12, 0]


def test_links_are_followed_but_not_in_circles(tmp_path):
    write_folder(tmp_path, {"data/a.ds": 4, "elsewhere/b.ds": 4, "elsewhere/lost+found/c.ds": 4})
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "self").symlink_to("self")
    assert first_tokens(DatatroveFolderDataset(tmp_path / "data", 3)) == [0, 4]


def test_the_current_file_is_the_one_that_was_read_last(tmp_path):
    write_folder(tmp_path, {"a.ds": 4, "b.ds": 0, "c.ds": 8})
    dataset = DatatroveFolderDataset(str(tmp_path), 3)
    for item, name in ((0, "a.ds"), (2, "c.ds"), (-3, "a.ds"), (1, "c.ds")):
        dataset[item]
        assert dataset.current_file_path == str(tmp_path / name)


def test_files_stay_open_between_reads(tmp_path):
    def open_files():
        links = [each for each in Path("/proc/self/fd").iterdir() if each.is_file()]
        found = {each.name: each.readlink() for each in links}
        return {path.name: number for number, path in found.items() if path.parent == tmp_path}

    write_folder(tmp_path, {"a.ds": 8, "b.ds": 8})
    dataset = DatatroveFolderDataset(tmp_path, 3)
    dataset[0]
    first = open_files()
    assert list(first) == ["a.ds"]
    dataset[2]
    both = open_files()
    assert both.keys() == {"a.ds", "b.ds"}
    dataset[1], dataset[3]
    assert open_files() == both
    assert both["a.ds"] == first["a.ds"]


@pytest.mark.slow
def test_a_folder_may_have_more_files_than_a_process_can_open(tmp_path):
    write_folder(tmp_path, {f"{k:03}.ds": 8 for k in range(250)})
    expected = [4 * k for k in range(500)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        dataset = DatatroveFolderDataset(tmp_path, 3, return_positions=True)
        assert first_tokens(dataset) == expected
        with ThreadPoolExecutor(4) as threads:  # each closes files that others are reading
            for found in threads.map(first_tokens, [dataset] * 4):
                assert found == expected
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_folder_without_files_is_an_error(tmp_path):
    with pytest.raises(MissingDataError, match=r"no file matches '\.ds'"):
        DatatroveFolderDataset(tmp_path, 3, paths_file=tmp_path / "paths.json")
    with pytest.raises(UsageError, match=rf"a file, not a folder; .*, {tmp_path}"):
        DatatroveFolderDataset(write(tmp_path / "a.bin", [1, 2, 3]), 9, recursive=False)
    with pytest.raises(MissingDataError, match="nowhere: no such folder"):
        DatatroveFolderDataset(tmp_path / "nowhere", 3)
    (tmp_path / "gone.ds").symlink_to("nothing")
    with pytest.raises(MissingDataError, match=r"gone\.ds: missing"):
        DatatroveFolderDataset(tmp_path, 3)


# Files that are not what they should be


def test_a_file_of_half_tokens_is_an_error(tmp_path):
    path = write(tmp_path / "a.ds", range(11))
    with pytest.raises(FormatError, match=r"22 bytes, not a multiple of the 4 bytes of uint32"):
        DatatroveFileDataset(path, 3, token_size=4)
    with pytest.raises(FormatError, match=r"22 bytes, not a multiple of the 4 bytes of uint32"):
        DatatroveFolderDataset(tmp_path, 3, token_size=4)
    with pytest.raises(FormatError, match=r"21 bytes, not a multiple of the 2 bytes of uint16"):
        DatatroveFileDataset(path, 3, fsize=21)


def test_a_file_that_is_shorter_than_it_was_is_an_error(tmp_path):
    path = write(tmp_path / "a.ds", range(12))
    dataset = DatatroveFileDataset(path, 3)
    os.truncate(path, 22)
    with pytest.raises(FormatError, match=r"a\.ds: 22 bytes, expected 24; the file was truncated"):
        dataset[0]
    path.unlink()
    with pytest.raises(MissingDataError, match=r"a\.ds: missing"):
        dataset[0]
    with pytest.raises(MissingDataError, match=r"a\.ds: missing"):
        DatatroveFileDataset(path, 3)
    os.mkfifo(path)
    with pytest.raises(FormatError, match="not a regular file"):
        DatatroveFileDataset(path, 3)
    with pytest.raises((ReadError, FormatError), match=r"a\.ds: "):
        dataset[0]


def test_a_missing_index_is_an_error_before_training(tmp_path):
    write(tmp_path / "a.ds", range(12))
    with pytest.raises(MissingDataError, match=r"a\.ds\.index: missing; .*positions_from_eos"):
        DatatroveFolderDataset(tmp_path, 3, return_positions=True)
    positions = DatatroveFolderDataset(
        tmp_path, 3, return_positions=True, positions_from_eos_token_id=1
    )[0]["positions"]
    assert positions.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("ends", "item", "message"),
    [
        ([], 0, "ends at token 0, but the data file has 12"),
        ([5, 10], 0, "ends at token 10, but the data file has 12"),
        ([5, 13], 0, "ends at token 13, but the data file has 12"),
        ([5, (1 << 64) - 1], 0, f"ends at token {(1 << 64) - 1:,}, but the data file has 12"),
        ([6, 5, 7, 12], 1, "not ascending near entry"),
        ([1, 3, 2, 12], 0, "not ascending near entry"),
        ([1 << 63, 3, 12], 0, "not ascending near entry"),
        ([2, 11, 9, 12], 2, "not ascending near entry"),
        ([5, 3, 6, 12], 2, "not ascending near entry"),
        ([1, 2, 9, 8, 12], 0, "not ascending near entry"),
    ],
)
def test_an_index_that_cannot_be_right_is_an_error(tmp_path, ends, item, message):
    path = write(tmp_path / "a.ds", range(12), ends)
    dataset = DatatroveFileDataset(path, 3, return_positions=True)
    with pytest.raises(FormatError, match=rf"a\.ds\.index: .*{re.escape(message)}"):
        dataset[item]


def test_an_index_that_was_cut_within_an_entry_is_an_error(tmp_path):
    path = write(tmp_path / "a.ds", range(12), [5, 12])
    os.truncate(f"{path}.index", 12)
    with pytest.raises(
        FormatError, match=r"a\.ds\.index: 12 bytes, not a multiple of the 8 bytes of uint64"
    ):
        DatatroveFileDataset(path, 3, return_positions=True)


words = st.one_of(st.integers(0, 30), st.sampled_from([1 << 31, 1 << 63, (1 << 64) - 1]))


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.lists(words, max_size=8), st.booleans())
def test_any_index_gives_positions_or_is_refused(ends, is_last_right):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "a.ds"), range(24), [*ends, 24] if is_last_right else ends)
        dataset = DatatroveFileDataset(path, 5, return_positions=True)
        for item in range(4):
            try:
                positions = dataset[item]["positions"].tolist()
            except MillstreamError:
                continue
            assert positions[0] == 0
            assert all(b in (0, a + 1) for a, b in pairwise(positions))
            assert {k for k in range(1, 6) if positions[k] == 0} <= {e - 6 * item for e in ends}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seq_len": 0}, "seq_len is 0"),
        ({"seq_len": 2.5}, "seq_len is 2.5"),
        ({"token_size": 3}, "token_size is 3"),
        ({"positions_from_eos_token_id": 1 << 16}, "positions_from_eos_token_id is 65536"),
        ({"fsize": -2}, "fsize is -2"),
        ({"file_path": "hf://bucket/a.ds"}, "'hf://bucket/a.ds'; it must be a path or a URL"),
        ({"file_path": ("a.ds", None)}, "it must be a path or a URL"),
    ],
)
def test_arguments_that_cannot_work_are_refused(tmp_path, arguments, message):
    path = write(tmp_path / "a.ds", range(12))
    with pytest.raises(UsageError, match=re.escape(message)):
        DatatroveFileDataset(**{"file_path": path, "seq_len": 3} | arguments)


# What datatrove takes for a file or a folder: datatrove 0.10.1 gave the same paths

fsspec = pytest.importorskip("fsspec")
LOCAL = fsspec.filesystem("file")


class DataFolder(fsspec.get_filesystem_class("dir")):
    """As datatrove's, which adds to a folder of fsspec what is not used here."""

    def __init__(self, path, fs=LOCAL):
        super().__init__(path=path, fs=fs)


FOLDERS = {
    "relative": lambda root: "data",
    "file URL": lambda root: f"file://{root}",
    "local URL": lambda root: f"local://{root}",
    "options": lambda root: (str(root), {"auto_mkdir": True}),
    "file system": lambda root: (str(root), LOCAL),
    "relative in a file system": lambda root: ("data", LOCAL),
    "DataFolder": lambda root: DataFolder(str(root)),
    "in a DataFolder": lambda root: ("data", DataFolder(str(root.parent))),
    "DataFolder in a DataFolder": lambda root: DataFolder("data", DataFolder(str(root.parent))),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_may_be_all_that_datatrove_takes(tmp_path, monkeypatch, kind):
    root = write_folder(tmp_path / "data", {"000.ds": 12, "sub/001.ds": 12})
    monkeypatch.chdir(tmp_path)
    given = FOLDERS[kind](root)
    dataset = DatatroveFolderDataset(given, 5, "**/*.ds", return_positions=True)
    assert dataset.folder_path == str(root)
    assert dataset.data_folder is given
    assert [file.file_path for file in dataset.files] == ["000.ds", "sub/001.ds"]
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(dataset))
    assert first_tokens(again) == [0, 6, 12, 18]
    assert again.current_file_path == str(root / "sub" / "001.ds")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (lambda root: "data/000.ds", "{root}/000.ds"),
        (lambda root: f"file://{root}/000.ds", "{root}/000.ds"),
        (lambda root: (f"{root}/000.ds", {}), "{root}/000.ds"),
        (lambda root: (f"{root}/000.ds", LOCAL), "{root}/000.ds"),
        (lambda root: ("000.ds", DataFolder(str(root))), "000.ds"),
        (lambda root: ("data/000.ds", DataFolder(str(root.parent))), "data/000.ds"),
        (lambda root: DataFolder(f"{root}/000.ds"), "{root}/000.ds"),
    ],
)
def test_a_file_may_be_all_that_datatrove_takes(tmp_path, monkeypatch, given, shown):
    root = write_folder(tmp_path / "data", {"000.ds": 12})
    monkeypatch.chdir(tmp_path)
    dataset = DatatroveFileDataset(given(root), 5, return_positions=True)
    assert dataset.file_path == shown.format(root=root)
    monkeypatch.chdir("/")
    assert first_tokens(dataset) == [0, 6]


def test_what_is_not_on_this_machine_is_said_to_be_elsewhere(tmp_path):
    memory = fsspec.filesystem("memory")
    for elsewhere in ("hf://a/b", "memory://a", ("a", memory), DataFolder("a", memory), ["a"], 3):
        with pytest.raises(UsageError, match="it must be a path or a URL"):
            DatatroveFileDataset(elsewhere, 5)
        with pytest.raises(UsageError, match="it must be a path or a URL"):
            DatatroveFolderDataset(elsewhere, 5)
    with pytest.raises(UsageError, match="is outside of"):
        DatatroveFileDataset(("../a.ds", DataFolder(str(tmp_path))), 5)


def test_a_paths_file_may_be_a_url_and_does_not_lead_out_of_the_folder(tmp_path):
    root = write_folder(tmp_path / "data", {"000.ds": 12})
    write(tmp_path / "secret.ds", range(12))
    listed = tmp_path / "paths.json"
    for _ in range(2):
        dataset = DatatroveFolderDataset(root, 5, paths_file=f"file://{listed}")
        assert dataset.paths_file == f"file://{listed}"
        assert len(dataset) == 2
    for path in ("../secret.ds", str(tmp_path / "secret.ds")):
        listed.write_text(json.dumps([{"path": path, "size": 24}]))
        with pytest.raises(FormatError, match=r"secret.ds, which is not in"):
            DatatroveFolderDataset(root, 5, paths_file=listed)


# Torch and processes


def test_they_are_datasets_of_torch(tmp_path):
    folder = DatatroveFolderDataset(write_folder(tmp_path, {"a.ds": 8, "b.ds": 8}), 3)
    assert isinstance(folder, Dataset)
    both = folder + folder.files[0]
    assert isinstance(both, ConcatDataset)
    assert first_tokens(both) == [0, 4, 8, 12, 0, 4]


def test_a_pickled_dataset_opens_its_own_files(tmp_path):
    write_folder(tmp_path, {"a.ds": 30_000, "b.ds": 10_000})
    dataset = DatatroveFolderDataset(tmp_path, 99, return_positions=True)
    expected = first_tokens(dataset)
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 2000
    del dataset
    copy = pickle.loads(pickled)
    assert first_tokens(copy) == expected == list(range(0, 40_000, 100))
    assert copy[-1]["positions"].tolist() == list(range(100))


@pytest.mark.process
def test_workers_that_were_forked_from_open_files_read_the_right_items(tmp_path):
    write_folder(tmp_path, {"a.ds": 6000, "b.ds": 4000})
    dataset = DatatroveFolderDataset(tmp_path, 9, return_positions=True)
    expected = first_tokens(dataset)  # every file is open now
    loader = DataLoader(dataset, batch_size=10, num_workers=2, multiprocessing_context="fork")
    found = []
    for batch in loader:
        found += batch["input_ids"][:, 0].tolist()
        assert batch["positions"].tolist() == [list(range(10))] * 10
        assert dataset[0]["input_ids"].tolist() == list(range(10))  # meanwhile, here
    assert found == expected


SWARM = """
import os, sys
from millstream.compat import datatrove
calls = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
find_files = datatrove.find_files
def find(*arguments, **options):
    os.write(calls, b"x")
    return find_files(*arguments, **options)
datatrove.find_files = find
wait, go = os.pipe()
children = []
for _ in range(120):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(go)
            os.read(wait, 1)  # all of them at the same moment
            dataset = datatrove.DatatroveFolderDataset(sys.argv[1], 3, paths_file=sys.argv[2])
            same = [int(dataset[k]["input_ids"][0]) for k in range(len(dataset))]
            status = 0 if same == list(range(0, 40, 4)) else 2
        finally:
            os._exit(status)
    children.append(child)
os.close(go)
bad = [s for s in (os.waitpid(child, 0)[1] for child in children) if s]
print(len(children), len(bad))
"""


@pytest.mark.process
def test_one_of_120_processes_makes_the_paths_file(tmp_path):
    folder = write_folder(tmp_path / "data", {f"{k}.ds": 4 for k in range(10)})
    paths_file, calls = tmp_path / "paths.json", tmp_path / "calls"
    command = [sys.executable, "-c", SWARM, str(folder), str(paths_file), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout == "120 0\n", done.stderr[-2000:]
    assert calls.read_bytes() == b"x"
    entries = json.loads(paths_file.read_text())
    assert [(entry["path"], entry["size"]) for entry in entries] == [
        (f"{k}.ds", 8) for k in range(10)
    ]


def test_a_paths_file_notices_that_a_file_was_written_again(tmp_path):
    write_folder(tmp_path, {"a.ds": 4, "b.ds": 4})
    paths_file = shutil.copy(GOLDEN / "paths.json", tmp_path)  # of another folder
    assert first_tokens(DatatroveFolderDataset(tmp_path, 3, paths_file=paths_file)) == [0, 4]
    write(tmp_path / "a.ds", range(100, 112))
    found = first_tokens(DatatroveFolderDataset(tmp_path, 3, paths_file=paths_file))
    assert found == [100, 104, 108, 4]
    write(tmp_path / "c.ds", range(8))  # not listed: the list says what the dataset is
    assert len(DatatroveFolderDataset(tmp_path, 3, paths_file=paths_file)) == 4


@pytest.mark.process
def test_without_torch_they_say_what_to_install(tmp_path):
    program = (
        "import sys, millstream.compat\n"
        "assert not {'numpy', 'torch'} & set(sys.modules)\n"
        "sys.modules['torch'] = None  # any import of it fails\n"
        "from millstream.compat.datatrove import DatatroveFileDataset\n"
        "DatatroveFileDataset(sys.argv[1], 3)\n"
    )
    path = write(tmp_path / "a.ds", range(8))
    result = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert "UsageError: datatrove's datasets need torch: pip install" in result.stderr
