"""Loaders of remote data return what those of local files return, whatever the network does."""

import itertools
import os
import random
import re
import resource
import tempfile
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError, ReadError
from millstream.remote import attempts
from millstream.remote.mirror import mirrored_file
from millstream.remote.object_stream import ObjectStream
from millstream.remote.requests import RequestPool, request_pool
from millstream.system.background_thread import StopSignal
from tests.helpers.remote_data import batches_of, cached_bytes, plain, upload, write_tokens
from tests.helpers.waiting import wait_until

pytest.importorskip("obstore")
pytestmark = [
    pytest.mark.process,
    # On a machine that is busy, a loop may wait for longer than the warning allows.
    pytest.mark.filterwarnings("ignore::millstream.WaitingWarning"),
]

_numbers = itertools.count(32)
FOREVER = 1000.0  # seconds: what waits for so long is ended as a hang
FAULTS = {"503": 0.01, "429": 0.01, "reset": 0.01, "short": 0.01, "stall": 0.005}
FAULTS |= {"wrong_length": 0.005}
CACHES = pytest.mark.parametrize("cache_bytes", [1 << 30, 0])


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """1.6 MB in eight shards."""
    return write_tokens(tmp_path_factory.mktemp("local") / "data", 800_000, shard_bytes=200_000)


@pytest.fixture(scope="module")
def url(s3, local):
    s3.create_bucket("loading")
    upload(s3.store("loading"), local.shards[0].directory, "data/")
    return "s3://loading/data"


@pytest.fixture
def open_url(s3, s3_proxy, url, s3_environment):
    """Opens the dataset through the proxy; faults come after that."""

    def open_url(**options):
        # Requests that another test left in flight have threads of another pool.
        own = {"endpoint": s3_proxy.endpoint, "max_requests": next(_numbers)}
        options = own | {"request_seconds": 1.0} | options
        return millstream.open(url, remote=millstream.Remote(**options))

    return open_url


def loader(data, batch_size=4, seq_len=192, **options):
    options = {"seed": 7, "output": "numpy"} | options
    return millstream.Loader(data.windows(seq_len), batch_size, **options)


@pytest.mark.slow
@CACHES
def test_1000_batches_with_faults_equal_those_of_local_files(
    local, open_url, s3_proxy, cache_bytes
):
    data = open_url(cache_bytes=cache_bytes, ahead_bytes=1 << 17, max_requests=16)
    # Without a cache there are hundreds of requests; with one, a few large ones.
    rates = {name: rate * (1 if cache_bytes == 0 else 6) for name, rate in FAULTS.items()}
    s3_proxy.set(rates=rates, seed=3)
    s3_proxy.reset_counts()
    assert batches_of(loader(data, 2), 1000) == batches_of(loader(local, 2), 1000)
    counts = s3_proxy.counts()
    assert sum(counts["faults"].values()) >= 5
    assert counts["max_in_flight"] <= 16


def test_retries_leave_the_random_numbers_of_a_program_alone(open_url, s3_proxy):
    data = open_url(cache_bytes=0)
    s3_proxy.set(rates={"503": 0.3}, seed=1)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    batches_of(loader(data), 20)
    assert s3_proxy.counts()["faults"]["503"] > 0
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before


