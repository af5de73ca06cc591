"""`open`: several directories as one stream, and errors that name the file."""

import contextlib
import errno
import json
import os
import resource
import tempfile
from pathlib import Path

import numpy as np
import pytest

import millstream
from millstream.errors import FormatError, MillstreamError, MissingDataError, ReadError, UsageError

ALL_FILES = [".stream", ".documents", ".index", ".metadata"]
ACCESS = ["pread", "mmap"]


def write(path, *documents, **options):
    options.setdefault("vocab_size", 1000)
    with millstream.Writer(path, **options) as writer:
        for document in documents:
            writer.append(document)
    return path


def write_with_metadata(path):
    """One shard: 5 records of 6 bytes, 2 documents, 1 span of 3 bytes."""
    with millstream.Writer(path, vocab_size=1000, metadata=bytes) as writer:
        writer.append([1, 2, 3], b"abc")
        writer.append([4, 5])
    return path


def write_sparse(path, num_shards, records_per_shard):
    """Files without content and a manifest by hand: large datasets that cost nothing."""
    path.mkdir()
    shards = []
    for k in range(num_shards):
        name = f"{k:05d}"
        for suffix, size in ((".stream", 2 * records_per_shard), (".documents", 8)):
            (path / f"{name}{suffix}").touch()
            os.truncate(path / f"{name}{suffix}", size)
        files = {
            ".stream": {"bytes": 2 * records_per_shard, "xxh3": "0" * 16},
            ".documents": {"bytes": 8, "xxh3": "0" * 16},
        }
        shards.append(
            {"name": name, "records": records_per_shard, "documents": 0, "spans": 0, "files": files}
        )
    manifest = {
        "format": "millstream-stream",
        "version": 1,
        "fields": [["token", "<u2"]],
        "vocab_size": None,
        "tokenizer": {},
        "bos_id": None,
        "eos_id": None,
        "shards": shards,
    }
    (path / "millstream.json").write_text(json.dumps(manifest))
    return path


@contextlib.contextmanager
def without_privileges():
    """Root may read everything: give that up for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public_path():
    """A directory that everybody can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


# One dataset from many directories


def test_directories_combine_in_the_order_given(tmp_path):
    a = write(tmp_path / "a", [1, 2], shard_bytes=1)
    b = write(tmp_path / "b", [3], [4, 5], shard_bytes=1)
    data = millstream.open([b, str(a)])
    assert data.records(0, 99).tolist() == [3, 4, 5, 1, 2]
    assert (data.num_records, data.num_documents, len(data.shards)) == (5, 3, 3)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ("d", "d/b.bin: is opened twice, as .*d/a.bin and .*d/b.bin; its tokens"),
        ("d/*.bin", "d/b.bin: is opened twice, as .*d/a.bin and .*d/b.bin"),
        (["d/a.bin", "d/a.bin"], "d/a.bin: is given twice; its tokens"),
        (["d/a.bin", "d/../d/a.bin"], r"is opened twice, as .*d/a.bin and .*d/\.\./d/a.bin"),
        (["e/a.bin", "e"], "e/a.bin: is opened twice, as .*e/a.bin and .*/e; its tokens"),
        (["e/a.bin", "link/a.bin"], "is opened twice, as .*e/a.bin and .*link/a.bin"),
        (["own", "own"], "own: is given twice"),
        (["own", "own_link"], "own_link: is opened twice, as .*own and .*own_link"),
        (
            ["own", "own/millstream.json"],
            "own: is opened twice, as .*own and .*/own/millstream.json",
        ),
        (["link", "e"], "e: is opened twice, as .*link and .*e; its tokens"),
        (["t.parquet", "t.parquet"], "t.parquet: is given twice"),
    ],
)
def test_tokens_that_are_reached_twice_are_refused(tmp_path, monkeypatch, sources, message):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in ("d", "e"):
        Path(name).mkdir()
        np.arange(300, 400, dtype="<u2").tofile(f"{name}/a.bin")
    Path("d/b.bin").symlink_to("a.bin")
    Path("link").symlink_to("e")
    Path("own_link").symlink_to(write(tmp_path / "own", [1, 2]))
    pq = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"input_ids": [[1, 2]]})
    pq.write_table(table, "t.parquet")
    with pytest.raises(FormatError, match=message):
        millstream.open(sources)
    assert millstream.open(["d/a.bin", "e/a.bin"]).num_records == 200


