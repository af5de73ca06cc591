"""Text behind URLs: tokenized, loaded, fetched and learned from, as if it were local."""

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream
from millstream.compat.nanochat import list_parquet_files
from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.remote.options import Remote
from millstream.text.sources import Columns
from tests.helpers import remote_data
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.process]

KINDS = ["parquet", "jsonl", "jsonl.zst", "txt.gz"]


def documents(count=3000, seed=0):
    chosen = random.Random(seed)
    words = ["".join(chosen.choices("abcdefghéß中", k=chosen.randint(2, 9))) for _ in range(2000)]
    return [" ".join(chosen.choices(words, k=chosen.randint(1, 120))) for _ in range(count)]


def write_corpus(directory, kind, *, count=3000, num_files=3):
    directory.mkdir(parents=True)
    for number in range(num_files):
        texts = documents(count // num_files, number)
        path = directory / f"part-{number}.{kind}"
        lines = "".join(json.dumps({"text": text, "n": k}) + "\n" for k, text in enumerate(texts))
        if kind == "parquet":
            table = pa.table({"text": texts, "n": range(len(texts)), "other": texts[::-1]})
            pq.write_table(table, path, compression="zstd", row_group_size=100)
        elif kind == "jsonl":
            path.write_text(lines)
        elif kind == "jsonl.zst":
            data = lines.encode()
            cuts = range(0, len(data), 100_000)
            path.write_bytes(
                b"".join(pa.compress(data[a : a + 100_000], "zstd", asbytes=True) for a in cuts)
            )
        else:
            path.write_bytes(
                gzip.compress("".join(f"{text}\n" for text in texts).encode(), mtime=0)
            )
    return directory


def upload(s3, bucket, directory, prefix):
    remote_data.upload(s3.store(bucket), directory, f"{prefix}/")
    return f"s3://{bucket}/{prefix}"


def shards(directory):
    return {
        path.name: path.read_bytes()
        for path in sorted(directory.iterdir())
        if path.suffix in (".stream", ".documents", ".metadata", ".index")
    }


def batches(source, *, state=None, steps=12, **options):
    loader = millstream.TextLoader(
        source, "bytes", batch_size=4, seq_len=512, output="numpy", lanes=2, seed=3, **options
    )
    if state is not None:
        loader.load_state_dict(state)
    found = [batch["input_ids"].copy() for _, batch in zip(range(steps), loader, strict=False)]
    state = loader.state_dict()
    loader.close()
    return np.stack(found), state


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_those_of_local_files(kind, s3, bucket, s3_environment, tmp_path):
    local = write_corpus(tmp_path / "corpus", kind)
    url = upload(s3, bucket, local, "web")
    options = {"task_bytes": 300_000, "workers": 1}
    columns = Columns(metadata=("n",)) if kind == "jsonl" else None
    millstream.tokenize(
        millstream.Source(local, columns=columns), "bytes", tmp_path / "a", **options
    )
    millstream.tokenize(millstream.Source(url, columns=columns), "bytes", tmp_path / "b", **options)
    assert shards(tmp_path / "a") == shards(tmp_path / "b") != {}


def test_workers_read_remote_files_too(s3, bucket, s3_environment, tmp_path):
    local = write_corpus(tmp_path / "corpus", "parquet")
    url = upload(s3, bucket, local, "web")
    millstream.tokenize(local, "bytes", tmp_path / "a", task_bytes=300_000, workers=1)
    source = millstream.Source(url, remote=Remote(max_requests=4, ahead_bytes=1 << 20))
    millstream.tokenize(source, "bytes", tmp_path / "b", task_bytes=300_000, workers=2)
    assert shards(tmp_path / "a") == shards(tmp_path / "b") != {}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_local_files(kind, s3, bucket, s3_environment, tmp_path):
    local = write_corpus(tmp_path / "corpus", kind)
    url = upload(s3, bucket, local, "web")
    expected, _ = batches(local)
    found, _ = batches(url)
    assert (expected == found).all()


def test_batches_survive_faults_and_a_cold_cache(
    s3, s3_proxy, bucket, s3_environment, tmp_path, monkeypatch
):
    local = write_corpus(tmp_path / "corpus", "parquet")
    url = upload(s3, bucket, local, "web")
    expected, _ = batches(local, steps=24)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_proxy.endpoint)
    s3_proxy.set(rates={"503": 0.05, "reset": 0.05, "short": 0.05}, seed=1)
    remote = Remote(request_seconds=5)
    first, state = batches(millstream.Source(url, remote=remote))
    assert str(tmp_path) not in json.dumps(state)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    rest, _ = batches(millstream.Source(url, remote=remote), state=state)
    assert (expected == np.concatenate([first, rest])).all()
    assert sum(s3_proxy.counts()["faults"].values()) > 0
    again, _ = batches(local, state=state)  # a copy of the files has the same names and sizes
    assert (again == rest).all()


