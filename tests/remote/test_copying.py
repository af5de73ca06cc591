"""`millstream.copy` between directories and real servers, with faults and kills."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import millstream
from millstream.copying.remote_place import RemotePlace
from millstream.errors import (
    DatasetExistsError,
    FormatError,
    MissingDataError,
    ReadError,
    UsageError,
)
from millstream.remote.options import Remote
from tests.helpers.uploads import contents, stored
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SMALL_BYTES, LARGE_BYTES = 1 << 18, 20 << 20  # one request, and several parts


def write_dataset(path, *, num_small=4, seed=0):
    """Shards of one part, and one that is uploaded in several."""
    generator = np.random.default_rng(seed)
    sizes = [*[SMALL_BYTES] * num_small, LARGE_BYTES]
    with millstream.Writer(path, vocab_size=1 << 16, shard_bytes=1) as writer:
        for size in sizes:
            writer.append(generator.integers(0, 1 << 16, size // 2, np.uint16))
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("source") / "data")


def start(*arguments, endpoint):
    """Start a command that reaches the server through a proxy."""
    return subprocess.Popen(
        [sys.executable, "-m", "millstream", *map(str, arguments)],
        env={**os.environ, "AWS_ENDPOINT_URL": endpoint},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_copies_are_the_same_bytes_anywhere(source, s3, bucket, s3_environment, tmp_path):
    first, second = f"s3://{bucket}/deep/first", f"s3://{bucket}/second"
    report = millstream.copy(source, first)
    assert report.num_checked == 11  # all but the companions with checksums
    assert (report.num_resumed, report.was_finished) == (0, False)
    millstream.copy(first, second)
    millstream.copy(f"{second}/millstream.json", tmp_path / "back")
    expected = contents(source)
    assert stored(s3, bucket, "deep/first") == stored(s3, bucket, "second") == expected
    assert contents(tmp_path / "back") == expected
    millstream.copy(tmp_path / "back", tmp_path / "again")
    assert contents(tmp_path / "again") == expected
    assert report.size_bytes == sum(map(len, expected.values()))
    assert millstream.open(second).fingerprint == millstream.open(source).fingerprint


def test_a_finished_copy_is_not_copied_again(source, bucket, s3_environment, tmp_path, monkeypatch):
    target = f"s3://{bucket}/data"
    millstream.copy(source, target)
    assert millstream.copy(source, target).was_finished
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))  # of another machine
    assert millstream.copy(source, target).was_finished


def test_a_copy_from_http_needs_no_listing(source, file_server, tmp_path):
    millstream.copy(source, file_server.directory / "data")
    data = millstream.open(source)
    millstream.convert(data, file_server.directory / "ds", "datatrove")
    millstream.copy(f"{file_server.endpoint}/data", tmp_path / "data")
    assert contents(tmp_path / "data") == contents(source)
    millstream.copy(f"{file_server.endpoint}/ds", tmp_path / "ds")
    assert millstream.open(tmp_path / "ds").num_records == data.num_records
    millstream.copy(f"{file_server.endpoint}/ds/00000.ds", tmp_path / "one")
    names = {"00000.ds", "00000.ds.index", "00000.ds.metadata", "00000.checksums"}
    assert set(contents(tmp_path / "one")) == names


def test_a_damaged_file_never_appears(source, bucket, s3, s3_environment, tmp_path):
    millstream.copy(source, tmp_path / "data")
    damaged = tmp_path / "data" / "00004.stream"
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:1000] + bytes([sound[1000] ^ 1]) + sound[1001:])
    target = f"s3://{bucket}/data"
    with pytest.raises(FormatError, match=r"00004\.stream: xxh3 is .*; the source is damaged"):
        millstream.copy(tmp_path / "data", target)
    assert "00004.stream" not in stored(s3, bucket, "data")
    with pytest.raises(MissingDataError, match=r"unfinished.*millstream copy again"):
        millstream.open(target)
    damaged.write_bytes(sound)
    millstream.copy(tmp_path / "data", target)
    assert stored(s3, bucket, "data") == contents(source)


@pytest.mark.parametrize("fault", ["503", "reset", "500"])
def test_faults_during_uploads_are_overcome(source, bucket, s3, s3_proxy, s3_environment, fault):
    s3_proxy.set(rates={fault: 0.3}, seed=1, methods=["PUT", "POST"])
    millstream.copy(source, f"s3://{bucket}/data", remote=Remote(endpoint=s3_proxy.endpoint))
    assert s3_proxy.counts()["faults"][fault] > 3
    assert stored(s3, bucket, "data") == contents(source)


def test_faults_during_downloads_are_overcome(source, bucket, s3_proxy, s3_environment, tmp_path):
    millstream.copy(source, f"s3://{bucket}/data")
    s3_proxy.set(rates={"short": 0.2, "reset": 0.2}, seed=1, methods=["GET"])
    remote = Remote(endpoint=s3_proxy.endpoint)
    millstream.copy(f"s3://{bucket}/data", tmp_path / "data", remote=remote)
    assert sum(s3_proxy.counts()["faults"].values()) > 3
    assert contents(tmp_path / "data") == contents(source)


def test_a_killed_upload_is_invisible_and_continues(bucket, s3, s3_proxy, s3_environment, tmp_path):
    source, target = write_dataset(tmp_path / "data", num_small=20), f"s3://{bucket}/data"
    s3_proxy.set(latency_s=0.1)
    num_sent = 0
    for least in (12, 36):
        s3_proxy.reset_counts()
        process = start("copy", source, target, endpoint=s3_proxy.endpoint)
        wait_until(lambda least=least: s3_proxy.counts()["requests"].get("PUT", 0) >= least)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with pytest.raises(MissingDataError, match="unfinished"):
            millstream.open(target)
        num_before, num_sent = num_sent, len(stored(s3, bucket, "data"))
        assert num_sent > num_before
    report = millstream.copy(source, target, remote=Remote(endpoint=s3_proxy.endpoint))
    assert 0 < report.num_resumed < report.num_files
    assert stored(s3, bucket, "data") == contents(source)


def test_files_that_arrived_are_not_sent_again(bucket, s3_proxy, s3_environment, tmp_path):
    source, target = write_dataset(tmp_path / "data", num_small=20), f"s3://{bucket}/data"
    s3_proxy.set(latency_s=0.1)
    process = start("copy", source, target, endpoint=s3_proxy.endpoint)
    wait_until(lambda: s3_proxy.counts()["requests"].get("PUT", 0) >= 40)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    s3_proxy.set()
    s3_proxy.reset_counts()
    process = start("copy", source, target, endpoint=s3_proxy.endpoint)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "of them in an earlier run" in output
    assert s3_proxy.counts()["requests"]["PUT"] < 60  # of 67, with the parts of the large file
    assert millstream.verify(target).problems == ()


def test_a_killed_download_continues(source, bucket, s3_proxy, s3_environment, tmp_path):
    target = tmp_path / "copy"
    millstream.copy(source, f"s3://{bucket}/data")
    s3_proxy.set(bandwidth=4 << 20)
    process = start("copy", f"s3://{bucket}/data", target, endpoint=s3_proxy.endpoint)
    wait_until(lambda: target.exists() and len(list(target.glob("*.stream"))) >= 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with pytest.raises(MissingDataError, match="unfinished"):
        millstream.open(target)
    report = millstream.copy(f"s3://{bucket}/data", target)
    assert report.num_resumed >= 2
    assert contents(target) == contents(source)


@pytest.mark.parametrize("fault", ["503", "stall"])
def test_an_interrupt_ends_a_copy_soon_although_the_server_fails(
    source, bucket, s3_proxy, s3_environment, tmp_path, fault
):
    millstream.copy(source, f"s3://{bucket}/data")
    url = f"s3://{bucket}/data"
    for method, *places in (
        ("PUT", source, f"s3://{bucket}/other"),
        ("GET", url, tmp_path / "new"),
    ):
        s3_proxy.set(latency_s=0.1)
        s3_proxy.reset_counts()
        process = start("copy", *places, endpoint=s3_proxy.endpoint)
        wait_until(lambda method=method: s3_proxy.counts()["requests"].get(method))
        s3_proxy.set(rates={fault: 1})
        wait_until(lambda: s3_proxy.counts()["faults"].get(fault))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
        assert process.returncode == 130, output + errors
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_of_equal_size_is_not_trusted(source, bucket, s3, s3_environment, tmp_path):
    target = f"s3://{bucket}/data"
    place = RemotePlace(target, None)
    millstream.copy(source, tmp_path / "data")
    (tmp_path / "data" / "00003.stream").unlink()
    with pytest.raises(MissingDataError, match=r"00003\.stream: missing"):
        millstream.copy(tmp_path / "data", target)
    stream = (source / "00003.stream").read_bytes()
    (tmp_path / "data" / "00003.stream").write_bytes(bytes(len(stream)))
    with pytest.raises(FormatError, match="xxh3"):
        millstream.copy(tmp_path / "data", target)
    place.write("00003.stream", len(stream), lambda: [bytes(len(stream))])
    millstream.copy(source, target)
    assert stored(s3, bucket, "data") == contents(source)


def test_a_target_with_other_files_is_refused(source, bucket, s3, s3_environment, tmp_path):
    write_dataset(tmp_path / "other", num_small=1, seed=1)
    millstream.copy(tmp_path / "other", f"s3://{bucket}/data")
    with pytest.raises(DatasetExistsError, match=r"millstream\.json: already a finished dataset"):
        millstream.copy(source, f"s3://{bucket}/data")
    s3.store(bucket).put("notes/README.md", b"mine")
    with pytest.raises(DatasetExistsError, match=r"notes/README\.md: already exists"):
        millstream.copy(source, f"s3://{bucket}/notes")
    with pytest.raises(DatasetExistsError, match="already a finished dataset"):
        millstream.copy(f"s3://{bucket}/data", source)
    assert stored(s3, bucket, "data") == contents(tmp_path / "other")


def test_a_copy_of_another_dataset_is_not_continued(source, bucket, s3_environment, tmp_path):
    write_dataset(tmp_path / "other", num_small=1, seed=1)
    begun = tmp_path / "begun"
    millstream.copy(source, begun)
    (begun / "00000.stream").write_bytes(bytes(SMALL_BYTES))
    with pytest.raises(FormatError, match="xxh3"):
        millstream.copy(begun, f"s3://{bucket}/data")
    with pytest.raises(DatasetExistsError, match=f"a copy of {begun} was begun here"):
        millstream.copy(tmp_path / "other", f"s3://{bucket}/data")


def test_an_equal_manifest_is_success_and_another_is_kept(bucket, s3_environment):
    place = RemotePlace(f"s3://{bucket}/data", None)
    place.publish("millstream.json", b"one")
    place.publish("millstream.json", b"one")
    with pytest.raises(DatasetExistsError, match="with other content"):
        place.publish("millstream.json", b"two")
    assert place.read("millstream.json") == b"one"


def test_an_http_directory_without_a_manifest_is_not_called_empty(file_server, tmp_path):
    (file_server.directory / "data").mkdir()
    (file_server.directory / "data" / "x.txt").write_text("x")
    with pytest.raises(MissingDataError, match=r"nor a directory with millstream\.json or files"):
        millstream.copy(f"{file_server.endpoint}/data", tmp_path / "out")


def test_what_is_wrong_is_said(source, bucket, s3, s3_environment, tmp_path, monkeypatch):
    for target, error, text in [
        ("https://example.com/data", UsageError, "HTTP servers cannot be written to"),
        (source / "inner", UsageError, "the target is the source, or lies in it"),
        ("s3://no-such-bucket/data", MissingDataError, "no such bucket"),
    ]:
        with pytest.raises(error, match=text):
            millstream.copy(source, target)
    with pytest.raises(MissingDataError, match="no such file or directory"):
        millstream.copy(f"s3://{bucket}/missing", tmp_path / "out")
    with pytest.raises(MissingDataError, match="patterns are not expanded here"):
        millstream.copy(f"s3://{bucket}/*", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingDataError, match="nothing in it"):
        millstream.copy(tmp_path / "empty", f"s3://{bucket}/out")
    millstream.copy(source, tmp_path / "part")
    (tmp_path / "part" / "unfinished.json").write_text("{}")
    with pytest.raises(MissingDataError, match="unfinished"):
        millstream.copy(tmp_path / "part", f"s3://{bucket}/part")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    remote = Remote(total_seconds=10, request_seconds=9)  # another client than before
    with pytest.raises(ReadError, match="access denied"):
        millstream.copy(source, f"s3://{bucket}/data", remote=remote)
    assert not (tmp_path / "out").exists()


def test_a_source_that_changes_on_the_way_is_refused(bucket, s3, s3_environment, tmp_path):
    s3.store(bucket).put("raw/a.bin", bytes(1000))
    found = RemotePlace(f"s3://{bucket}/raw", None).find("a.bin")
    s3.store(bucket).put("raw/a.bin", bytes(999) + b"x")
    with pytest.raises(FormatError, match="changed"):
        list(RemotePlace(f"s3://{bucket}/raw", None).chunks("a.bin", found))


def test_directories_without_manifests_are_copied_too(bucket, s3, s3_environment, tmp_path):
    (tmp_path / "text" / "inner").mkdir(parents=True)
    for name in ("a.txt", "inner/b.txt", "inner/empty.txt"):
        (tmp_path / "text" / name).write_text(name if name != "inner/empty.txt" else "")
    (tmp_path / "text" / ".a.txt.lock").write_text("")
    report = millstream.copy(tmp_path / "text", f"s3://{bucket}/text")
    assert (report.num_files, report.num_checked) == (3, 0)
    assert stored(s3, bucket, "text") == {
        "a.txt": b"a.txt",
        "inner/b.txt": b"inner/b.txt",
        "inner/empty.txt": b"",
    }
    assert millstream.copy(tmp_path / "text", f"s3://{bucket}/text").was_finished
    (tmp_path / "text" / "a.txt").write_text("A.txt")
    with pytest.raises(DatasetExistsError, match="already exists"):
        millstream.copy(tmp_path / "text", f"s3://{bucket}/text")
    millstream.copy(f"s3://{bucket}/text", tmp_path / "back")
    assert contents(tmp_path / "back") == stored(s3, bucket, "text")


def test_a_list_with_times_is_left_out(source, tmp_path):
    millstream.convert(millstream.open(source), tmp_path / "ds", "datatrove")
    (tmp_path / "ds" / "files.json").unlink()
    millstream.open(tmp_path / "ds", file_list=tmp_path / "ds" / "files.json")
    millstream.copy(tmp_path / "ds", tmp_path / "copy")
    assert not (tmp_path / "copy" / "files.json").exists()
    assert millstream.open(tmp_path / "copy").num_records == millstream.open(source).num_records


@pytest.fixture
def text_in_directories(tmp_path):
    for name in ("a/1.txt", "a/2.txt", "b/3.txt", "b/c/4.txt"):
        (tmp_path / "text" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "text" / name).write_text(name)
    return tmp_path / "text"


def test_directories_of_an_unfinished_copy_are_not_read(
    text_in_directories, s3, bucket, s3_environment, s3_proxy, tmp_path
):
    """Each has its own mark: text and flat files need no manifest to be read."""
    url = f"s3://{bucket}/text"
    proxied = Remote(endpoint=s3_proxy.endpoint, total_seconds=0.5)
    s3_proxy.set(rates={"503": 1.0}, path="4.txt", methods=["PUT"])
    with pytest.raises(ReadError):
        millstream.copy(text_in_directories, url, target_remote=proxied)
    for place in (url, f"{url}/a", f"{url}/b", f"{url}/**/*.txt"):
        with pytest.raises(MissingDataError, match=r"unfinished"):
            millstream.Source(place)
    with pytest.raises(MissingDataError, match=r"unfinished"):
        millstream.copy(f"{url}/a", tmp_path / "a")
    millstream.copy(text_in_directories, url)
    assert stored(s3, bucket, "text") == contents(text_in_directories)
    s3_proxy.set(rates={"503": 1.0}, path="4.txt", methods=["GET"])
    with pytest.raises(ReadError):
        millstream.copy(url, tmp_path / "local", remote=proxied)
    for place in ("", "a", "b"):
        with pytest.raises(MissingDataError, match=r"unfinished"):
            millstream.Source(tmp_path / "local" / place)
    millstream.copy(url, tmp_path / "local")
    assert contents(tmp_path / "local") == contents(text_in_directories)


def test_a_job_whose_mark_arrives_late_harms_no_other(
    source, bucket, s3, s3_environment, tmp_path, monkeypatch
):
    """It had found the target empty; then its first request took as long as another job."""
    target, publish = f"s3://{bucket}/data", RemotePlace.publish
    other = write_dataset(tmp_path / "other", num_small=1, seed=5)

    def publish_late(place, name, content):
        monkeypatch.setattr(RemotePlace, "publish", publish)
        millstream.copy(other, target)
        place.publish(name, content)

    monkeypatch.setattr(RemotePlace, "publish", publish_late)
    with pytest.raises(DatasetExistsError, match="another job has written to this target"):
        millstream.copy(source, target)
    assert stored(s3, bucket, "data") == contents(other)


def test_a_source_that_changed_after_a_copy_was_begun(
    text_in_directories, bucket, s3_environment, s3_proxy
):
    proxied = Remote(endpoint=s3_proxy.endpoint, total_seconds=0.5)
    s3_proxy.set(rates={"503": 1.0}, path="4.txt", methods=["PUT"])
    with pytest.raises(ReadError):
        millstream.copy(text_in_directories, f"s3://{bucket}/text", target_remote=proxied)
    (text_in_directories / "a/1.txt").write_text("other")
    with pytest.raises(DatasetExistsError, match="was begun here, which has changed since"):
        millstream.copy(text_in_directories, f"s3://{bucket}/text")