def test_tokens_that_are_reached_twice_by_a_list_of_files_are_refused(tmp_path):
    np.arange(300, 400, dtype="<u2").tofile(tmp_path / "a.bin")
    (tmp_path / "b.bin").symlink_to("a.bin")
    with pytest.raises(FormatError, match=r"opened twice, as .*a\.bin and .*b\.bin"):
        millstream.open(tmp_path, file_list=tmp_path / "files.json")


def test_links_to_different_files_and_one_mask_for_two_files_open(tmp_path):
    (tmp_path / "links").mkdir()
    for name in ("a", "b"):
        np.arange(300, 400, dtype="<u2").tofile(tmp_path / f"{name}.bin")
        (tmp_path / "links" / f"{name}.bin").symlink_to(tmp_path / f"{name}.bin")
    (tmp_path / "mask").write_bytes(bytes(100))
    data = millstream.open(tmp_path / "links", loss_masks=[tmp_path / "mask"] * 2)
    assert data.num_records == 200


def test_a_glob_opens_in_the_order_of_names(tmp_path):
    for name in ("part-2", "part-0", "part-1"):
        write(tmp_path / name, [int(name[-1])])
    assert millstream.open(str(tmp_path / "part-*")).records(0, 9).tolist() == [0, 1, 2]
    assert millstream.open(tmp_path / "part-[02]").records(0, 9).tolist() == [0, 2]


def test_a_directory_with_a_glob_character_in_its_name_is_itself(tmp_path):
    write(tmp_path / "a[1]", [7])
    write(tmp_path / "a1", [8])
    assert millstream.open(tmp_path / "a[1]").records(0, 9).tolist() == [7]


def test_the_manifest_itself_can_be_named(tmp_path):
    assert millstream.open(write(tmp_path, [7]) / "millstream.json").num_records == 1


def test_the_vocabulary_of_a_combination_is_the_largest(tmp_path):
    a, b = write(tmp_path / "a", [1], vocab_size=10), write(tmp_path / "b", [1], vocab_size=20)
    c = write(tmp_path / "c", [1], vocab_size=None, fields="<u2")
    assert millstream.open([a, b]).vocab_size == 20
    assert millstream.open([a, c]).vocab_size is None


def test_different_records_do_not_make_one_stream(tmp_path):
    a, b = write(tmp_path / "a", [1]), write(tmp_path / "b", [1], vocab_size=70_000)
    with pytest.raises(FormatError) as caught:
        millstream.open([a, b])
    assert all(text in str(caught.value) for text in (str(a), str(b), "<u2", "<u4"))


def test_a_moved_dataset_has_the_same_fingerprint_and_another_one_has_not(tmp_path):
    a = millstream.open(write(tmp_path / "a", [1, 2], [3])).fingerprint
    (tmp_path / "a").rename(tmp_path / "moved")
    assert millstream.open(tmp_path / "moved").fingerprint == a
    assert millstream.open(write(tmp_path / "b", [1, 2], [4])).fingerprint != a
    assert millstream.open(write(tmp_path / "c", [1, 2], [3], shard_bytes=1)).fingerprint != a


# What is not a dataset


def test_nothing_to_open_is_said(tmp_path):
    with pytest.raises(UsageError, match="the list of paths is empty"):
        millstream.open([])
    with pytest.raises(MissingDataError, match=r"none-\*: the pattern matches nothing"):
        millstream.open(tmp_path / "none-*")
    with pytest.raises(FileNotFoundError, match="absent: no such file or directory"):
        millstream.open(tmp_path / "absent")
    with pytest.raises(MissingDataError, match=r"contains no dataset: neither millstream.json nor"):
        millstream.open(tmp_path)