def test_only_what_is_read_is_fetched(s3, s3_proxy, bucket, s3_environment, tmp_path, monkeypatch):
    table = write_corpus(tmp_path / "tables", "parquet", count=6000, num_files=1)
    lines = write_corpus(tmp_path / "lines", "jsonl", count=6000, num_files=1)
    urls = [upload(s3, bucket, table, "tables"), upload(s3, bucket, lines, "lines")]
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_proxy.endpoint)

    file = pq.ParquetFile(table / "part-0.parquet").metadata
    chunk = file.row_group(5).column(0).total_compressed_size
    source = millstream.Source(urls[0])
    [piece] = [each for each in source.blocks() if each.start == 5]
    s3_proxy.reset_counts()
    assert sum(batch.num_documents for batch in source.read(piece)) == 100
    assert chunk <= s3_proxy.counts()["body_bytes"] <= chunk + 2 * 4096
    s3_proxy.reset_counts()
    assert len(list(source.read(piece))) > 0
    assert s3_proxy.counts()["requests"] == {}

    source = millstream.Source(urls[1])
    pieces = source.slices(200_000)
    s3_proxy.reset_counts()
    expected = list(millstream.Source(lines).read(pieces_of(lines, 200_000)[3]))
    found = list(source.read(pieces[3]))
    assert [bytes(each.data) for each in found] == [bytes(each.data) for each in expected]
    size_bytes = pieces[3].stop - pieces[3].start
    assert s3_proxy.counts()["body_bytes"] <= size_bytes + (1 << 16) + 3 * 4096


def pieces_of(path, target_bytes):
    return millstream.Source(path).slices(target_bytes)


def test_what_follows_is_fetched_ahead(s3, s3_proxy, bucket, s3_environment, tmp_path, monkeypatch):
    local = write_corpus(tmp_path / "corpus", "jsonl", count=600, num_files=60)
    url = upload(s3, bucket, local, "web")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_proxy.endpoint)
    source = millstream.Source(url, remote=Remote(request_seconds=1))
    [piece] = source.slices(1 << 30)
    s3_proxy.set(rates={"stall": 1})
    s3_proxy.reset_counts()
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(lambda: sum(batch.num_documents for batch in source.read(piece)))
        wait_until(lambda: s3_proxy.counts()["max_in_flight"] > 2)  # none of them is answered
        s3_proxy.set()
        assert reading.result() == 600


def test_reading_ahead_is_bounded(s3, s3_proxy, bucket, s3_environment, tmp_path, monkeypatch):
    local = write_corpus(tmp_path / "corpus", "jsonl", count=6000, num_files=1)
    url = upload(s3, bucket, local, "web")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_proxy.endpoint)
    source = millstream.Source(url, remote=Remote(ahead_bytes=1 << 18))
    [piece] = source.slices(1 << 30)
    s3_proxy.reset_counts()
    read = source.read(piece, batch_bytes=1 << 15)
    first = next(read)
    time.sleep(0.2)
    assert s3_proxy.counts()["body_bytes"] <= (1 << 18) + (1 << 16) + 2 * 4096
    others = [batch.num_documents for batch in read]
    assert first.num_documents + sum(others) == 6000
    assert s3_proxy.counts()["body_bytes"] <= piece.size_bytes + 4096


