"""How far a TextLoader works ahead, and which thread waits for which."""

import itertools
import sys
import threading

import pytest

import millstream
from millstream import Packing, TextLoader
from millstream.text.live.stats import Seconds, shares_of_time
from tests.helpers.live_text import Bytes, make_loader, rows_of, write_text
from tests.helpers.waiting import wait_until

ROW = "a" * 7  # with its mark a row of 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Forty blocks of one document each."""
    return write_text(tmp_path_factory.mktemp("text"), [[[ROW]] * 40])


class Counting(Bytes):
    """Counts the texts."""

    num_calls = 0

    def encode(self, data, offsets):
        self.num_calls += 1
        return super().encode(data, offsets)


class Gate:
    """Holds up whoever passes until that is known to somebody who opens it."""

    def __init__(self):
        self._is_reached, self._is_open = threading.Event(), threading.Event()

    def enter(self):
        self._is_reached.set()
        assert self._is_open.wait(60)

    def open_when_reached(self):
        assert self._is_reached.wait(60)
        self._is_open.set()


class GatedBytes(Bytes):
    """Tokenizes once its gate is open."""

    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def encode(self, data, offsets):
        self.gate.enter()
        return super().encode(data, offsets)


class GatedSource(millstream.Source):
    """Reads once its gate is open."""

    def __init__(self, path):
        super().__init__(path)
        self.gate = Gate()

    def read(self, *args, **options):
        self.gate.enter()
        yield from super().read(*args, **options)


def test_no_more_is_read_packed_or_tokenized_than_was_asked_for(corpus):
    tokenizer = Counting()
    with TextLoader(
        corpus,
        tokenizer,
        1,
        8,
        "flat",
        shuffle=False,
        endless=True,
        output="numpy",
        prefetch=3,
        threads=1,
    ) as loader:
        for num_taken, _ in enumerate(itertools.islice(loader, 50), 1):
            wait_until(lambda: loader.stats.ready >= 3)
            assert loader.stats.ready == 3
            # A text for each row that was taken or is ready, one for the last label, and two
            # ahead; one is being read.
            assert tokenizer.num_calls <= num_taken + 3 + 1 + 2 + 1


def load_until(is_so, gate, loader):
    """Load until `is_so()`, while another thread opens the gate as soon as it is reached."""
    opener = threading.Thread(target=gate.open_when_reached)
    opener.start()
    batches = iter(loader)
    wait_until(lambda: next(batches) and is_so())
    opener.join()


def test_a_slow_tokenizer_is_waited_for_and_that_is_remembered(corpus):
    tokenizer = GatedBytes()
    options = {"endless": True, "output": "numpy", "threads": 1}
    with TextLoader(corpus, tokenizer, 1, 8, "flat", **options) as loader:
        load_until(lambda: loader.stats.waiting_for_tokenizer > 0, tokenizer.gate, loader)
    stats = loader.stats  # closed, it still knows
    assert stats.waiting_for_tokenizer > 0
    assert stats.waited_seconds > 0


def test_a_slow_reader_is_waited_for(corpus):
    source = GatedSource(corpus)
    options = {"endless": True, "output": "numpy", "threads": 1}
    with TextLoader(source, Bytes(), 1, 8, "flat", **options) as loader:
        load_until(lambda: loader.stats.waiting_for_reader > 0, source.gate, loader)


def test_a_slow_consumer_is_waited_for(corpus):
    with make_loader(corpus, "flat", 8, prefetch=2) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: loader.stats.ready == 2)  # and the packing thread waits for a place
        next(batches)
        wait_until(lambda: loader.stats.waiting_for_consumer > 0)


def test_shares_of_time_are_those_of_the_threads_that_wait():
    seconds = Seconds(
        reading=50, waiting_for_text=1, tokenizing=2, idle=5,
        waiting_for_tokens=3, packing=6, waiting_for_consumer=1, consumer_waiting=7,
    )  # fmt: skip
    assert shares_of_time(seconds) == {
        "waiting_for_reader": 1 / 8,
        "waiting_for_tokenizer": 3 / 10,
        "waiting_for_consumer": 1 / 10,
    }


def test_what_was_cropped_is_counted_on_after_a_state_was_loaded(tmp_path):
    path = write_text(tmp_path / "text", [[["a" * 99] * 4]])
    packing = Packing(policy="bos_best_fit", buffer_size=1, refill=1)
    with TextLoader(
        path, Bytes(), 1, 49, packing, shuffle=False, endless=True, output="numpy", prefetch=1
    ) as loader:
        for _ in range(5):
            for _ in itertools.islice(loader, 2):
                pass
            loader.load_state_dict(loader.state_dict())
        # Of every document of 100 tokens, 49 are inputs and 50 are dropped.
        assert loader.stats.cropped_share == pytest.approx(50 / 99)


def test_the_epoch_is_that_of_the_lane_that_is_farthest_behind(tmp_path):
    path = write_text(tmp_path / "text", [[[ROW]] * 3])
    with make_loader(path, "flat", 8, batch_size=1, lanes=2) as loader:
        epochs = []
        for _ in itertools.islice(loader, 12):
            epochs.append(loader.epoch)
            # The last label of a row is the first token of the document that the lane reads next.
            next_blocks = [lane + 2 * ((loader.position - lane + 1) // 2) for lane in range(2)]
            begun = [block for lane, block in enumerate(next_blocks) if loader.position > lane]
            assert loader.epoch == min(block // 3 for block in begun or next_blocks)
    assert epochs[-1] == 4


def test_loading_a_state_of_the_same_position_in_another_epoch_reads_that_epoch(tmp_path):
    path = write_text(tmp_path / "text", [[[chr(97 + k) * 7] for k in range(20)]])
    options = {"batch_size": 4, "shuffle": True, "endless": False}
    with make_loader(path, "flat", 8, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
        expected = rows_of(itertools.islice(loader, 1))
        assert len(list(loader)) == 3
        next(iter(loader))
        assert (loader.epoch, loader.position) == (1, state["position"])
        loader.load_state_dict(state)
        assert rows_of(itertools.islice(loader, 1)) == expected


@pytest.mark.slow
def test_an_interrupt_at_any_line_of_next_loses_no_batch_and_repeats_none(corpus):
    path, num_lines = corpus, 0
    with make_loader(path, "full_best_fit", 8) as loader:
        expected = rows_of(itertools.islice(loader, 8))
    for stop_at in itertools.count():
        with make_loader(path, "full_best_fit", 8) as loader:
            found = rows_of(itertools.islice(loader, 2))
            iterator, num_lines = iter(loader), 0

            def interrupt(frame, event, argument, stop_at=stop_at):
                nonlocal num_lines
                if not frame.f_code.co_filename.endswith(("live/live_walk.py", "live/pipeline.py")):
                    return None
                num_lines += event == "line"
                if event == "line" and num_lines == stop_at + 1:
                    raise KeyboardInterrupt
                return interrupt

            sys.settrace(interrupt)
            try:
                found += rows_of([next(iterator)])
                was_interrupted = False
            except KeyboardInterrupt:
                was_interrupted = True
            finally:
                sys.settrace(None)
            assert loader.position == len(found)
            found += rows_of([next(iterator)])  # the iterator goes on
            assert found == expected[: len(found)]
        if not was_interrupted:
            break
    assert num_lines > 10
