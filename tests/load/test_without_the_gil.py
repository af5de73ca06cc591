"""Other Python threads go on while kernels compute indices, and read tokens and metadata."""

import threading
import time

import numpy as np
import pytest

import millstream
from millstream.order.order import make_order
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow


def runs_beside(call):
    """Wait until another Python thread runs in more than a tenth of a call.

    On a busy machine it may get no processor in some calls. With the GIL held, it gets none in any.
    """
    wait_until(lambda: share_of_the_call_with_ticks(call) > 10)


def share_of_the_call_with_ticks(call):
    """In how many hundredths of a call another Python thread ran.

    With the GIL held, it could run only before the call and after it.
    """
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.wait(0.0005):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
    finally:
        stop.set()
        thread.join()
    assert seconds > 0.02, "too short to tell"
    return len({int(100 * (each - start) / seconds) for each in ticks} & set(range(5, 95)))


def test_a_call_that_holds_the_gil_has_no_ticks_in_it():
    # One call of C code that never releases the GIL.
    numbers = list(range(3_000_000))
    assert share_of_the_call_with_ticks(lambda: sum(numbers * 5)) < 5


def test_positions_are_shuffled_without_the_gil():
    order, positions = make_order(True, 1 << 40, 0), np.arange(1 << 21)
    runs_beside(lambda: order.samples_at(positions))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents of 50 tokens, each with metadata."""
    path = tmp_path_factory.mktemp("data") / "data"
    tokens = np.arange(50, dtype=np.uint16)
    with millstream.Writer(path, vocab_size=60_000, metadata=bytes) as writer:
        for _ in range(5_000):
            writer.append(tokens, metadata=b"\1\0\2\0")
    return millstream.open(path)


@pytest.mark.parametrize("metadata", [None, "<u2"])
def test_rows_and_their_metadata_are_read_without_the_gil(data, metadata):
    view = data.windows(64, metadata=metadata)
    samples = np.tile(np.arange(len(view)), 32)
    runs_beside(lambda: view.read(samples))