def test_a_file_that_changes_is_an_error(s3, bucket, s3_environment, tmp_path):
    store, line = s3.store(bucket), b'{"text": "some words"}\n'
    obstore.put(store, "web/a.jsonl", line * 10_000)
    source = millstream.Source(f"s3://{bucket}/web")
    [piece] = source.slices(1 << 30)
    obstore.put(store, "web/a.jsonl", line.upper() * 10_000)
    with pytest.raises(FormatError, match=f"s3://{bucket}/web/a.jsonl: .*has changed"):
        list(source.read(piece))
    millstream.Source(f"s3://{bucket}/web")  # in the same process, the cache now has the new one
    with pytest.raises(FormatError, match="changed"):
        list(source.read(piece))


def test_an_open_file_is_never_mixed_with_its_successor(s3, bucket, s3_environment, tmp_path):
    store, line = s3.store(bucket), b'{"text": "some words"}\n'
    url = f"s3://{bucket}/web"
    obstore.put(store, "web/a.jsonl", line * 50_000)
    source = millstream.Source(url, remote=Remote(ahead_bytes=1 << 16))
    read = source.read(source.slices(1 << 30)[0], batch_bytes=1 << 14)
    assert next(read).text(0) == b"some words"
    obstore.put(store, "web/a.jsonl", line.replace(b"some", b"more") * 50_000)
    newer = millstream.Source(url, remote=Remote(ahead_bytes=1 << 16))
    for batch in newer.read(newer.slices(1 << 30)[0]):
        assert batch.text(0) == b"more words"
    with pytest.raises(FormatError, match=f"{url}/a.jsonl: .*has changed"):
        for batch in read:
            assert {batch.text(k) for k in range(batch.num_documents)} == {b"some words"}


def test_urls_patterns_and_paths_can_be_mixed(
    s3, bucket, s3_environment, file_server, tmp_path, monkeypatch
):
    local = write_corpus(tmp_path / "corpus", "jsonl", count=60, num_files=6)
    url = upload(s3, bucket, local, "web")
    shutil.copy(local / "part-4.jsonl", file_server.directory)
    paths = [
        f"{url}/part-[01].jsonl",
        f"{file_server.endpoint}/part-4.jsonl",
        local / "part-5.jsonl",
    ]
    source = millstream.Source(paths)
    assert sorted(map(os.path.basename, source.files)) == [f"part-{k}.jsonl" for k in (0, 1, 4, 5)]
    assert source.files[0] == str(local / "part-5.jsonl")
    assert [path for path in source.files if path.startswith("s3://")] == [
        f"{url}/part-0.jsonl",
        f"{url}/part-1.jsonl",
    ]
    documents = sum(
        batch.num_documents for piece in source.slices(10_000) for batch in source.read(piece)
    )
    assert documents == 40
    assert str(tmp_path / "cache") not in json.dumps(source.identity())
    whole = millstream.Source(url)
    assert whole.fingerprint == millstream.Source(local).fingerprint
    with pytest.raises(UsageError, match="HTTP servers do not list files"):
        millstream.Source(f"{file_server.endpoint}/*.jsonl")
    with pytest.raises(MissingDataError, match=f"s3://{bucket}/nowhere: no such object"):
        millstream.Source(f"s3://{bucket}/nowhere")


def test_errors_and_plans_name_urls(s3, bucket, s3_environment, tmp_path):
    obstore.put(s3.store(bucket), "web/bad.jsonl", b'{"text": "fine"}\n{"text": 5}\n')
    with pytest.raises(FormatError, match=f"s3://{bucket}/web/bad.jsonl: line 2") as found:
        millstream.tokenize(f"s3://{bucket}/web", "bytes", tmp_path / "out", workers=1)
    assert str(tmp_path / "cache") not in str(found.value)
    obstore.put(s3.store(bucket), "web/bad.jsonl", b'{"text": "fine"}\n{"text": "5"}\n')
    millstream.tokenize(f"s3://{bucket}/web", "bytes", tmp_path / "out", workers=1, task=(0, 1))
    plan = (tmp_path / "out" / "plan.json").read_text()
    assert f"s3://{bucket}/web/bad.jsonl" in plan
    assert str(tmp_path / "cache") not in plan
    obstore.put(s3.store(bucket), "tables/bad.parquet", b"PAR1 and then nothing of use")
    with pytest.raises(FormatError, match=f"s3://{bucket}/tables/bad.parquet: pyarrow cannot read"):
        millstream.Source(f"s3://{bucket}/tables").blocks()