@pytest.mark.slow
@CACHES
def test_a_resume_on_other_ranks_with_a_cold_cache_is_exact(
    local, open_url, s3_proxy, cache_bytes, tmp_path, monkeypatch
):
    def rows(data, state, ranks, batch_size):
        """The batches of all ranks, each of which goes on from the state."""
        found = []
        for rank in range(ranks):
            one = loader(data, batch_size, rank=rank, ranks=ranks)
            one.load_state_dict(state)
            found.append(batches_of(one, 20))
        return found

    data = open_url(cache_bytes=cache_bytes)
    s3_proxy.set(rates=FAULTS, seed=5)
    first, other = (loader(each, 4, rank=0, ranks=2) for each in (local, data))
    states = []
    for each in (first, other):
        with each:
            for _ in zip(range(50), each, strict=False):
                pass
            states.append(each.state_dict())
    assert states[0] == states[1]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cold"))
    again = open_url(cache_bytes=cache_bytes)
    assert rows(again, states[1], 3, 8) == rows(local, states[0], 3, 8)


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ranks=st.integers(1, 4),
    batch_size=st.integers(1, 9),
    resume_at=st.integers(0, 30),
    prefetch=st.sampled_from([0, 1, 8]),
    shuffle=st.sampled_from([True, False, millstream.BlockShuffle(4), millstream.BlockShuffle(64)]),
    cache_bytes=st.sampled_from([0, 1, 1 << 16, 1 << 30]),
    seq_len=st.sampled_from([1, 31, 512, 4099]),
    cold=st.booleans(),
    data=st.data(),
)
def test_any_loader_equals_its_local_twin(
    local, url, s3, s3_environment, tmp_path, monkeypatch, data, **case
):
    del s3_environment
    rank = data.draw(st.integers(0, case["ranks"] - 1))
    if case["cold"]:
        monkeypatch.setenv("XDG_CACHE_HOME", tempfile.mkdtemp(dir=tmp_path))
    remote = millstream.Remote(
        endpoint=s3.endpoint, cache_bytes=case["cache_bytes"], ahead_bytes=1 << 16
    )
    options = {name: case[name] for name in ("ranks", "prefetch", "shuffle", "seq_len")}
    options |= {"rank": rank, "batch_size": case["batch_size"]}
    both = []
    for each in (local, millstream.open(url, remote=remote)):
        with loader(each, **options) as before:
            count = sum(1 for _ in zip(range(case["resume_at"]), before, strict=False))
            state = before.state_dict()
        after = loader(each, **options)
        after.load_state_dict(state)
        both.append((count, state, batches_of(after, 12)))
    assert both[0] == both[1]


@CACHES
def test_requests_in_flight_stay_within_their_bound(local, open_url, s3_proxy, cache_bytes):
    data = open_url(cache_bytes=cache_bytes, max_requests=3 + (cache_bytes == 0))
    s3_proxy.set(latency_s=0.01)
    s3_proxy.reset_counts()
    assert batches_of(loader(data), 60) == batches_of(loader(local), 60)
    assert 2 <= s3_proxy.counts()["max_in_flight"] <= 3 + (cache_bytes == 0)


@pytest.mark.parametrize("is_mixture", [False, True])
def test_a_global_shuffle_is_requested_in_small_parts(open_url, s3_proxy, is_mixture):
    """The first batch would wait until all is requested that may be fetched ahead."""
    max_requests = next(_numbers)
    data = open_url(max_requests=max_requests, cache_bytes=0, request_seconds=60.0)
    view = data.windows(192)
    if is_mixture:
        view = millstream.mix({"one": (view, 1), "other": (view.slice(100), 1)})
    pool = data.reader.mirrored_files()[0].pool
    s3_proxy.set(latency_s=0.5)
    with millstream.Loader(view, 4, output="numpy") as batches:
        next(iter(batches))
        for _ in range(50):
            assert pool.num_waiting <= 8 * max_requests + 4
            time.sleep(0.01)


@pytest.mark.parametrize("batch_size", [4, 400])
def test_a_global_shuffle_makes_few_requests_ahead(open_url, s3_proxy, batch_size):
    """Their objects would keep Python's garbage collector busy, whatever ahead_bytes allows."""
    max_requests = next(_numbers)
    data = open_url(max_requests=max_requests, cache_bytes=0)

    most = max(64 * max_requests, 16 * batch_size)

    def num_requests():
        return s3_proxy.counts()["requests"]["GET"]

    with millstream.Loader(data.windows(192), batch_size, output="numpy") as batches:
        first = num_requests()
        next(iter(batches))
        wait_until(lambda: num_requests() - first > most / 2)
        time.sleep(1)
        assert num_requests() - first <= 1.2 * most + batch_size


