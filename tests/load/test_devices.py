"""Devices that loaders take, and feeds that run ahead of the consumer, on the CPU."""

import random
import signal
import threading
from itertools import islice

import numpy as np
import pytest

import millstream
from millstream.batches.sample_reader import SampleReader
from millstream.load.batch_maker import BatchMaker
from millstream.load.batch_memory import Pool
from millstream.load.devices import PlainFeed
from millstream.testing import assert_same
from tests.helpers.datasets import write_random_documents

torch = pytest.importorskip("torch")
EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """300 documents of 1 to 60 tokens."""
    path = tmp_path_factory.mktemp("data") / "d"
    return write_random_documents(path, 300, longest=60)


class EarlyFeed(PlainFeed):
    """A plain feed that uploads as early as that of CUDA, and lets other threads run meanwhile."""

    def __init__(self, maker, device):
        super().__init__(maker, device)
        self.ahead = 2

    def upload(self, memory, rows):
        batch = {
            name: value.clone() if hasattr(value, "clone") else value
            for name, value in super().upload(memory, rows).items()
        }
        threading.Event().wait(0.0001)
        return batch


@pytest.fixture
def early(monkeypatch):
    """Loaders with an `EarlyFeed`."""

    def new_feed(device, layout, maker, **options):
        return EarlyFeed(maker, device)

    monkeypatch.setattr("millstream.load.base_loader.find_device", lambda *_, **__: CPU)
    monkeypatch.setattr("millstream.load.read_ahead.new_feed", new_feed)
    monkeypatch.setattr("millstream.text.live.live_walk.new_feed", new_feed)


def test_threads_share_uploads_and_leave_none(data, early):
    view = data.windows(16)
    expected = sorted(batch["input_ids"].tolist() for batch in islice(_host(view), 150))
    found, lock = [], threading.Lock()
    with millstream.Loader(view, 2, endless=True) as loader:
        batches = iter(loader)

        def take():
            for _ in range(50):
                batch = next(batches)
                with lock:
                    found.append(batch["input_ids"].tolist())

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loader.stats.in_flight <= 2
    assert sorted(found) == expected


def _host(view):
    return millstream.Loader(view, 2, endless=True)


@pytest.fixture
def text(tmp_path):
    """A text of 400 lines."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {number}\n" for number in range(400)))
    return path


def test_a_signal_handler_may_take_batches_of_text_that_cross_ahead(text, early):
    options = {"batch_size": 2, "seq_len": 16}
    expected = [batch["input_ids"].tolist() for batch in _text_on_host(text, options)]
    loader = millstream.TextLoader(text, "bytes", **options)
    batches, found, generator = iter(loader), [], random.Random(0)

    def take(*_):
        for batch in islice(batches, 1):
            found.append(batch["input_ids"].tolist())

    previous = signal.signal(signal.SIGALRM, take)
    try:
        while True:
            signal.setitimer(signal.ITIMER_REAL, generator.uniform(0.0001, 0.002))
            for batch in islice(batches, 1):
                signal.setitimer(signal.ITIMER_REAL, 0)
                found.append(batch["input_ids"].tolist())
                break
            else:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        loader.close()
    assert sorted(found) == sorted(expected)


def _text_on_host(text, options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.load.base_loader.find_device", lambda *_, **__: None)
        return list(millstream.TextLoader(text, "bytes", **options))


def test_text_that_crosses_ahead_resumes_where_it_was_handed_out(text, early):
    options = {"batch_size": 2, "seq_len": 16}
    expected = _text_on_host(text, options)
    loader = millstream.TextLoader(text, "bytes", **options)
    for batch, same in zip(islice(loader, 5), expected, strict=False):
        assert_same(batch, same)
    state = loader.state_dict()
    for batch, same in zip(loader, expected[5:], strict=True):
        assert_same(batch, same)
    loader.load_state_dict(state)
    for batch, same in zip(loader, expected[5:], strict=True):
        assert_same(batch, same)


def test_a_device_that_is_not_there_is_refused_by_name(data):
    view = data.windows(16)
    for device in ("cuda:99", "mps", "nonsense", 3.5):
        with pytest.raises(millstream.UsageError, match=f"device={device!r}"):
            millstream.Loader(view, 2, device=device)
    with pytest.raises(millstream.UsageError, match="static_addresses=True needs a CUDA device"):
        millstream.Loader(view, 2, device="cpu", static_addresses=True)
    with pytest.raises(millstream.UsageError, match="remove output='numpy'"):
        millstream.Loader(view, 2, device="cpu", output="numpy")


def test_the_cpu_is_a_device_like_others(data):
    here = millstream.Loader(data.packed(64), 4)
    for batch, expected in zip(
        millstream.Loader(data.packed(64), 4, device="cpu"), here, strict=True
    ):
        millstream.testing.assert_same(batch, expected)


def test_other_devices_get_a_plain_copy(data):
    layout = data.packed(64, extras=EXTRAS).layout(4, np.int64)
    memory = Pool(layout.num_bytes, 1).take()
    SampleReader(data.packed(64, extras=EXTRAS), layout).read(
        np.arange(4), np.frombuffer(memory, np.uint8)
    )
    maker = BatchMaker(layout.places(), 4, torch.from_numpy)
    feed = PlainFeed(maker, torch.device("meta"))
    batch = feed.hand_out(feed.upload(memory, 4))
    assert {value.device.type for name, value in batch.items() if name != "max_seqlen"} == {"meta"}
    assert batch["input_ids"].shape == (4, 64)
    assert batch["max_seqlen"] == maker.make(memory, 4)["max_seqlen"]
    assert feed.num_bytes == sum(
        value.nbytes for name, value in batch.items() if name != "max_seqlen"
    )