def test_a_file_of_no_known_format_is_refused(tmp_path):
    (tmp_path / "data.dat").write_bytes(b"1\x0034")
    with pytest.raises(FormatError, match=r"data.dat: starts with b'1\\x0034', which is not a "):
        millstream.open(tmp_path / "data.dat")


def test_a_name_that_no_file_system_takes_is_an_error_of_ours(tmp_path):
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(MillstreamError):
            millstream.open(tmp_path / name)


def test_an_unknown_way_of_access_is_refused(tmp_path):
    with pytest.raises(UsageError, match="'pread' or 'mmap'"):
        millstream.open(write(tmp_path, [1]), access="carrier pigeon")


@pytest.mark.parametrize("kind", ["pipe", "directory"])
@pytest.mark.parametrize(
    "name",
    [
        "millstream.json",
        "files.json",
        "index.json",
        "state.json",
        "x.bin",
        "x.idx",
        "x.ds.index",
        "x.ds.metadata",
        "x.csv.gz",
    ],
)
def test_a_manifest_or_a_companion_that_is_no_file_is_an_error_and_no_wait(tmp_path, name, kind):
    for data in {"x.idx": ["x.bin"], "x.csv.gz": ["x.npy"]}.get(name, []):
        (tmp_path / data).write_bytes(b"\1\0\2\0")
    if ".ds." in name:
        (tmp_path / "x.ds").write_bytes(b"\1\0\2\0")
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(MillstreamError, match=r"not a regular file|contains no dataset"):
        millstream.open(tmp_path)


# Files that are not what the manifest says


@pytest.mark.parametrize("suffix", ALL_FILES)
def test_a_missing_file_is_named_with_its_size(tmp_path, suffix):
    write_with_metadata(tmp_path)
    size = (tmp_path / f"00000{suffix}").stat().st_size
    (tmp_path / f"00000{suffix}").unlink()
    with pytest.raises(MissingDataError, match=rf"00000{suffix}: missing; .* {size} bytes"):
        millstream.open(tmp_path)


@pytest.mark.parametrize("suffix", ALL_FILES)
@pytest.mark.parametrize(("change", "word"), [(-1, "short"), (1, "long"), (1000, "long")])
def test_a_short_or_long_file_is_named_with_both_sizes(tmp_path, suffix, change, word):
    write_with_metadata(tmp_path)
    path = tmp_path / f"00000{suffix}"
    expected = path.stat().st_size
    os.truncate(path, expected + change)
    with pytest.raises(FormatError) as caught:
        millstream.open(tmp_path)
    found = f"{expected + change:,} bytes, too {word}"
    assert f"{path}: {found}: the manifest says {expected:,}" in str(caught.value)


def test_a_foreign_manifest_is_refused_with_what_was_found(tmp_path):
    (tmp_path / "millstream.json").write_text('{"format": "mosaic", "version": 2}')
    message = r"millstream.json: format is 'mosaic', not 'millstream-stream'"
    with pytest.raises(FormatError, match=message):
        millstream.open(tmp_path)
    (tmp_path / "millstream.json").write_text('{"format": "millstream-stream", "version": 3}')
    with pytest.raises(
        FormatError, match=r"version is 3; this version of Millstream reads versions 1 and 2"
    ):
        millstream.open(tmp_path)


def test_a_manifest_for_wider_tokens_than_the_file_holds_is_refused(tmp_path):
    manifest = write(tmp_path, [1, 2, 3]) / "millstream.json"
    manifest.write_text(manifest.read_text().replace('"<u2"', '"<u4"'))
    with pytest.raises(FormatError) as caught:
        millstream.open(tmp_path)
    message = ".stream has 6 bytes, but 3 records of 4 bytes, 1 documents and 0 spans need 12"
    assert message in str(caught.value)
    assert "millstream.json" in str(caught.value)


