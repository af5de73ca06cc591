"""The statistics of waiting, and the warning for a training loop that waits."""

import itertools
import time
import warnings

import numpy as np
import pytest
from torch.utils.data import DataLoader

import millstream
from millstream.load import waiting
from millstream.load.stats import LoaderTotals
from millstream.load.waiting import reading_advice
from millstream.text.live.stats import Seconds, tokenizing_advice
from tests.helpers.datasets import write_dataset
from tests.helpers.page_cache import drop
from tests.helpers.waiting import wait_until


@pytest.fixture
def at_once(monkeypatch):
    """Judge after a few batches, instead of 20 s."""
    monkeypatch.setattr(waiting, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "LEAST_BATCHES", 5)
    monkeypatch.setattr(waiting, "SECONDS_BETWEEN_CHECKS", 0.0)


@pytest.fixture
def described(tmp_path):
    with millstream.Writer(tmp_path / "data", vocab_size=1000, metadata=bytes) as writer:
        for start in range(0, 1000, 10):
            writer.append(np.arange(start, start + 10), b"x")
    return millstream.open(tmp_path / "data")


def sleep_to_decode(blob):
    time.sleep(0.001)
    return blob


class SlowTokenizer:
    def __init__(self):
        self._bytes = millstream.load_tokenizer("bytes")

    def encode(self, text):
        time.sleep(0.001)
        return list(text.encode())


def waiting_warnings(batches, number):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in itertools.islice(batches, number):
            pass
    return [each for each in caught if each.category is millstream.WaitingWarning]


def test_a_loop_that_waits_is_told_once_why_and_where(described, at_once):
    view = described.windows(4, metadata=sleep_to_decode)
    with millstream.Loader(view, 2, output="numpy", endless=True) as loader:
        (warning,) = waiting_warnings(loader, 20)
        assert not waiting_warnings(loader, 20)
        loader.load_state_dict(loader.state_dict())
        assert not waiting_warnings(loader, 20)
    message = str(warning.message)
    assert message.startswith("the training loop waited for batches ")
    assert "metadata decoder" in message
    assert warning.filename == __file__
    assert warning.lineno in {line for _, _, line in waiting_warnings.__code__.co_lines()}


def test_a_warning_that_is_an_error_loses_no_batch(described, at_once):
    view = described.windows(4, metadata=sleep_to_decode)
    with millstream.Loader(view, 2, output="numpy", endless=True) as loader:
        got, batches, num_raised = [], iter(loader), 0
        while len(got) < 20:
            try:  # pytest makes errors of warnings
                got.append(next(batches)["input_ids"].tolist())
            except millstream.WaitingWarning:
                num_raised += 1
    assert num_raised == 1
    samples = loader.order.samples_at(np.arange(40)).reshape(20, 2)
    assert [[row[0] for row in batch] for batch in got] == (samples * 4).tolist()


def test_a_loop_that_never_waits_is_not_warned(described, at_once):
    with millstream.Loader(described.windows(4), 2, prefetch=4, output="numpy") as loader:
        batches = iter(loader)
        next(batches)
        for _ in range(20):
            wait_until(lambda: loader.stats.ready == 4)
            assert not waiting_warnings(batches, 1)
        assert loader.stats.last_wait_seconds == 0


@pytest.mark.parametrize(
    ("name", "value"), [("LEAST_SECONDS", 1000.0), ("LEAST_BATCHES", 1000), ("MOST_SHARE", 1.0)]
)
def test_each_limit_must_be_exceeded(described, at_once, monkeypatch, name, value):
    monkeypatch.setattr(waiting, name, value)
    with millstream.Loader(described.windows(4), 2, prefetch=0, output="numpy") as loader:
        assert not waiting_warnings(loader, 40)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_a_worker_of_a_data_loader_is_not_warned(described, at_once):
    """It is ahead of the training loop: what it waits costs nothing."""
    loader = millstream.Loader(described.windows(4), 2, prefetch=0)
    assert sum(1 for _ in DataLoader(loader, batch_size=None, num_workers=1)) == len(loader)