@pytest.mark.slow
def test_memory_without_a_cache_stays_within_its_bound(s3, bucket, s3_environment, tmp_path):
    """64 MB of data, of which 1 MiB is to be fetched ahead."""
    del s3_environment
    path = tmp_path / "large.bin"
    path.write_bytes(np.random.default_rng(0).bytes(64 << 20))
    upload(s3.store(bucket), path)
    remote = millstream.Remote(cache_bytes=0, ahead_bytes=1 << 20)
    data = millstream.open(f"s3://{bucket}/large.bin", format="flat:uint16", remote=remote)
    total = 0
    with loader(data, 64, seq_len=2048, shuffle=False) as batches:
        for number, batch in enumerate(batches):
            if number == 20:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            total += batch["input_ids"].size
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert total * 2 >= 60 << 20
    assert grown < 24 << 10, f"{grown} KiB"
    assert cached_bytes(os.environ["XDG_CACHE_HOME"]) < 1 << 20


def test_a_slow_request_is_sent_again_and_the_first_answer_counts(local, open_url, s3_proxy):
    data = open_url(request_seconds=FOREVER, hedge_seconds=0.2, cache_bytes=0)
    s3_proxy.set(rates={"stall": 0.02}, seed=1)
    assert batches_of(loader(data), 60) == batches_of(loader(local), 60)
    assert s3_proxy.counts()["faults"]["stall"] > 0


def test_a_slow_request_is_not_repeated_once_its_copy_is_answered(open_url, s3_proxy):
    """It would be repeated until its deadline, and have taken a thread from others."""
    bounds = {"max_requests": next(_numbers), "hedge_seconds": 0.1}
    data = open_url(cache_bytes=0, **bounds)
    s3_proxy.set(rates={"stall": 0.1}, seed=1)
    batches_of(loader(data), 60)
    s3_proxy.down()
    pool = request_pool(**bounds)
    wait_until(lambda: not pool._requests)


def test_a_failure_names_the_object_the_range_and_the_attempts(open_url, s3_proxy):
    data = open_url(total_seconds=1.0)
    s3_proxy.set(rates={"503": 1.0}, methods=["GET"])
    with pytest.raises(ReadError) as failure:
        batches_of(loader(data), 10)
    text = str(failure.value)
    for part in ("s3://loading/data/", ".stream: bytes ", "attempts", "SlowDown", "total_seconds"):
        assert part in text, text


def test_a_stalled_request_ends_with_its_deadline(open_url, s3_proxy):
    data = open_url(request_seconds=0.3, total_seconds=1.0)
    s3_proxy.set(rates={"stall": 1.0}, methods=["GET"])
    with pytest.raises(ReadError, match=r"s3://loading/data/.* attempts in .*request_seconds"):
        batches_of(loader(data), 10)


def test_answers_of_the_wrong_length_are_never_delivered(local, open_url, s3_proxy):
    for fault in ("short", "wrong_length"):
        data = open_url(total_seconds=0.5, cache_bytes=0)
        s3_proxy.set(rates={fault: 1.0}, methods=["GET"])
        with pytest.raises(ReadError, match="attempts"):
            batches_of(loader(data), 10)
        s3_proxy.set()
        data = open_url(cache_bytes=0)
        assert batches_of(loader(data), 10) == batches_of(loader(local), 10)


@CACHES
def test_training_goes_on_when_the_network_comes_back(local, open_url, s3_proxy, cache_bytes):
    data = open_url(cache_bytes=cache_bytes, ahead_bytes=1 << 16, total_seconds=60.0)
    with loader(data) as batches:
        found = []
        for number, batch in enumerate(batches):
            found.append(plain(batch))
            if number == 10:
                s3_proxy.down()
                network = threading.Timer(1.0, s3_proxy.up)
                network.start()
            if number == 299:
                break
    network.join()
    assert found == batches_of(loader(local), 300)


