"""Names of remote files: encoded URLs, brackets, long names, and names that no store resolves."""

import contextlib

import numpy as np
import pytest

import millstream
from millstream.errors import FormatError, MillstreamError, ReadError, UsageError
from millstream.remote.urls import parse_url

pytest.importorskip("obstore")
pytestmark = pytest.mark.process

BODY = np.arange(5000, dtype=np.uint16).tobytes()


def num_records(url, **options):
    remote = millstream.Remote(total_seconds=5, **options)
    data = millstream.open(url, format="flat:uint16", remote=remote)
    assert data.windows(100)[7]["input_ids"][0] == 700
    return data.num_records


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("my file.bin", "my%20file.bin"),
        ("ü.bin", "%C3%BC.bin"),
        ("my file.bin", "my file.bin"),
        ("a+b&c=d;e~.bin", "a+b&c=d;e~.bin"),
        ("100%.bin", "100%25.bin"),
        ("a[1].bin", "a[1].bin"),
        ("a[1].bin", "a%5B1%5D.bin"),
        ("a#b.bin", "a%23b.bin"),
        ("millstream/remote/a/files/b.bin", "millstream/remote/a/files/b.bin"),  # as in the cache
    ],
)
def test_urls_as_browsers_copy_them(file_server, name, written):
    (file_server.directory / name).parent.mkdir(parents=True, exist_ok=True)
    (file_server.directory / name).write_bytes(BODY)
    assert num_records(f"{file_server.endpoint}/{written}") == 5000


def test_a_cache_below_a_directory_with_the_name_of_a_mirror(file_server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "millstream/remote/a/files/b"))
    (file_server.directory / "x.bin").write_bytes(BODY)
    assert num_records(f"{file_server.endpoint}/x.bin") == 5000


def test_text_behind_an_encoded_url(file_server, tmp_path):
    (file_server.directory / "my [1] file.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    source = millstream.Source(f"{file_server.endpoint}/my%20%5B1%5D%20file.jsonl")
    assert source.files == (f"{file_server.endpoint}/my [1] file.jsonl",)
    millstream.tokenize(source, "bytes", tmp_path / "out")
    assert millstream.open(tmp_path / "out").num_documents == 2


def test_a_name_that_would_be_decoded_twice():
    with pytest.raises(UsageError, match="encoded percent sign"):
        millstream.open("https://host/a%2520b.bin")


def test_keys_of_object_stores_are_literal(odd_server):
    odd_server.files["bucket/my%20file.bin"] = BODY
    assert num_records("s3://bucket/my%20file.bin", endpoint=odd_server.url) == 5000
    assert parse_url("s3://bucket/my%20file.bin").key == "my%20file.bin"


@pytest.mark.parametrize("key", ["data/./x.bin", "./x.bin", "a/../x.bin", "a\nb.bin"])
@pytest.mark.parametrize("store", ["s3://bucket", "https://host"])
def test_names_that_stores_do_not_resolve(store, key):
    with pytest.raises(UsageError, match="contains"):
        millstream.open(f"{store}/{key}")


@pytest.mark.parametrize("key", ["data/a//b.bin", "data/./x.bin", "data/x\ny.bin"])
def test_such_names_in_a_listing(odd_server, key):
    odd_server.files = {f"bucket/{key}": BODY, "bucket/data/c.bin": BODY}
    with pytest.raises(UsageError, match="rename it, or open the others") as failure:
        num_records("s3://bucket/data", endpoint=odd_server.url)
    assert repr(key) in str(failure.value)
    assert num_records("s3://bucket/data/c.bin", endpoint=odd_server.url) == 5000


def test_long_names(odd_server):
    odd_server.files = {f"bucket/{'k' * length}": BODY for length in (227, 228, 300)}
    assert num_records(f"s3://bucket/{'k' * 227}", endpoint=odd_server.url) == 5000
    for length in (228, 300):
        with pytest.raises(ReadError, match="rename the object, or download it first"):
            num_records(f"s3://bucket/{'k' * length}", endpoint=odd_server.url)


@pytest.mark.parametrize("name", ["data", "data/millstream.json"])
def test_an_empty_manifest(odd_server, name):
    odd_server.files = {"bucket/data/millstream.json": b"", "data/millstream.json": b""}
    for url in (f"s3://bucket/{name}", f"{odd_server.url}/{name}"):
        options = {"endpoint": odd_server.url} if url.startswith("s3") else {}
        with pytest.raises(FormatError) as failure:
            millstream.open(url, remote=millstream.Remote(**options))
        assert "millstream.json" in str(failure.value)
        assert "changed" not in str(failure.value)


def test_a_full_disk_when_a_mirror_is_made(small_disk, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(ReadError, match="the disk of the cache is full: free space"):
        millstream.open("s3://bucket/data")


@pytest.mark.parametrize(
    "option",
    [
        {"request_seconds": "5"},
        {"request_seconds": None},
        {"total_seconds": float("nan")},
        {"total_seconds": 1e30},
        {"hedge_seconds": True},
        {"endpoint": b"x"},
        {"region": 1},
        {"profile": ["x"]},
    ],
)
def test_options_of_wrong_types(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        millstream.Remote(**option)


def test_patterns_need_a_listing(file_server):
    (file_server.directory / "a.bin").write_bytes(BODY)
    with pytest.raises(MillstreamError, match="HTTP servers do not list files"):
        num_records(f"{file_server.endpoint}/*.bin")


def test_options_that_are_not_a_remote():
    with pytest.raises(
        UsageError, match=r"remote is \{'endpoint_url'.*must be a millstream\.Remote"
    ):
        millstream.open("s3://bucket/data", remote={"endpoint_url": "http://minio:9000"})