def test_text_that_is_tokenized_too_slowly_is_told(tmp_path, at_once):
    (tmp_path / "text.txt").write_text("a line of text\n" * 300)
    packing = millstream.Packing(add="none")
    with millstream.TextLoader(
        tmp_path / "text.txt", SlowTokenizer(), 1, 64, packing, output="numpy", prefetch=1
    ) as loader:
        (warning,) = waiting_warnings(loader, 30)
        assert loader.stats.waited_share > 0.01
    assert "millstream tokenize" in str(warning.message)
    assert warning.filename == __file__


def test_the_message_says_how_much(at_once):
    first, now = LoaderTotals(5.0), LoaderTotals(55.0, batches=100, waited_seconds=1.25)
    with pytest.warns(millstream.WaitingWarning) as caught:
        assert waiting.check_waiting(first, now, lambda: "Do this.") == float("inf")
    assert str(caught[0].message) == (
        "the training loop waited for batches 2.5 % of the time since the first one (1.2 of 50.0 "
        "s). Do this."
    )


FAST = {
    "prefetch": 4,
    "threads": 3,
    "num_processors": 4,
    "transforms": False,
    "decodes": False,
    "is_uncached": False,
    "is_remote": False,
    "cache_files": None,
    "widens": False,
    "access": "mmap",
}


@pytest.mark.parametrize(
    ("facts", "advice"),
    [
        ({"prefetch": 0}, "prefetch=0"),
        ({"decodes": True}, "decoder"),
        ({"transforms": True, "decodes": True}, "transform"),
        ({"is_remote": True, "is_uncached": True}, "Rows come from a store"),
        ({"is_uncached": True}, "faster disk, more memory, or shuffle=millstream.BlockShuffle(…)."),
        ({"is_uncached": True, "cache_files": False}, "or leave out cache_files=False."),
        ({"threads": 1}, "pass threads=2 instead of 1."),
        ({"threads": 2}, "pass threads=3 instead of 2."),
        ({"widens": True}, "use dtype=None"),
        ({"access": "pread"}, 'use millstream.open(…, access="mmap").'),
        ({}, "more processors"),
    ],
)
def test_what_to_change_follows_from_the_facts(facts, advice):
    assert advice in reading_advice(**FAST | facts)


@pytest.mark.parametrize(
    ("seconds", "threads", "advice"),
    [
        (Seconds(waiting_for_text=2, tokenizing=1), 2, "wait for text"),
        (Seconds(tokenizing=2, packing=2, waiting_for_tokens=1), 2, "packing thread"),
        (Seconds(tokenizing=2, waiting_for_tokens=2), 2, "pass threads=4"),
        (Seconds(tokenizing=2, waiting_for_tokens=2), 4, "tokenizing threads cannot keep up"),
    ],
)
def test_what_to_change_for_text_follows_from_the_threads_time(seconds, threads, advice):
    assert advice in tokenizing_advice(seconds, threads, 4)


def test_padding_and_waiting_are_counted(tmp_path):
    data = write_dataset(tmp_path / "data", np.arange(30), cuts=[3, 10, 21])
    with millstream.Loader(
        data.documents(16), 2, prefetch=0, output="numpy", shuffle=False
    ) as loader:
        first, second = (batch["input_ids"].size for batch in loader)
        stats = loader.stats
    assert stats.tokens < first + second
    assert stats.padded_share == pytest.approx(1 - stats.tokens / (first + second))
    assert 0 < stats.last_wait_seconds < stats.waited_seconds
    assert 0 < stats.waited_share < 1
    assert (stats.in_flight, stats.uploaded_bytes, stats.bytes_per_second) == (0, 0, 0)
    assert stats.tokens_per_second > 0


def test_a_loader_that_has_done_nothing_has_no_rates(described):
    stats = millstream.Loader(described.windows(4), 2, output="numpy").stats
    assert (stats.waited_share, stats.tokens_per_second, stats.padded_share) == (0, 0, 0)


def test_rows_that_come_from_the_disk_are_named(tmp_path, at_once):
    data = write_dataset(tmp_path / "data", np.arange(1 << 20) % 1000)
    file = next(path for path in (tmp_path / "data").rglob("*.stream"))
    if not drop(file):
        pytest.skip("this file system keeps its pages")
    with millstream.Loader(
        data.windows(1024), 1, output="numpy", cache_files=False, threads=1
    ) as loader:
        (warning,) = waiting_warnings(loader, 30)
    assert "Rows come from the disk" in str(warning.message)
    assert "leave out cache_files=False" in str(warning.message)