def test_what_may_not_be_read_is_an_error_of_ours(public_path):
    write(public_path / "data", [1, 2])
    (public_path / "data" / "millstream.json").chmod(0)
    with without_privileges(), pytest.raises(ReadError, match=r"millstream.json.*[Pp]ermission"):
        millstream.open(public_path / "data")


def test_a_directory_that_may_not_be_entered_is_an_error_of_ours(public_path):
    write(public_path / "data", [1, 2])
    (public_path / "data").chmod(0)
    with without_privileges(), pytest.raises(millstream.MillstreamError, match="data"):
        millstream.open(public_path / "data")
    (public_path / "data").chmod(0o755)


# Files that change after they were opened


@pytest.mark.parametrize("access", ACCESS)
def test_a_file_that_goes_missing_is_named_when_it_is_read(tmp_path, access):
    data = millstream.open(write(tmp_path, [1] * 5, [2] * 5, shard_bytes=1), access=access)
    (tmp_path / "00001.stream").unlink()
    assert data.records(0, 5).tolist() == [1] * 5
    with pytest.raises(MissingDataError, match=r"00001.stream: missing; expected .* 10 bytes"):
        data.records(0, 10)


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("size", [0, 9, 11])
def test_a_file_that_changes_its_size_is_named_when_it_is_read(tmp_path, access, size):
    data = millstream.open(write(tmp_path, [1] * 5, [2] * 5, shard_bytes=1), access=access)
    os.truncate(tmp_path / "00001.stream", size)
    assert data.records(0, 5).tolist() == [1] * 5
    with pytest.raises(FormatError, match=rf"00001.stream: {size} bytes, expected 10"):
        data.windows(2).read([0, 3])


def test_a_file_that_becomes_a_directory_is_named_when_it_is_read(tmp_path):
    data = millstream.open(write(tmp_path, [1] * 5))
    (tmp_path / "00000.stream").unlink()
    (tmp_path / "00000.stream").mkdir()
    with pytest.raises(millstream.MillstreamError, match=r"00000.stream"):
        data.records(0, 5)


@pytest.mark.parametrize("access", ACCESS)
def test_a_file_that_may_no_longer_be_read_is_named_with_the_reason(public_path, access):
    data = millstream.open(write(public_path / "data", [1] * 5), access=access)
    data.records(0, 5)
    (public_path / "data" / "00000.stream").chmod(0)
    with without_privileges(), pytest.raises(ReadError, match=r"00000.stream.*Permission") as error:
        data.records(0, 5)
    assert error.value.errno == errno.EACCES


def test_a_directory_that_may_no_longer_be_entered_is_named_with_the_reason(public_path):
    data = millstream.open(write(public_path / "data", [1] * 5))
    data.records(0, 5)
    (public_path / "data").chmod(0)
    with without_privileges(), pytest.raises(ReadError, match=r"00000.stream.*Permission"):
        data.records(0, 5)
    (public_path / "data").chmod(0o755)


def test_a_file_cut_between_two_reads_is_named_with_the_offset(tmp_path):
    view = millstream.open(write(tmp_path, range(1000))).windows(100)
    batches = iter(millstream.Loader(view, 1, shuffle=False, prefetch=0, output="numpy"))
    next(batches)
    os.truncate(tmp_path / "00000.stream", 350)
    message = "00000.stream: ends at byte 350, expected 52 more"
    with pytest.raises(FormatError, match=message):
        next(batches)


def test_a_read_that_the_system_refuses_is_named_with_file_and_offset(tmp_path):
    view = millstream.open(write(tmp_path, range(1000))).windows(100)
    batches = iter(millstream.Loader(view, 1, shuffle=False, prefetch=0, output="numpy"))
    next(batches)
    stream = tmp_path / "00000.stream"
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    (held,) = [fd for fd in descriptors if os.path.samestat(fstat(fd), stream.stat())]
    with stream.open("ab") as for_writing_only:
        os.dup2(for_writing_only.fileno(), held)
    with pytest.raises(ReadError, match=r"00000.stream: cannot read at byte 200: Bad file"):
        next(batches)


