"""Opening finds files in a store: none is left out if others remove its local file meanwhile."""

import contextlib
import threading
from pathlib import Path

import numpy as np
import pytest

import millstream
from millstream.errors import MillstreamError, ReadError
from millstream.remote.cache_space import cached_files, drop_file
from millstream.remote.mirror import Mirror, find_mirrored
from tests.helpers.golden_files import GOLDEN
from tests.helpers.remote_data import upload

pytest.importorskip("obstore")
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("s3_environment")]


@pytest.fixture
def url(tmp_path, s3, bucket):
    """A prefix with six token files."""
    generator = np.random.default_rng(0)
    (tmp_path / "flat").mkdir()
    for k in range(6):
        (tmp_path / f"flat/s{k}.bin").write_bytes(generator.bytes(20_000))
    upload(s3.store(bucket), tmp_path / "flat", "flat/")
    return f"s3://{bucket}/flat"


def open_flat(url):
    return millstream.open(url, format="flat:uint16")


def clear():
    """Do what `millstream cache clear` does."""
    for file in cached_files():
        drop_file(file)


def delete(name):
    """Delete a local file and its map, as a user may."""
    for file in list(cached_files()):
        if file.path.name == name:
            find_mirrored(file.path).map_path.unlink()
            file.path.unlink()


@pytest.fixture
def after_listing(monkeypatch):
    """Call a function after each listing, before its files are looked at."""
    listing = Mirror.list_below

    def use(action):
        def list_below(self, prefix):
            found = listing(self, prefix)
            action()
            return found

        monkeypatch.setattr(Mirror, "list_below", list_below)

    return use


@pytest.mark.parametrize("pattern", ["", "/*.bin"])
def test_clearing_the_cache_leaves_out_no_shard(url, after_listing, pattern):
    after_listing(clear)
    assert len(open_flat(f"{url}{pattern}").shards) == 6


@pytest.mark.parametrize("pattern", ["", "/*.bin"])
def test_a_file_that_was_deleted_meanwhile_is_found_again(url, after_listing, pattern):
    names = iter(["s2.bin", "s3.bin"])
    after_listing(lambda: delete(next(names, "")))
    assert len(open_flat(f"{url}{pattern}").shards) == 6


def test_opening_fails_if_a_file_is_deleted_each_time(url, after_listing):
    after_listing(lambda: delete("s2.bin"))
    with pytest.raises(ReadError, match=r"s2\.bin: was removed from the cache"):
        open_flat(url)


def test_a_companion_that_was_deleted_meanwhile_is_found_again(s3, bucket, after_listing):
    folder = GOLDEN / "datatrove" / "folder"
    upload(s3.store(bucket), folder, "folder/")
    expected = millstream.open(folder).num_documents
    names = iter([path.name for path in sorted(folder.glob("*.index"))][:1])
    after_listing(lambda: delete(next(names, "")))
    assert millstream.open(f"s3://{bucket}/folder").num_documents == expected


@pytest.mark.parametrize("pattern", ["", "/*.txt"])
@pytest.mark.parametrize("lose", [clear, lambda: delete("1.txt")])
def test_no_text_is_left_out(tmp_path, s3, bucket, after_listing, pattern, lose):
    (tmp_path / "text").mkdir()
    for k in range(3):
        (tmp_path / "text" / f"{k}.txt").write_text(f"text {k}")
    upload(s3.store(bucket), tmp_path / "text", "text/")
    calls = iter([lose])
    after_listing(lambda: next(calls, lambda: None)())
    source = millstream.Source(f"s3://{bucket}/text{pattern}")
    assert [file[-5:] for file in source.files] == ["0.txt", "1.txt", "2.txt"]


@pytest.mark.slow
def test_opening_and_reading_work_while_others_clear_the_cache(url):
    expected = open_flat(url).fingerprint
    is_done = threading.Event()

    def clear_again():
        while not is_done.is_set():
            with contextlib.suppress(FileNotFoundError):
                clear()

    clearing = threading.Thread(target=clear_again)
    clearing.start()
    try:
        found = [open_flat(url).fingerprint for _ in range(20)]
    except MillstreamError as error:
        found = [str(error)]
    finally:
        is_done.set()
        clearing.join()
    assert set(found) == {expected}


def test_files_that_are_being_made_are_not_listed(url, monkeypatch):
    """A listing of another process would remove them, since the store does not have them."""
    rename, seen = Path.rename, set()

    def note_names(self, target):
        if target.suffix == ".bin":
            seen.update(path.name for path in target.parent.iterdir())
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", note_names)
    open_flat(url)
    assert {"s0.bin"} < seen <= {f"s{k}.bin" for k in range(6)}
