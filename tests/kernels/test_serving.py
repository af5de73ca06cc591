"""`load.serving`: batches on tickets, through pipes."""

import os
import struct
import threading

import numpy as np
import pytest

from penstock.load.serving import BatchServer, Outcome
from penstock.order.evaluation import OrderKind, OrderState
from penstock.read.files import FileKind
from penstock.views.batches import BatchReader, ViewKind
from tests.kernels.reading import array, token_layout, write_files
from tests.kernels.test_batches import view_state

ROWS, WIDTH = 2, 4
LAST = struct.pack("=7q", -1, 0, 0, 0, 0, 0, 0)


class Service:
    """A server over 41 tokens, ten windows of four, with pipes and memory for one batch."""

    def __init__(self, directory):
        self.files = write_files(directory, [np.arange(41, dtype="<u2")])
        layout, self.starts = token_layout(ROWS, WIDTH)
        view = view_state(
            ViewKind.WINDOWS, num_samples=10, num_records=41, width=WIDTH, is_plain=True
        )
        by_kind = (self.files, None, None, None, None)
        self.reader = BatchReader(
            view, layout, by_kind, None, max_segments=1, scratch_bytes=1 << 11
        )
        orders = [OrderState(OrderKind.SEQUENTIAL, 10, 0, 1, 1) for _ in range(2)]
        self.server = BatchServer(*orders, self.reader, ROWS)
        self.memory = np.zeros(layout.num_bytes, np.uint8)
        self.requests, self.send = os.pipe()
        self.receive, self.replies = os.pipe()

    def ticket(self, sequence, position, *, rows=ROWS, stride=1, ahead=(0, 0)):
        address = self.memory.ctypes.data
        return struct.pack("=7q", sequence, address, position, rows, stride, *ahead)

    def serve(self, *tickets, decodes=False):
        os.write(self.send, b"".join(tickets))
        return self.server.serve(self.requests, self.replies, decodes)

    def replied(self):
        return struct.unpack("=q", os.read(self.receive, 8))[0]

    @property
    def inputs(self):
        return array(self.memory, self.starts, "input_ids", ROWS, WIDTH).tolist()

    def close(self):
        self.files.close()
        for end in (self.requests, self.send, self.receive, self.replies):
            os.close(end)


@pytest.fixture
def service(tmp_path):
    service = Service(tmp_path)
    yield service
    service.close()


def test_a_ticket_is_read_and_its_number_comes_back(service):
    assert service.serve(service.ticket(7, position=3), LAST) == Outcome.ENDED
    assert service.replied() == 7
    assert service.inputs == [[12, 13, 14, 15], [16, 17, 18, 19]]


def test_rows_of_a_rank_are_a_stride_apart_and_go_into_the_next_epoch(service):
    service.serve(service.ticket(0, position=8, stride=3), LAST)
    assert service.inputs == [[32, 33, 34, 35], [4, 5, 6, 7]]


def test_announcing_what_comes_later_changes_nothing(service):
    service.serve(service.ticket(0, position=0, ahead=(6, ROWS)), LAST)
    assert service.inputs == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_batch_with_metadata_is_handed_to_the_caller(service):
    assert service.serve(service.ticket(5, 0, rows=1), decodes=True) == Outcome.UNDECODED
    assert (service.server.sequence, service.server.rows) == (5, 1)


def test_a_failed_read_is_handed_to_the_caller(service, tmp_path):
    (tmp_path / f"00.{FileKind.RECORDS.name}").unlink()
    assert service.serve(service.ticket(2, 0)) == Outcome.FAILED
    assert service.server.sequence == 2


def test_a_closed_pipe_ends_it(service):
    os.close(service.send)
    assert service.server.serve(service.requests, service.replies, False) == Outcome.ENDED
    service.send = os.dup(service.receive)


def test_stopping_ends_a_thread_that_waits(service):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(service.serve()))
    thread.start()
    service.reader.stop()
    os.write(service.send, service.ticket(0, 0))
    thread.join(10)
    assert outcomes == [Outcome.ENDED]


@pytest.mark.parametrize("bad", [{"rows": ROWS + 1}, {"rows": -1}, {"stride": 0}])
def test_a_ticket_that_would_leave_its_memory_is_refused(service, bad):
    assert service.serve(service.ticket(0, 0, **bad)) == Outcome.FAILED


def test_an_order_of_other_samples_is_refused(service):
    order = OrderState(OrderKind.SEQUENTIAL, 11, 0, 1, 1)
    with pytest.raises(ValueError, match="not one of this view"):
        BatchServer(order, order, service.reader, ROWS)