def fstat(descriptor):
    try:
        return os.fstat(descriptor)
    except OSError:  # the one with which the directory was listed
        return Path("/").stat()


def test_a_relative_path_survives_a_change_of_directory(tmp_path, monkeypatch):
    write(tmp_path / "data", [1, 2, 3])
    monkeypatch.chdir(tmp_path)
    opened = [millstream.open("data"), millstream.open("da*")]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for data in opened:
        assert data.records(0, 3).tolist() == [1, 2, 3]


# Large


def num_open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.parametrize("access", ACCESS)
def test_ten_thousand_shards_are_read_with_few_open_files(tmp_path, access):
    path = write_sparse(tmp_path / "many", 10_000, 3)
    for k in (0, 5000, 9999):
        np.array([k, k, k], "<u2").tofile(path / f"{k:05d}.stream")
    data = millstream.open(path, access=access)
    assert (len(data.shards), data.num_records) == (10_000, 30_000)
    before = num_open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 150, hard))
    try:
        everything = data.records(0, 30_000)
        rows = data.windows(29_999).read([0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert num_open_files() <= before  # connections of other tests may close meanwhile
    expected = np.zeros(30_000, np.int64)
    for k in (0, 5000, 9999):
        expected[3 * k : 3 * k + 3] = k
    assert np.array_equal(everything, expected)
    assert np.array_equal(rows["labels"][0], expected[1:])


@pytest.mark.slow
@pytest.mark.parametrize("access", ACCESS)
def test_a_stream_of_a_trillion_tokens_is_read_at_its_far_end(tmp_path, access):
    per_shard = 1_100_000_000
    path = write_sparse(tmp_path / "huge", 1000, per_shard)
    end = np.arange(1, 101, dtype="<u2")
    for name, tokens, at in [
        ("00999.stream", end, per_shard - 100),
        ("00998.stream", np.array([9], "<u2"), per_shard - 1),
        ("00999.stream", np.array([8], "<u2"), 0),
    ]:
        with (path / name).open("r+b") as file:
            file.seek(2 * at)
            file.write(tokens.tobytes())
    data = millstream.open(path, access=access)
    assert data.num_records == 1_100_000_000_000
    assert data.records(data.num_records - 100, data.num_records).tolist() == end.tolist()
    view = data.windows(9)
    assert len(view) == (1_100_000_000_000 - 10) // 9 + 1
    last = (len(view) - 1) * 9
    tail = [0] * 100 + end.tolist()
    first = last - data.num_records + 200
    assert view[-1]["input_ids"].tolist() == tail[first : first + 9]
    assert view[-1]["labels"].tolist() == tail[first + 1 : first + 10]
    boundary = 999 * per_shard
    index = (boundary - 1) // 9
    window = view.read([index])
    both = [*window["input_ids"][0].tolist(), int(window["labels"][0, -1])]
    expected = {boundary - 1: 9, boundary: 8}
    assert both == [expected.get(index * 9 + k, 0) for k in range(10)]
    with pytest.raises(IndexError):
        view.read([len(view)])


def test_the_directory_of_a_tokenizer_is_not_a_dataset(tmp_path):
    np.save(tmp_path / "token_bytes.npy", np.arange(100, dtype=np.int32))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(MissingDataError, match="is a tokenizer, not a dataset"):
        millstream.open(tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        lambda tmp: millstream.open(""),
        lambda tmp: millstream.copy("", tmp / "copy"),
        lambda tmp: millstream.tokenize("", "bytes", tmp / "out"),
        lambda tmp: millstream.tokenize(tmp, "bytes", ""),
        lambda tmp: millstream.repack("", tmp / "out"),
        lambda tmp: millstream.finish(""),
        lambda tmp: millstream.Writer("", vocab_size=10),
    ],
)
def test_an_empty_path_is_not_the_current_directory(tmp_path, monkeypatch, call):
    """It comes from a variable that is not set."""
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"the path is empty; use '\.'"):
        call(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
