"""`load.step_queue` and `load.walk`: steps are read ahead and handed out in order."""

import contextlib
import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from millstream.batches.batch_reader import BatchReader, ReaderMemory
from millstream.batches.layout import OutputPlace
from millstream.batches.view_state import ViewKind
from millstream.load.announcing import Announcer
from millstream.load.batch_maker import BatchMaker
from millstream.load.batch_memory import BatchMemory, Pool
from millstream.load.plan import StepPlan
from millstream.load.step_queue import StepQueue
from millstream.load.step_reader import StepReader
from millstream.load.walk import Iteration, Walk
from millstream.order.shuffling import OrderKind, ShuffleState
from tests.helpers.kernel_inputs import open_files, token_layout, view_state
from tests.helpers.reading_threads import wait_for_reading_threads

pytestmark = pytest.mark.kernels

ROWS, WIDTH, NUM_SAMPLES = 2, 4, 10
SIZES = {"position": 0, "skip": 0, "every": 1, "depth": 1, "announce": 0}


class Samples:
    """What a thread reads 41 tokens with: ten windows of four."""

    def __init__(self, directory, decode=None):
        self.files = open_files([directory / "tokens"], [41], 2)
        layout, _ = token_layout(ROWS, WIDTH)
        view = view_state(
            ViewKind.WINDOWS, num_samples=NUM_SAMPLES, num_records=41, width=WIDTH, is_plain=True
        )
        by_kind = (self.files, None, None, None, None)
        self.batches = BatchReader(view, layout, by_kind, None, ReaderMemory(1, 1 << 11))
        self.decode = decode
        self.has_metadata = decode is not None

    def read_metadata(self, rows):
        return self.decode(rows)

    def recover(self):
        raise OSError(f"fault {self.batches.fault.code.name}")


def new_reader(samples, plan):
    order = ShuffleState(OrderKind.SEQUENTIAL, NUM_SAMPLES, 0, 1, 1)
    return StepReader(plan, order, announcer_of(samples), samples)


def announcer_of(samples):
    order = ShuffleState(OrderKind.SEQUENTIAL, NUM_SAMPLES, 0, 1, 1)
    return Announcer(order, samples.batches, ROWS, None)