@pytest.mark.parametrize("cache_bytes", [1 << 16, 0])  # a larger cache may have all data by then
def test_a_lost_network_is_told_with_the_endpoint(
    open_url, s3_proxy, cache_bytes, monkeypatch, caplog
):
    data = open_url(cache_bytes=cache_bytes, ahead_bytes=1 << 16, total_seconds=2.0)
    try:
        with loader(data) as batches, pytest.raises(ReadError) as failure:
            for number, _ in enumerate(batches):
                if number == 5:
                    monkeypatch.setattr(attempts, "_SILENT_SECONDS", 0.1)
                    monkeypatch.setattr(attempts, "_WARNED_AT", {})
                    caplog.clear()  # what was slow until now
                    s3_proxy.down()
    finally:
        s3_proxy.up()
    assert s3_proxy.endpoint in str(failure.value)
    assert "check the network" in str(failure.value)
    warnings = [text for text in caplog.messages if "//loading/" in text]  # not of other tests
    (warning,) = warnings  # before it fails, and not for each of the requests that wait
    assert re.fullmatch(r"s3://.* no answer after .*; trying again until 2 s have passed", warning)


def test_one_of_the_threads_that_wait_for_a_store_warns(monkeypatch):
    class SlowTimes(dict):
        def get(self, *arguments):
            found = super().get(*arguments)
            time.sleep(0.01)  # others may look now, too
            return found

    monkeypatch.setattr(attempts, "_WARNED_AT", SlowTimes())
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(attempts._may_warn, "s3://bucket", 100.0) for _ in range(4)]
        assert sum(each.result() for each in asked) == 1


@pytest.mark.parametrize("cache_bytes", [1 << 16, 0])
def test_a_loader_that_ends_while_the_network_is_lost_leaves_no_requests(
    local, open_url, s3_proxy, s3, cache_bytes
):
    """Repeated until their deadline, they would take the threads of all others."""
    bounds = {"cache_bytes": cache_bytes, "ahead_bytes": 1 << 16, "max_requests": 2}
    bounds |= {"hedge_seconds": 500.0 + cache_bytes, "total_seconds": FOREVER}  # a pool of its own
    with loader(open_url(**bounds), prefetch=1) as batches:
        next(iter(batches))
        s3_proxy.down()
        time.sleep(0.3)
    try:
        data = open_url(**bounds, endpoint=s3.endpoint)
        assert batches_of(loader(data), 5) == batches_of(loader(local), 5)
    finally:
        s3_proxy.up()


def test_a_loader_that_ends_leaves_others_their_requests(local, open_url, s3_proxy):
    """Its requests are cancelled; a loader that waits for the same bytes asks again."""
    data = open_url(max_requests=1)
    expected = batches_of(loader(local), 30)
    s3_proxy.set(latency_s=0.2)
    first, second = loader(data), loader(data)
    started = iter(first)
    waiting = threading.Thread(target=lambda: next(started, None), daemon=True)
    waiting.start()
    time.sleep(0.1)
    found = []
    reading = threading.Thread(target=lambda: found.extend(batches_of(second, 30)), daemon=True)
    reading.start()
    time.sleep(0.1)
    first.close()
    s3_proxy.set()
    reading.join()
    assert found == expected


def test_a_loader_that_ends_while_its_requests_fail_leaves_others_to_ask_again(open_url, s3_proxy):
    """It gives up the requests that it would repeat; another thread may wait for them."""
    file = open_url().reader.mirrored_files()[0]
    s3_proxy.set(rates={"503": 1.0}, methods=["GET"])
    requests = file.fetch([(0, 4096)])
    wait_until(lambda: s3_proxy.counts()["faults"])
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(file.provide, [(0, 4096)])
        time.sleep(0.3)
        for each in requests:
            file.pool.give_up(each)
        wait_until(lambda: all(each.done() for each in requests))
        s3_proxy.set()
        waiting.result()
    assert file.blocks.has(0, 4096)


