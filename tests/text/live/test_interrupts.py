"""Ctrl-C at any moment: it is caught, and loading continues as in a notebook."""

import os
import re
import subprocess
import sys
import threading

import pytest

from millstream import TextLoader
from tests.helpers import paths
from tests.helpers.live_text import Bytes, make_loader, rows_of, write_text
from tests.helpers.reading_threads import background_threads, wait_for_background_threads_to_end
from tests.helpers.sigint import interrupt_when


@pytest.fixture
def corpus(tmp_path):
    return write_text(tmp_path / "text", [[["abc" * k for k in range(1, 40)]] * 3])


@pytest.mark.process
def test_hundreds_of_interrupts_lose_no_batch_repeat_none_and_leave_no_thread(corpus):
    command = [sys.executable, "-m", "tests.helpers.interrupted_loading", str(corpus), "150"]
    done = subprocess.run(command, cwd=paths.ROOT, timeout=100, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = [int(count) for count in re.findall(r"(\d+) interrupts", done.stdout)]
    assert len(counts) == 4
    assert min(counts) >= 150


class SlowBytes(Bytes):
    """Takes as long for a text as it is let wait."""

    def __init__(self):
        super().__init__()
        self.is_asked, self.may_answer = threading.Event(), threading.Event()

    def encode(self, data, offsets):
        self.is_asked.set()
        assert self.may_answer.wait(30)
        return super().encode(data, offsets)


@pytest.mark.slow
@pytest.mark.parametrize("endless", [True, False])
def test_an_interrupt_does_not_wait_for_a_slow_tokenizer(corpus, endless, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with make_loader(corpus, "full_best_fit", 8) as loader:
        expected = rows_of([next(iter(loader))])
    tokenizer = SlowBytes()
    with TextLoader(
        corpus, tokenizer, 2, 8, loader.packing, shuffle=False, endless=endless, output="numpy"
    ) as slow:
        iterator = iter(slow)
        interrupt_when(tokenizer.is_asked)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert not tokenizer.may_answer.is_set()
        tokenizer.may_answer.set()
        assert rows_of([next(iterator)]) == expected
        assert slow.stats.batches == 1


@pytest.mark.slow
def test_an_interrupt_of_counting_does_not_wait_for_a_slow_tokenizer(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with make_loader(corpus, "full_best_fit", 8, endless=False) as loader:
        expected = sum(1 for _ in loader)  # list() would ask for the length, and so count
    tokenizer = SlowBytes()
    with TextLoader(
        corpus, tokenizer, 2, 8, loader.packing, shuffle=False, endless=False, output="numpy"
    ) as slow:
        interrupt_when(tokenizer.is_asked)
        with pytest.raises(KeyboardInterrupt):
            len(slow)
        assert not tokenizer.may_answer.is_set()
        tokenizer.may_answer.set()
        assert len(slow) == expected


def test_closing_may_be_interrupted_and_repeated(corpus):
    wait_for_background_threads_to_end()
    tokenizer = SlowBytes()
    loader = TextLoader(corpus, tokenizer, 2, 8, output="numpy")
    interrupt_when(tokenizer.is_asked)
    with pytest.raises(KeyboardInterrupt):
        next(iter(loader))
    is_closing = threading.Event()
    interrupt_when(is_closing)
    is_closing.set()
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    tokenizer.may_answer.set()
    loader.close()
    assert not background_threads()


def test_threads_that_share_a_loader_get_every_batch_of_an_epoch_once(corpus):
    with make_loader(corpus, "flat", 8, endless=False) as loader:
        expected = rows_of(loader)
        loader.load_state_dict(make_loader(corpus, "flat", 8, endless=False).state_dict())
        iterators = [iter(loader) for _ in range(4)]
        found, barrier = [[] for _ in iterators], threading.Barrier(4)

        def consume(iterator, mine):
            batch = next(iterator)
            barrier.wait()
            mine.append(batch)
            mine.extend(iterator)

        threads = [
            threading.Thread(target=consume, args=each)
            for each in zip(iterators, found, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = sorted(row for mine in found for row in rows_of(mine))
    assert rows == sorted(expected)


def test_an_iterator_that_has_ended_stays_ended(corpus):
    with make_loader(corpus, "flat", 8, endless=False) as loader:
        iterator = iter(loader)
        assert len(list(iterator)) == loader.stats.batches
        next(iter(loader))  # of the next epoch
        assert next(iterator, None) is None


@pytest.mark.process
def test_a_process_ends_with_its_loader_in_use(corpus):
    program = (
        "import sys; from millstream import TextLoader;"
        "loader = TextLoader(sys.argv[1], 'bytes', 2, 8, output='numpy');"
        "iterator = iter(loader); next(iterator)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(corpus)], timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_closes_a_loader_whose_threads_it_does_not_have(corpus):
    loader = make_loader(corpus, "flat", 8)
    next(iter(loader))
    child = os.fork()
    if child == 0:
        loader.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    loader.close()
