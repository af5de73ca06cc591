"""The border of the kernels that read objects: what they trust is checked before."""

import numpy as np
import pytest

from millstream.batches.batch_reader import BatchReader, ReaderMemory
from millstream.batches.layout import BatchLayout
from millstream.batches.object_table import ObjectTable
from millstream.batches.view_state import ViewKind
from millstream.formats.shard import OBJECT_FIELDS
from millstream.metadata.span_groups import SpanTable
from millstream.read.files import FaultCode
from tests.helpers.kernel_inputs import open_files, view_state

pytestmark = pytest.mark.kernels

PIECES = [(0, 3, 0), (3, 0, 1), (3, 5, 2)]


@pytest.fixture
def content(tmp_path):
    (tmp_path / "bytes").write_bytes(b"abcdefgh")
    return tmp_path / "bytes"


def new_reader(content, *, item_bytes=1, rows=4, table_rows=4, spans=None, objects=True, **view):
    files = open_files([content], [8 // item_bytes], item_bytes)
    options = {"whole_documents": True, "num_samples": 3, "pieces": PIECES} | view
    state = view_state(ViewKind.ROWS, num_records=8, width=1, **options)
    layout = BatchLayout(OBJECT_FIELDS, rows, 1, ()).for_kernels()
    table = ObjectTable(table_rows, np.array([0, 3])) if objects else None
    return BatchReader(
        state, layout, (files, None, None, None, None), spans, ReaderMemory(1, 1 << 12), table
    )


def listed(reader, samples):
    memory = np.zeros(1 << 10, np.uint8)
    return reader.read(np.array(samples), memory)


def test_documents_are_listed_then_read(content):
    reader = new_reader(content)
    assert listed(reader, [2, 1, 0, 2])
    entries = reader.objects.entries
    assert entries["document"].tolist() == [2, 1, 0, 2]
    assert entries["where"].tolist() == [0, 64, 64, 128]
    assert reader.objects.total_bytes == 192
    memory = np.zeros(192, np.uint8)
    assert reader.read_objects(memory)
    assert memory[:5].tobytes() + memory[64:67].tobytes() == b"defghabc"
    assert memory[128:133].tobytes() == b"defgh"
    assert not memory[5:64].any()
    reader.close()


def test_memory_that_is_too_small_is_refused(content):
    reader = new_reader(content)
    assert listed(reader, [0, 2])
    with pytest.raises(ValueError, match="too small for the objects"):
        reader.read_objects(np.zeros(127, np.uint8))
    assert listed(reader, [1])
    with pytest.raises(ValueError, match="too small for the objects"):
        reader.read_objects(np.zeros(0, np.uint8))


@pytest.mark.parametrize("piece", [(0, 9, 0), (8, 1, 0), (-1, 1, 0), (0, -1, 0), (1 << 62, 2, 0)])
def test_a_piece_outside_of_the_bytes_leaves_a_fault_and_nothing_to_read(content, piece):
    reader = new_reader(content, pieces=[PIECES[0], piece, PIECES[2]])
    assert listed(reader, [0, 2])
    assert not listed(reader, [0, 1])
    assert reader.fault.code == FaultCode.WRONG_ROWS
    memory = np.zeros(256, np.uint8)
    assert reader.read_objects(memory)  # of the batch that failed, none
    assert not memory.any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"table_rows": 3},
        {"item_bytes": 2, "num_samples": 0, "pieces": []},
        {"objects": False},
        {"whole_documents": False},
        {"row_first": [0, 1, 2, 3]},
        {"spans": SpanTable(1, 1)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_does_not_belong_together_is_refused(content, wrong):
    with pytest.raises(ValueError, match=r"objects|spans|records"):
        new_reader(content, **wrong)


def test_a_table_of_nothing_is_refused():
    with pytest.raises(ValueError, match="first document"):
        ObjectTable(1, np.empty(0, np.int64))
    with pytest.raises(ValueError, match="first document"):
        ObjectTable(-1, np.zeros(1, np.int64))


def test_a_reader_of_records_has_no_objects_to_read(content):
    reader = new_reader(content, objects=False, whole_documents=False)
    with pytest.raises(ValueError, match="does not have objects"):
        reader.read_objects(np.zeros(9, np.uint8))