def test_who_stops_waiting_leaves_no_requests(open_url, s3_proxy):
    """They would be repeated until their deadline, and warn of a network that others need not."""
    bounds = {"max_requests": next(_numbers)}
    file = open_url(**bounds).reader.mirrored_files()[0]
    s3_proxy.set(rates={"503": 1.0}, methods=["GET"])
    file.provide([(0, 4096)], lambda: s3_proxy.counts()["faults"].get("503", 0) > 0)
    stop = StopSignal()
    with ThreadPoolExecutor(1) as threads, pytest.raises(CancelledError):

        def provide():
            with attempts.stopping_with(stop):
                file.provide([(8192, 12288)])

        waiting = threads.submit(provide)
        s3_proxy.reset_counts()
        wait_until(lambda: s3_proxy.counts()["faults"])
        stop.set()
        waiting.result()
    pool = request_pool(**bounds, hedge_seconds=None)
    wait_until(lambda: not pool._requests)


def test_a_loader_that_ends_leaves_no_requests_for_checksums(open_url, s3_proxy, monkeypatch):
    """They would be repeated until their deadline, and warn of a network that others need not."""
    monkeypatch.setattr("millstream.remote.mirrored_file._MAX_CHECK_SECONDS", 0.0)
    bounds = {"max_requests": next(_numbers), "total_seconds": FOREVER}
    pool = request_pool(bounds["max_requests"], hedge_seconds=None)
    data = open_url(**bounds)
    s3_proxy.set(rates={"503": 1.0}, path=".checksums", methods=["GET"])
    with loader(data) as batches:
        next(iter(batches))
        wait_until(lambda: s3_proxy.counts()["faults"])
    wait_until(lambda: not pool._requests)


def test_a_loader_that_ends_leaves_others_their_checksums(local, open_url, s3_proxy, monkeypatch):
    """Both wait for the same requests, which the other one sends again."""
    monkeypatch.setattr("millstream.remote.mirrored_file._MAX_CHECK_SECONDS", 0.0)
    data = open_url(total_seconds=FOREVER)
    s3_proxy.set(rates={"503": 1.0}, path=".checksums", methods=["GET"])
    first, second = loader(data), loader(data)
    next(iter(first))
    batches = iter(second)
    found = [plain(next(batches))]
    wait_until(lambda: s3_proxy.counts()["faults"])
    first.close()
    s3_proxy.set()
    found += [plain(next(batches)) for _ in range(29)]
    assert found == batches_of(loader(local), 30)
    awaited = [each for each in data.reader.mirrored_files() if each.awaited is not None]
    assert awaited
    wait_until(lambda: all(each.blocks.expected is not None for each in awaited))
    second.close()


def test_two_loaders_share_the_only_request(local, open_url, s3_proxy, monkeypatch):
    """What arrives for the first one waits for checksums that the second one asks for."""
    monkeypatch.setattr("millstream.remote.mirrored_file._MAX_CHECK_SECONDS", FOREVER)
    data = open_url(max_requests=1)
    expected = batches_of(loader(local), 100)
    s3_proxy.set(latency_s=0.1)
    with loader(data) as first, loader(data) as second:
        one, other = iter(first), iter(second)
        found = [[plain(next(one))], [plain(next(other))]]
        found[0] += [plain(next(one)) for _ in range(99)]
        found[1] += [plain(next(other)) for _ in range(99)]
    assert found == [expected, expected]


def test_a_request_runs_another_one_that_it_waits_for():
    """Also one that is queued behind it, if there is no other thread."""
    pool, others, is_queued = RequestPool(1), [], threading.Event()

    def wait_for_other():
        is_queued.wait()
        pool.run_if_waiting(others[0])
        return others[0].result()

    waiting = pool.submit(wait_for_other)
    others.append(pool.submit(lambda: 7))
    is_queued.set()
    assert waiting.result() == 7


def test_a_changed_object_is_told_while_running(tmp_path, file_server):
    content = np.random.default_rng(1).bytes(2_000_000)
    path = file_server.directory / "x.bin"
    path.write_bytes(content)
    remote = millstream.Remote(cache_bytes=0, ahead_bytes=1 << 16, max_requests=next(_numbers))
    data = millstream.open(f"{file_server.endpoint}/x.bin", format="flat:uint16", remote=remote)
    with loader(data) as batches, pytest.raises(FormatError, match=r"x.bin: .*changed") as failure:
        for number, _ in enumerate(batches):
            if number == 3:
                other = tmp_path / "other"
                other.write_bytes(content[::-1])
                other.replace(path)
    assert file_server.endpoint in str(failure.value)


