"""Prefixes as stores know them: marks of directories, and prefixes that become objects."""

import numpy as np
import pytest

import millstream
from millstream.errors import FormatError

obstore = pytest.importorskip("obstore")
pytestmark = pytest.mark.process

TOKENS = np.arange(5000, dtype=np.uint16)
BODY = TOKENS.tobytes()


@pytest.fixture
def opened(odd_server):
    """Opens a key of a bucket, whose objects are given, and counts its tokens."""

    def open_key(key, **objects):
        odd_server.files = {f"bucket/{name}": body for name, body in objects.items()}
        remote = millstream.Remote(endpoint=odd_server.url, total_seconds=8)
        data = millstream.open(f"s3://bucket/{key}", format="flat:uint16", remote=remote)
        with millstream.Loader(data.windows(100), 1, shuffle=False, output="numpy") as loader:
            first = next(iter(loader))["input_ids"][0]
        assert first[:100].tolist() == TOKENS[:100].tolist()
        return data.num_records

    return open_key


@pytest.mark.parametrize("key", ["data", "data/*.bin", "data/**/*.bin", "**/c.bin", "data/c.bin"])
def test_marks_of_directories_are_not_objects(opened, key):
    objects = {"data/": b"", "data/c.bin": BODY, "data/sub/": b"", "data/sub/a.bin": BODY}
    assert opened(key, **objects) == (10_000 if key == "data/**/*.bin" else 5000)


def test_a_mark_of_the_prefix_with_content_cannot_be_named(opened):
    for _ in range(2):
        assert opened("data", **{"data/": b"content", "data/c.bin": BODY}) == 5000


def test_a_mark_of_a_directory_with_a_dataset(tmp_path, odd_server):
    with millstream.Writer(tmp_path / "data", vocab_size=1 << 16) as writer:
        writer.append(TOKENS)
    odd_server.files = {
        f"bucket/data/{path.name}": path.read_bytes() for path in (tmp_path / "data").iterdir()
    } | {"bucket/data/": b""}
    remote = millstream.Remote(endpoint=odd_server.url)
    assert millstream.open("s3://bucket/data", remote=remote).num_records == 5000


def test_a_mark_of_a_directory_on_a_real_server(s3, bucket, s3_environment):
    s3.create_directory(bucket, "data")
    obstore.put(s3.store(bucket), "data/a.bin", BODY)
    for key in ("data", "data/*.bin", "data/a.bin"):
        assert millstream.open(f"s3://{bucket}/{key}", format="flat:uint16").num_records == 5000


def test_a_mark_in_the_cache_of_an_earlier_version_gives_way(opened, tmp_path):
    opened("x.bin", **{"x.bin": BODY})
    (files,) = (tmp_path / "cache").rglob("files")
    (files / "data").touch()
    assert opened("data", **{"data/a.bin": BODY}) == 5000


def test_a_prefix_that_becomes_an_object_and_back(opened):
    for _ in range(2):
        assert opened("z.bin", **{"z.bin/x/y.bin": BODY, "z.bin/x.bin": BODY}) == 5000
        assert opened("z.bin", **{"z.bin": BODY}) == 5000
    assert opened("z.bin/x/y.bin", **{"z.bin/x/y.bin": BODY}) == 5000
    assert opened("*.bin", **{"z.bin": BODY}) == 5000


def test_an_object_that_is_also_a_prefix_is_told(opened):
    both = {"a/x.bin": BODY, "a/x.bin/y.bin": BODY}
    with pytest.raises(FormatError, match="is both an object and a prefix of others"):
        opened("a", **both)
    assert opened("a/x.bin", **both) == 5000
    with pytest.raises(FormatError, match="is both an object and a prefix of others"):
        opened("a/x.bin/y.bin", **both)
