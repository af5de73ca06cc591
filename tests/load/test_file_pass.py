"""`load.file_pass` and `load.announcing`: argument checks, and the bytes that a pass reads."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.batches.batch_reader import BatchReader, ReaderMemory
from millstream.batches.view_state import ViewKind
from millstream.formats.shard import Shard, StoredFile
from millstream.load.announcing import Announcer
from millstream.load.file_pass import FilePass
from millstream.order.shuffling import OrderKind, ShuffleState
from millstream.read.files import FILE_SPAN, FileKind
from millstream.read.local_reader import LocalReader
from tests.helpers.kernel_inputs import token_layout, view_state, write_files

pytestmark = pytest.mark.kernels


def spans(*rows):
    return np.array([(0, *row) for row in rows], FILE_SPAN)


@pytest.fixture
def parts(tmp_path):
    """An order and a reader of ten windows in two shards."""
    tokens = np.arange(41, dtype="<u2")
    files = write_files(tmp_path, [tokens[:20], tokens[20:]])
    layout, _ = token_layout(2, 4)
    view = view_state(ViewKind.WINDOWS, num_samples=10, num_records=41, width=4, is_plain=True)
    reader = BatchReader(
        view, layout, (files, None, None, None, None), None, ReaderMemory(1, 1 << 11)
    )
    return SimpleNamespace(order=ShuffleState(OrderKind.SEQUENTIAL, 10, 0, 1, 1), reader=reader)


@pytest.mark.parametrize("bad", [(FileKind.RECORDS, 0, 9, 8), (5, 0, 0, 8), (-1, 0, 0, 8)])
def test_files_of_no_kind_or_size_are_refused(bad):
    with pytest.raises(ValueError, match="unknown kind"):
        FilePass(spans(bad))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 0, 0, 40), (0, 2, 0, 42)], "not over the files"),
        ([(0, 0, 0, 40), (FileKind.FIELD_APART, 0, 0, 42)], "not over the files"),
        ([(0, 1, 0, 42), (0, 0, 0, 40)], "come first"),
    ],
)
def test_a_pass_over_other_files_than_those_of_the_view_is_refused(parts, rows, message):
    with pytest.raises(ValueError, match=message):
        Announcer(parts.order, parts.reader, 2, FilePass(spans(*rows)))


def test_an_order_of_other_samples_and_steps_without_rows_are_refused(parts):
    with pytest.raises(ValueError, match="differ in their number of samples"):
        Announcer(ShuffleState(OrderKind.SEQUENTIAL, 11, 0, 1, 1), parts.reader, 2, None)
    with pytest.raises(ValueError, match="max_rows is 0"):
        Announcer(parts.order, parts.reader, 0, None)


@given(
    num_records=st.integers(0, 50),
    first_byte=st.integers(0, 100),
    block_items=st.integers(0, 12),
    gap=st.integers(0, 30),
)
def test_a_span_holds_every_item_of_its_shard(num_records, first_byte, block_items, gap):
    item_bytes = 4
    block_bytes = block_items * item_bytes + gap if block_items else 0
    places = [
        first_byte
        + (k // block_items * block_bytes + k % block_items * item_bytes if block_items else k * 4)
        for k in range(num_records)
    ]
    size = max([first_byte, *(place + item_bytes for place in places)])
    file = StoredFile(
        size, "", first_byte=first_byte, block_items=block_items, block_bytes=block_bytes
    )
    shard = Shard(Path(), "0", num_records, 0, 0, {".stream": file})
    reader = LocalReader([shard], item_bytes)

    (span,) = reader.file_spans([FileKind.RECORDS]).tolist()
    assert span == (0, FileKind.RECORDS, 0, first_byte, size)