def test_a_changed_size_is_told_while_running(tmp_path, file_server):
    path = file_server.directory / "x.bin"
    path.write_bytes(np.random.default_rng(1).bytes(2_000_000))
    remote = millstream.Remote(cache_bytes=0, ahead_bytes=1 << 16, max_requests=next(_numbers))
    data = millstream.open(f"{file_server.endpoint}/x.bin", format="flat:uint16", remote=remote)
    with loader(data) as batches, pytest.raises(FormatError, match=r"x.bin: .*changed"):
        for number, _ in enumerate(batches):
            if number == 3:
                (tmp_path / "other").write_bytes(b"\1\0" * 600_000)
                (tmp_path / "other").replace(path)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 16])
def test_a_loader_reads_no_object_that_was_opened_after_it_began(
    tmp_path, file_server, cache_bytes
):
    generator = np.random.default_rng(1)
    contents = {name: generator.bytes(1_000_000) for name in ("a.bin", "b.bin")}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        (file_server.directory / name).write_bytes(content)
    options = {"cache_bytes": cache_bytes, "ahead_bytes": 1 << 16, "max_requests": next(_numbers)}
    remote = millstream.Remote(**options)

    def open_both(root, **options):
        return millstream.open(
            [f"{root}/{name}" for name in contents], format="flat:uint16", **options
        )

    expected = loader(open_both(tmp_path), 16)
    with (
        expected,
        loader(open_both(file_server.endpoint, remote=remote), 16, prefetch=0) as batches,
        pytest.raises(FormatError, match="changed"),
    ):
        for number, (batch, twin) in enumerate(zip(batches, expected, strict=True)):
            assert plain(batch) == plain(twin)
            if number == 3:
                (tmp_path / "other").write_bytes(contents["b.bin"][::-1])
                (tmp_path / "other").replace(file_server.directory / "b.bin")
                open_both(file_server.endpoint, remote=remote)


@pytest.mark.parametrize("cache_bytes", [0, 100_000, 1 << 30])
def test_a_dataset_that_was_written_again_is_told(
    tmp_path, s3, bucket, s3_environment, cache_bytes
):
    """Although no ETag of its shards was known before, and their sizes are the same."""
    del s3_environment
    for seed in (0, 1):
        write_tokens(tmp_path / str(seed), 200_000, shard_bytes=100_000, seed=seed)
    upload(s3.store(bucket), tmp_path / "0", "data/")
    remote = millstream.Remote(cache_bytes=cache_bytes, ahead_bytes=1 << 16)
    data = millstream.open(f"s3://{bucket}/data", remote=remote)
    upload(s3.store(bucket), tmp_path / "1", "data/")
    with (
        millstream.Loader(data.windows(64), 8, shuffle=False, endless=True) as batches,
        pytest.raises(FormatError, match=r"s3://.*stream: its checksums .*has changed"),
    ):
        for _ in batches:
            pass


def test_a_stream_gives_no_bytes_of_an_object_that_was_opened_after_it(tmp_path, file_server):
    path, size_bytes = file_server.directory / "x.bin", 40 << 20  # more than is fetched ahead
    with path.open("wb") as file:
        file.truncate(size_bytes)
    url, remote = f"{file_server.endpoint}/x.bin", millstream.Remote(cache_bytes=0)
    millstream.open(url, format="flat:uint16", remote=remote)
    with ObjectStream(mirrored_file(url, remote)) as stream:
        assert stream.read(100) == bytes(100)
        (tmp_path / "other").write_bytes(b"\1" * size_bytes)
        (tmp_path / "other").replace(path)
        millstream.open(url, format="flat:uint16", remote=remote)
        with pytest.raises(FormatError, match=r"x\.bin: .*changed"):
            stream.readall()