def test_a_vocabulary_is_the_one_of_local_files(s3, bucket, s3_environment, tmp_path):
    local = write_corpus(tmp_path / "corpus", "parquet", count=900)
    url = upload(s3, bucket, local, "web")
    names = [f"{url}/part-{number}.parquet" for number in range(3)]
    assert list_parquet_files(url) == names
    expected = millstream.train_tokenizer(local, 400, max_bytes=200_000)
    found = millstream.train_tokenizer(url, 400, max_bytes=200_000)
    assert expected.vocabulary.tokens == found.vocabulary.tokens
    millstream.repack(local, tmp_path / "a", shard_chars=50_000)
    millstream.repack(url, tmp_path / "b", shard_chars=50_000)
    packed = [
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.parquet")}
        for name in "ab"
    ]
    assert packed[0] == packed[1] != {}


@pytest.mark.slow
def test_a_full_disk_of_the_cache_is_told_by_tokenize(
    s3, bucket, s3_environment, tmp_path, small_disk, monkeypatch
):
    text = "".join(f"{number}\n" for number in range(100_000))
    obstore.put(s3.store(bucket), "text/a.txt", text.encode())
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    command = [sys.executable, "-m", "millstream", "tokenize", f"s3://{bucket}/text/a.txt"]
    command += ["--tokenizer", "bytes", "--out", str(tmp_path / "out"), "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for part in ("text/a.txt", "disk of the cache is full", "tasks are done; then run the same"):
        assert part in done.stderr


def test_fetch_downloads_objects(s3, s3_proxy, bucket, s3_environment, tmp_path, monkeypatch):
    content = random.Random(0).randbytes(20_000_000)
    store = s3.store(bucket)
    for name in (".hidden.bin", "a.bin", "b.bin", "deep/c.bin", "deep/d.txt"):
        obstore.put(store, f"web/{name}", content[: 1000 + len(name)])
    url = f"s3://{bucket}/web"
    report = millstream.fetch([f"{url}/**/*.bin"], tmp_path / "bins")
    assert [path.name for path in report.files] == ["a.bin", "b.bin", "c.bin"]
    assert (tmp_path / "bins" / "c.bin").read_bytes() == content[:1010]
    assert millstream.fetch(url, tmp_path / "all").num_fetched == 4
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_proxy.endpoint)
    again = millstream.fetch(f"{url}/deep/d.txt", tmp_path / "all")
    assert (again.num_fetched, again.num_skipped) == (0, 1)
    with pytest.raises(MissingDataError, match=f"{url}/nothing: no such object"):
        millstream.fetch(f"{url}/nothing", tmp_path / "none")
    with pytest.raises(MissingDataError, match=r"\*\.zip: no object matches the pattern"):
        millstream.fetch(f"{url}/*.zip", tmp_path / "none")


def test_a_killed_fetch_goes_on(s3, s3_proxy, bucket, s3_environment, tmp_path, monkeypatch):
    content = random.Random(0).randbytes(40_000_000)
    obstore.put(s3.store(bucket), "large.bin", content)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_proxy.endpoint)
    s3_proxy.set(bandwidth=20_000_000)
    command = [sys.executable, "-m", "millstream", "fetch", f"s3://{bucket}/large.bin", "--out"]
    process = subprocess.Popen([*command, str(tmp_path / "out")], stdout=subprocess.DEVNULL)
    parts = []

    def has_begun():
        parts[:] = (tmp_path / "out").glob(".fetch/*.part")
        return parts and parts[0].stat().st_size >= 8 << 20

    wait_until(has_begun)
    process.kill()
    process.wait()
    assert not (tmp_path / "out" / "large.bin").exists()
    there = parts[0].stat().st_size
    s3_proxy.set()
    s3_proxy.reset_counts()
    millstream.fetch(f"s3://{bucket}/large.bin", tmp_path / "out")
    assert (tmp_path / "out" / "large.bin").read_bytes() == content
    late = 4_000_000  # to the killed process
    assert s3_proxy.counts()["body_bytes"] < len(content) - there + late