def opened(directory):
    """Which descriptors of this process are of files in a directory."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(str(Path("/proc/self/fd", descriptor).readlink()))
    return [link for link in links if link.startswith(str(directory))]


class Loading:
    """A walk over the samples, and all that it made."""

    def __init__(self, directory, *, depth=2, threads=1, announce=0, decode=None, **plan):
        self.plan = StepPlan(num_samples=NUM_SAMPLES, batch_size=ROWS, **plan)
        self.before_reading = lambda: None

        def new_queue(position, skip, every):
            these = [Samples(directory, decode) for _ in range(threads + 1 if depth else 1)]
            self.before_reading()
            return StepQueue(
                self.plan,
                [new_reader(samples, self.plan) for samples in these],
                position=position,
                skip=skip,
                every=every,
                depth=depth,
                announce=announce,
            )

        np.arange(41, dtype="<u2").tofile(directory / "tokens")
        layout, starts = token_layout(ROWS, WIDTH)
        places = {
            name: OutputPlace(np.dtype("<i8"), start, (WIDTH,)) for name, start in starts.items()
        }
        self.pool = Pool(layout.num_bytes, depth + 2)
        finish = (lambda batch, memory, step, decoded: decoded) if decode else None
        self.walk = Walk(self.plan, self.pool, BatchMaker(places, ROWS), new_queue, finish)

    def inputs(self):
        return [batch["input_ids"][:, 0].tolist() for batch in Iteration(self.walk)]


@pytest.mark.parametrize("depth", [0, 1, 3, 16])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("announce", [0, 2])
def test_an_epoch_comes_in_order_whatever_reads_it(tmp_path, depth, threads, announce):
    loading = Loading(tmp_path, depth=depth, threads=threads, announce=announce, rank=1, ranks=2)
    assert loading.inputs() == [[4, 12], [20, 28]]  # samples 1, 3 and 5, 7
    assert loading.walk.position == 10  # past what is dropped
    assert loading.inputs() == [[4, 12], [20, 28]]  # the next epoch, in the same order
    loading.walk.close()
    wait_for_reading_threads(0)
    assert not opened(tmp_path)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_share_is_every_second_step(tmp_path, depth):
    loading = Loading(tmp_path, depth=depth)
    loading.walk.take_every(2, skip=1)
    taken = [loading.walk.take()["input_ids"][0, 0] for _ in range(3)]
    assert taken == [8, 24, 0]  # steps 1 and 3 of five, and step 5: the first of the next epoch
    loading.walk.close()
    assert loading.walk.take()["input_ids"][0, 0] == 16  # though it begins to read anew
    loading.walk.close()


@pytest.mark.parametrize("depth", [0, 2])
def test_a_failed_step_is_raised_in_its_turn_and_tried_again(tmp_path, depth):
    loading = Loading(tmp_path, depth=depth)
    batches = Iteration(loading.walk)
    loading.before_reading = (tmp_path / "tokens").unlink
    with pytest.raises(OSError, match="fault CANNOT_OPEN"):
        next(batches)
    loading.before_reading = lambda: None
    np.arange(41, dtype="<u2").tofile(tmp_path / "tokens")
    assert loading.walk.position == 0
    assert next(batches)["input_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    loading.walk.close()


@pytest.mark.parametrize("depth", [0, 2])
def test_what_is_decoded_comes_with_its_step_and_what_that_raises_too(tmp_path, depth):
    calls = iter(range(1, 100))

    def decode(rows):
        if (call := next(calls)) == 3:
            raise KeyError("three")
        return {"rows": rows, "call": call}

    loading = Loading(tmp_path, depth=depth, decode=decode)
    for call in (1, 2):
        loading.walk.take()
        assert loading.walk.finished == [{"rows": ROWS, "call": call}]
    with pytest.raises(KeyError, match="three") as failure:
        loading.walk.take()
    assert failure.traceback[-1].name == "decode"
    assert loading.walk.position == 4
    loading.walk.take()
    assert loading.walk.position == 6
    loading.walk.close()


def test_memory_is_used_again_when_nobody_looks_at_it(tmp_path):
    loading = Loading(tmp_path, depth=2, endless=True)
    addresses = set()
    for _ in range(50):
        addresses.add(loading.walk.take()["input_ids"].__array_interface__["data"][0])
    assert len(addresses) <= 4
    loading.walk.close()


@pytest.mark.parametrize("num_bytes", [100, 1 << 16])
def test_blocks_come_back_to_the_pool_and_beyond_its_size_to_the_system(num_bytes):
    pool = Pool(num_bytes, 1)
    first, second = pool.take(), pool.take()
    addresses = [np.frombuffer(memory, np.uint8).ctypes.data for memory in (first, second)]
    del first, second
    again = [pool.take(), pool.take()]
    assert np.frombuffer(again[0], np.uint8).ctypes.data == addresses[0]


def test_memory_that_no_pool_made_is_refused():
    with pytest.raises(BufferError):
        memoryview(BatchMemory())
    with pytest.raises(ValueError, match="not taken from a pool"):
        BatchMaker({}, 1).make(BatchMemory(), 1)
    assert BatchMemory().num_tokens == 0


def test_more_rows_than_the_memory_has_are_refused():
    maker = BatchMaker({"x": OutputPlace(np.dtype("<i8"), 64, (4,))}, 2)
    with pytest.raises(TypeError, match="too small"):
        maker.make(Pool(128, 0).take(), 3)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 4])
def test_a_queue_that_is_dropped_ends_by_itself(tmp_path, depth):
    loading = Loading(tmp_path, depth=depth, threads=2)
    loading.walk.take()
    assert opened(tmp_path)
    del loading
    gc.collect()
    wait_for_reading_threads(0)
    assert not opened(tmp_path)


def test_a_cycle_through_the_walk_does_not_keep_its_threads(tmp_path):
    loading = Loading(tmp_path, depth=2)
    loading.walk.take()
    loading.cycle = loading  # new_queue holds it, and so does the walk
    del loading
    gc.collect()
    wait_for_reading_threads(0)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_threads_that_share_a_walk_get_every_step_once(tmp_path, depth):
    loading = Loading(tmp_path, depth=depth, threads=2)
    got = []
    for _ in range(50):
        iterations = [Iteration(loading.walk) for _ in range(4)]

        def take(iteration):
            got.extend(batch["input_ids"][0, 0].item() for batch in iteration)

        threads = [threading.Thread(target=take, args=(each,)) for each in iterations]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == [0, 8, 16, 24, 32]
        got.clear()
    loading.walk.close()


def test_closing_under_a_thread_that_iterates_loses_nothing(tmp_path):
    loading = Loading(tmp_path, depth=2, threads=2, endless=True)
    is_over = threading.Event()

    def close_again_and_again():
        while not is_over.is_set():
            loading.walk.close()
            os.sched_yield()

    closer = threading.Thread(target=close_again_and_again)
    closer.start()
    taken = [loading.walk.take()["input_ids"][0, 0].item() for _ in range(500)]
    is_over.set()
    closer.join()
    assert taken == [0, 8, 16, 24, 32] * 100
    loading.walk.close()
    wait_for_reading_threads(0)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_jump_under_a_thread_that_iterates_is_not_undone(tmp_path, depth):
    loading = Loading(tmp_path, depth=depth, endless=True)
    is_over = threading.Event()

    def take():
        while not is_over.is_set():
            loading.walk.take()

    taker = threading.Thread(target=take)
    taker.start()
    for jump in range(1, 300):
        loading.walk.jump_to(jump * 1_000_000)
        assert jump * 1_000_000 <= loading.walk.position < (jump + 1) * 1_000_000
    is_over.set()
    taker.join()
    assert loading.walk.position >= jump * 1_000_000
    loading.walk.close()


def test_sizes_that_cannot_be_are_refused(tmp_path):
    plan = StepPlan(num_samples=NUM_SAMPLES, batch_size=ROWS)
    reader = new_reader(Samples(tmp_path), plan)
    good = SIZES
    for name, value in (("position", -1), ("every", 0), ("depth", -1), ("announce", -1)):
        with pytest.raises(ValueError, match="must be >= 0"):
            StepQueue(plan, [reader, reader], **{**good, name: value})
    for readers in ([], [reader]):
        with pytest.raises(ValueError, match="needs a reader"):
            StepQueue(plan, readers, **good)
    with pytest.raises(TypeError):
        StepQueue(plan, [reader, None], **good)
    with pytest.raises(ValueError, match="room for fewer"):
        new_reader(Samples(tmp_path), StepPlan(num_samples=NUM_SAMPLES, batch_size=ROWS + 1))
    with pytest.raises(ValueError, match="differ in their number of samples"):
        order = ShuffleState(OrderKind.SEQUENTIAL, 11, 0, 1, 1)
        StepReader(plan, order, announcer_of(samples := Samples(tmp_path)), samples)
    with pytest.raises(ValueError, match="belongs to a different reader"):
        order = ShuffleState(OrderKind.SEQUENTIAL, NUM_SAMPLES, 0, 1, 1)
        StepReader(plan, order, announcer_of(Samples(tmp_path)), Samples(tmp_path))


def test_a_queue_is_started_once(tmp_path):
    loading = Loading(tmp_path)
    loading.walk.take()
    plan = loading.plan
    queue = StepQueue(plan, [new_reader(Samples(tmp_path), plan) for _ in range(2)], **SIZES)
    queue.start(loading.pool)
    with pytest.raises(ValueError, match="already been started"):
        queue.start(loading.pool)
    queue.close()
    with pytest.raises(ValueError, match="already been started"):
        queue.start(loading.pool)
    loading.walk.close()


def test_memory_and_readers_of_others_are_refused(tmp_path):
    loading = Loading(tmp_path)
    plan, other = loading.plan, StepPlan(num_samples=NUM_SAMPLES, batch_size=ROWS)
    with pytest.raises(ValueError, match="belongs to a different plan"):
        StepQueue(other, [new_reader(Samples(tmp_path), plan) for _ in range(2)], **SIZES)
    queue = StepQueue(plan, [new_reader(Samples(tmp_path), plan) for _ in range(2)], **SIZES)
    with pytest.raises(ValueError, match="smaller than a batch"):
        queue.start(Pool(64, 1))
    with pytest.raises(TypeError):
        queue.start(None)
    with pytest.raises(MemoryError):
        Pool(64, 1, lambda num_bytes: Nowhere()).take()


class Nowhere:
    def data_ptr(self):
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 2])
def test_the_collector_may_free_a_walk_in_a_cycle(tmp_path, depth):
    for _ in range(10):
        loading = Loading(tmp_path, depth=depth)
        loading.walk.take()
        loading.self = [loading, Iteration(loading.walk)]
    del loading
    gc.collect()
    wait_for_reading_threads(0)
    assert not opened(tmp_path)


@pytest.mark.parametrize("use", ["close", "take"])
def test_a_decoder_that_uses_its_own_loader_is_an_error_and_no_hang(tmp_path, use):
    loading = Loading(tmp_path, depth=2, decode=lambda rows: getattr(loading.walk, use)())
    with pytest.raises(RuntimeError, match="must not use the loader"):
        loading.walk.take()
    loading.walk.close()
    wait_for_reading_threads(0)


def test_a_decoder_that_reads_on_by_itself_leaves_no_step_half_read(tmp_path):
    inner = []

    def decode(rows):
        if len(inner) < 3:
            inner.append(None)
            inner.append(loading.walk.take()["input_ids"][0, 0].item())
        return {}

    loading = Loading(tmp_path, depth=0, decode=decode)
    outer = [loading.walk.take()["input_ids"][0, 0].item() for _ in range(3)]
    taken = sorted(outer + [each for each in inner if each is not None])
    assert taken == sorted(([0, 8, 16, 24, 32] * 2)[: len(taken)])  # no step twice, none left out
    loading.walk.close()
