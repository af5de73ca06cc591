"""The servers that tests of remote data start do what they say, and so does each fault."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.paths import ROOT
from tests.helpers.waiting import wait_until

pytest.importorskip("obstore")
import obstore
from obstore.exceptions import BaseError, PermissionDeniedError
from obstore.store import HTTPStore, S3Store

pytestmark = pytest.mark.process

DATA = np.random.default_rng(0).bytes(1_000_000)
ONE_ATTEMPT = {"max_retries": 0, "retry_timeout": timedelta(seconds=10)}


def http_store(endpoint, **options):
    options = {"allow_http": True, "timeout": timedelta(seconds=10)} | options
    return HTTPStore(endpoint, client_options=options, retry_config=ONE_ATTEMPT)


def read(store, start=1000, length=500_000, name="data.bin"):
    return bytes(obstore.get_range(store, name, start=start, length=length))


@pytest.fixture
def file(file_server):
    path = file_server.directory / "data.bin"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def store(file, http_proxy):
    """The file behind the proxy."""
    return http_store(http_proxy.endpoint)


def test_s3_keeps_objects_of_many_parts(s3, bucket):
    store = s3.store(bucket)
    obstore.put(store, "a/data.bin", DATA * 6, chunk_size=5 << 20)
    assert read(store, 999_000, 2000, "a/data.bin") == DATA[-1000:] + DATA[:1000]
    assert [each["size"] for each in obstore.list(store).collect()] == [6_000_000]


def test_s3_refuses_a_wrong_secret_and_a_missing_bucket(s3, bucket):
    obstore.put(s3.store(bucket), "data.bin", b"1")
    config = s3.environment() | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    with pytest.raises(PermissionDeniedError, match="SignatureDoesNotMatch"):
        obstore.get(S3Store(bucket, config=config), "data.bin")
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        obstore.put(s3.store("missing"), "data.bin", b"1")


@pytest.mark.slow
def test_anybody_may_read_the_public_bucket_only(s3, bucket):
    options = {"endpoint": s3.endpoint, "region": s3.region, "skip_signature": True}
    for name in ("public", bucket):
        obstore.put(s3.store(name), "data.bin", b"123")
    anonymous = S3Store("public", client_options={"allow_http": True}, **options)
    assert read(anonymous, 1, 1) == b"2"
    with pytest.raises(PermissionDeniedError):
        obstore.put(anonymous, "data.bin", b"1")
    with pytest.raises(PermissionDeniedError):
        obstore.get(S3Store(bucket, client_options={"allow_http": True}, **options), "data.bin")


@pytest.mark.usefixtures("s3_environment")
def test_s3_is_found_by_variables_of_the_environment(bucket):
    store = S3Store(bucket)
    obstore.put(store, "data.bin", b"123")
    assert read(store, 0, 3) == b"123"


def test_signatures_hold_through_the_proxy(s3, s3_proxy, bucket):
    store = s3.store(bucket, s3_proxy.endpoint)
    obstore.put(store, "data.bin", DATA)
    assert read(store) == DATA[1000:501_000]
    assert obstore.head(store, "data.bin")["size"] == len(DATA)
    assert len(obstore.list(store).collect()) == 1
    counts = s3_proxy.counts()
    assert counts["requests"] == {"PUT": 1, "GET": 2, "HEAD": 1}
    assert counts["body_bytes"] > 500_000
    assert counts["max_in_flight"] == 1


def test_files_have_ranges_and_tags_that_change_with_them(file, file_server):
    store = http_store(file_server.endpoint)
    result = obstore.get(store, "data.bin", options={"range": (10, 20)})
    assert (bytes(result.bytes()), result.range) == (DATA[10:20], (10, 20))
    assert result.meta["size"] == len(DATA)
    tag = result.meta["e_tag"]
    assert tag.startswith('"')
    assert obstore.head(store, "data.bin")["e_tag"] == tag
    modified = file.stat().st_mtime_ns + 1
    os.utime(file, ns=(modified, modified))
    assert obstore.head(store, "data.bin")["e_tag"] != tag
    with pytest.raises(BaseError, match="416"):
        read(store, len(DATA) + 1, 5)
    for name in ("none.bin", ""):
        with pytest.raises(FileNotFoundError):
            obstore.get(store, name)


def test_files_may_have_holes_of_gigabytes(file, file_server):
    with file.open("r+b") as opened:
        opened.truncate(40 << 30)
        opened.seek(30 << 30)
        opened.write(b"here")
    store = http_store(file_server.endpoint)
    assert read(store, (30 << 30) - 2, 8) == b"\0\0here\0\0"


@pytest.mark.parametrize("status", ["429", "500", "503"])
def test_the_proxy_answers_with_a_status(store, http_proxy, status):
    http_proxy.set(rates={status: 1.0})
    with pytest.raises(BaseError, match=status):
        read(store)
    http_proxy.set()
    assert read(store) == DATA[1000:501_000]
    assert http_proxy.counts()["faults"] == {status: 1}


@pytest.mark.parametrize("fault", ["reset", "short"])
def test_the_proxy_cuts_responses(store, http_proxy, fault):
    http_proxy.set(rates={fault: 1.0})
    for start in range(8):  # some before the response, some within
        with pytest.raises(BaseError):
            read(store, start)
    counts = http_proxy.counts()
    assert counts["requests"] == {"GET": 8}
    num_halves, rest = divmod(counts["body_bytes"], 250_000)
    assert rest == 0
    assert num_halves == 8 if fault == "short" else 0 < num_halves < 8
    http_proxy.set()
    assert read(store) == DATA[1000:501_000]


@pytest.mark.slow
def test_the_proxy_stalls(file, http_proxy):
    store = http_store(http_proxy.endpoint, timeout=timedelta(seconds=0.3))
    http_proxy.set(rates={"stall": 1.0})
    start = time.monotonic()
    with pytest.raises(BaseError):
        read(store)
    assert time.monotonic() - start > 0.25
    assert http_proxy.counts()["body_bytes"] == 250_000


def test_the_proxy_shortens_ranges_consistently(s3, s3_proxy, bucket):
    store = s3.store(bucket, s3_proxy.endpoint)
    obstore.put(store, "data.bin", DATA)
    s3_proxy.set(rates={"wrong_length": 1.0})
    with pytest.raises(BaseError, match=r"Requested 1000\.\.2000, got 1000\.\.1500"):
        read(store, 1000, 1000)
    assert bytes(obstore.get(store, "data.bin").bytes()) == DATA  # not a range
    s3_proxy.set()
    assert read(store, 1000, 1000) == DATA[1000:2000]


def outcomes(store, starts):
    """Which of concurrent requests succeed."""

    def succeeds(start):
        try:
            return read(store, start, 10) == DATA[start : start + 10]
        except BaseError:
            return False

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(succeeds, starts))


def test_the_seed_decides_which_requests_fail(store, http_proxy):
    starts = range(100)
    found = {}
    for seed in (1, 2):
        for order in (1, -1):
            http_proxy.set(rates={"503": 0.2, "429": 0.1}, seed=seed)
            found[seed, order] = outcomes(store, starts[::order])[::order]
    assert found[1, 1] == found[1, -1]
    assert found[2, 1] == found[2, -1]
    assert found[1, 1] != found[2, 1]
    assert 55 < sum(found[1, 1]) < 85
    again = outcomes(store, starts)  # an attempt more is another draw
    assert again != found[2, 1]


def test_faults_may_be_limited_to_paths_and_methods(store, http_proxy, file):
    file.with_name("other.bin").write_bytes(DATA)
    http_proxy.set(rates={"503": 1.0}, path="other", methods=["GET"])
    assert read(store, 0, 10) == DATA[:10]
    assert obstore.head(store, "other.bin")["size"] == len(DATA)
    with pytest.raises(BaseError, match="503"):
        obstore.get(store, "other.bin")


def test_latencies_of_concurrent_requests_overlap(store, http_proxy):
    http_proxy.set(latency_s=0.2)
    start = time.monotonic()
    assert all(outcomes(store, range(8)))
    assert time.monotonic() - start >= 0.2
    http_proxy.reset_counts()
    assert http_proxy.counts()["requests"] == {}
    assert http_proxy.counts()["max_in_flight"] == 0
    http_proxy.set(rates={"stall": 1.0})
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(outcomes, store, range(8))
        wait_until(lambda: http_proxy.counts()["max_in_flight"] == 8)
        http_proxy.down()
        assert not any(reading.result())
    http_proxy.up()


@pytest.mark.slow
def test_bandwidth_may_be_limited(store, http_proxy):
    http_proxy.set(bandwidth=2_000_000)
    start = time.monotonic()
    assert read(store) == DATA[1000:501_000]
    assert time.monotonic() - start > 0.2


def test_the_proxy_goes_down_and_up_on_the_same_port(store, http_proxy):
    assert read(store, 0, 10) == DATA[:10]
    http_proxy.down()
    with pytest.raises(BaseError):
        read(store, 0, 10)
    http_proxy.up()
    assert read(store, 0, 10) == DATA[:10]


PROGRAM = """
import sys, time
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.object_servers import FileServer
with FileServer(sys.argv[1]) as server, FaultProxy(server.endpoint) as proxy:
    print(server.pid, proxy.pid, flush=True)
    time.sleep(100)
"""


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_servers_end_with_a_process_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for what it does not get to remove
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert [is_alive(pid) for pid in pids] == [True, True]
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)))