def test_datatrove_takes_the_spellings_of_fsspec(s3, bucket, s3_environment, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from millstream.compat.datatrove import DatatroveFileDataset, DatatroveFolderDataset

    store, tokens = s3.store("public"), np.arange(100_000, dtype="<u2")
    for number in range(2):
        obstore.put(store, f"{bucket}/{number}.ds", (tokens + number).tobytes())
        ends = np.array([60_000, 100_000], "<u8")
        obstore.put(store, f"{bucket}/{number}.ds.index", ends.tobytes())
    options = {"anon": True, "client_kwargs": {"endpoint_url": s3.endpoint}}
    for name in s3_environment:
        if name != "AWS_ALLOW_HTTP":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    folder = DatatroveFolderDataset((f"s3a://public/{bucket}", options), 99, return_positions=True)
    assert len(folder) == 2000
    assert folder.folder_path == f"s3://public/{bucket}"
    assert folder[1003]["input_ids"].tolist() == (tokens[300:400] + 1).tolist()
    assert folder[0]["positions"].tolist() == list(range(100))
    chained = f"simplecache::s3://public/{bucket}/1.ds"
    file = DatatroveFileDataset(
        (chained, {"s3": options, "simplecache": {"cache_storage": "x"}}), 99
    )
    assert file[999]["input_ids"].tolist() == (tokens[99_900:] + 1).tolist()
    assert file.file_path == f"s3://public/{bucket}/1.ds"

    class FileSystem:
        protocol = ("s3", "s3a")
        storage_options = options

    other = DatatroveFileDataset((f"public/{bucket}/0.ds", FileSystem()), 99)
    assert other[5]["input_ids"].tolist() == tokens[500:600].tolist()
    with pytest.raises(UsageError, match="'secret' is a secret"):
        DatatroveFileDataset((chained, {"secret": "x"}), 99)
    with pytest.raises(UsageError, match="'requester_pays' of fsspec is not known"):
        DatatroveFileDataset((chained, {"requester_pays": True}), 99)


def test_commands_take_urls(s3, bucket, s3_environment, tmp_path, monkeypatch):
    local = write_corpus(tmp_path / "corpus", "jsonl", count=300)
    url = upload(s3, bucket, local, "web")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    command = [sys.executable, "-m", "millstream", "tokenize", url, "--tokenizer", "bytes"]
    command += ["--out", str(tmp_path / "b"), "--endpoint", s3.endpoint, "--workers", "2"]
    command += ["--task-bytes", "20000"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    millstream.tokenize(local, "bytes", tmp_path / "a", workers=1, task_bytes=20_000)
    assert shards(tmp_path / "a") == shards(tmp_path / "b") != {}


def test_a_loader_is_closed_soon_although_the_server_fails(
    s3, s3_proxy, bucket, s3_environment, tmp_path
):
    lines = "".join(f'{{"text": "{k:09d}"}}\n' for k in range(1_000_000))
    s3.store(bucket).put("a.jsonl", lines.encode())
    # What is not given up is repeated until its deadline.
    remote = Remote(endpoint=s3_proxy.endpoint, ahead_bytes=1 << 16, total_seconds=1000)
    source = millstream.Source(f"s3://{bucket}/a.jsonl", remote=remote)
    loader = millstream.TextLoader(source, "bytes", batch_size=4, seq_len=256)
    batches = iter(loader)
    next(batches)
    s3_proxy.set(rates={"503": 1})
    wait_until(lambda: s3_proxy.counts()["faults"].get("503") or not next(batches))
    loader.close()
    wait_until(lambda: not any(each.name == "millstream-text" for each in threading.enumerate()))
