"""ZeroBatch's records: what is written is read, by any index, in batches of any size."""

import os
import pickle
import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.compat import zerobatch
from millstream.compat.zerobatch import (
    ChunkFileReader,
    ChunkNativeLoader,
    batch_loader,
    batch_writer,
    chunk_loader,
    write_batch_file,
    write_chunk_file,
)
from millstream.errors import DatasetExistsError, FormatError, UsageError

torch = pytest.importorskip("torch")


@pytest.fixture
def hundred(tmp_path):
    """100 records of seven tokens; record k starts with 7 * k."""
    write_chunk_file(tmp_path / "a.chnk", np.arange(700).reshape(100, 7))
    return tmp_path / "a.chnk"


def first_tokens(batches):
    return [token // 7 for batch in batches for token in batch[:, 0].tolist()]


# Names


def test_the_modules_of_zerobatch_can_be_imported_by_their_names(tmp_path):
    tokens = np.arange(70, dtype=np.uint32).reshape(10, 7)
    assert batch_writer.write_batch_file is zerobatch.write_batch_file
    assert batch_writer.write_batch_dataset is zerobatch.write_batch_dataset
    batch_writer.write_batch_file(tmp_path / "a.batch", tokens, batch_size=2, seq_len=7, seed=1)
    reader = batch_loader.BatchFileReader(tmp_path / "a.batch")
    assert batch_loader.BatchNativeLoader is zerobatch.BatchNativeLoader
    # ZeroBatch's own read_batch, as it is published.
    offset = batch_loader.HEADER_SIZE + 1 * reader.padded_batch_bytes
    end = offset + reader.batch_size * reader.seq_len * 4
    found = np.frombuffer(reader.mm[offset:end], dtype=np.uint32)
    assert np.array_equal(found.reshape(2, 7), reader.read_batch(1))
    assert (zerobatch.HEADER_SIZE, chunk_loader.HEADER_SIZE) == (4096, 32)
    reader.close()
    with pytest.raises(UsageError, match="this reader is closed"):
        _ = reader.mm


# Writing and reading

records = st.lists(st.lists(st.integers(0, 65_535), max_size=9), max_size=12)


@settings(max_examples=40, deadline=None)
@given(records, st.sampled_from(["uint32", "uint16"]))
def test_what_is_written_is_read(tmp_path_factory, stored, dtype):
    path = tmp_path_factory.mktemp("chunks") / "a.chnk"
    assert write_chunk_file(path, iter(stored), dtype) == len(stored)
    with ChunkFileReader(path) as reader:
        assert (reader.num_records, len(reader)) == (len(stored), len(stored))
        assert (reader.num_tokens, reader.dtype) == (sum(map(len, stored)), np.dtype(dtype))
        assert [reader.read_record(k).tolist() for k in range(len(stored))] == stored
        assert [reader.read_record_torch(k).tolist() for k in range(-len(stored), 0)] == stored
    if any(stored):
        data = millstream.open(path)
        assert [data.document(k).tolist() for k in range(len(stored))] == stored


def test_a_file_is_laid_out_as_documented_and_has_checksums(tmp_path):
    write_chunk_file(tmp_path / "a.chnk", [[1, 2, 3], [], [1 << 31]])
    head = struct.pack("<8sIIQQ", b"LLMCHNK\0", 1, 0, 3, 4)
    table = struct.pack("<4Q", 0, 3, 3, 4)
    tokens = struct.pack("<4I", 1, 2, 3, 1 << 31)
    assert (tmp_path / "a.chnk").read_bytes() == head + table + tokens
    assert sorted(os.listdir(tmp_path)) == ["a.chnk", "a.chnk.checksums"]
    assert millstream.verify(tmp_path / "a.chnk").problems == ()


def test_records_are_views_and_writing_to_them_never_reaches_the_file(hundred):
    before = hundred.read_bytes()
    reader = ChunkFileReader(hundred)
    record = reader.read_record(3)
    assert np.shares_memory(record, reader.read_record(3))
    torch.from_numpy(record.view(np.int32)).zero_()
    assert hundred.read_bytes() == before
    assert bytes(reader.mm[:8]) == b"LLMCHNK\0"
    reader.close()
    assert record.tolist() == [0] * 7
    with pytest.raises(UsageError, match="this reader is closed"):
        reader.read_record(0)


def test_an_index_outside_of_the_file_and_a_reader_elsewhere(hundred):
    reader = pickle.loads(pickle.dumps(ChunkFileReader(hundred)))
    for index in (100, -101, 1 << 70):
        with pytest.raises(IndexError, match=f"record {index} does not exist; there are 100"):
            reader.read_record(index)
    with pytest.raises(TypeError):
        reader.read_record(1.0)


@pytest.mark.parametrize(
    ("stored", "dtype", "reason"),
    [
        ([[1], [2, -1]], "uint32", "record 1: "),
        ([[1 << 32]], "uint32", "record 0: "),
        ([[70_000]], "uint16", "record 0: "),
        ([[1.5]], "uint32", "record 0: "),
        ([[[1, 2]]], "uint32", "record 0: "),
        ([[1]], "int64", "dtype is int64; LLMCHNK stores uint32 or uint16"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_leaves_nothing(tmp_path, stored, dtype, reason):
    with pytest.raises(UsageError, match=reason):
        write_chunk_file(tmp_path / "sub" / "a.chnk", stored, dtype)
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_not_replaced(hundred):
    before = hundred.read_bytes()
    with pytest.raises(DatasetExistsError, match="exists already"):
        write_chunk_file(hundred, [[1]])
    assert hundred.read_bytes() == before


def test_damaged_files_are_refused(hundred):
    content = bytearray(hundred.read_bytes())
    content[32 + 8 * 5 : 32 + 8 * 6] = (1 << 60).to_bytes(8, "little")
    hundred.write_bytes(content)
    reader = ChunkFileReader(hundred)
    for record in (4, 5):
        with pytest.raises(FormatError, match=f"record {record} is tokens .* the file is damaged"):
            reader.read_record(record)
    with pytest.raises(UsageError, match="records differ in length"):
        ChunkNativeLoader(hundred)
    for size in (0, 8, 31, 100, len(content) - 1):
        hundred.write_bytes(content[:size])
        with pytest.raises(FormatError, match=r"a\.chnk: "):
            ChunkFileReader(hundred)


# The loader


@pytest.mark.parametrize("batch_size", [1, 7, 32, 100])
@pytest.mark.parametrize("drop_last", [True, False])
def test_an_epoch_has_every_record_once_in_batches_of_any_size(hundred, batch_size, drop_last):
    loader = ChunkNativeLoader(hundred, batch_size, drop_last=drop_last)
    batches = list(loader)
    assert len(batches) == len(loader)
    assert all(batch.dtype == torch.int64 for batch in batches)
    assert all(batch.shape == (batch_size, 7) for batch in batches[:-1])
    found = first_tokens(batches)
    assert len(found) == (100 // batch_size * batch_size if drop_last else 100)
    assert len(set(found)) == len(found)
    expected = np.arange(700).reshape(100, 7)
    assert torch.cat(batches).tolist() == expected[found].tolist()


def test_the_order_depends_on_seed_and_epoch_alone_and_not_on_the_batch_size(hundred):
    orders = {}
    for seed in (42, 43):
        loader = ChunkNativeLoader(hundred, 10, seed=seed)
        for epoch in range(2):
            loader.set_epoch(epoch)
            orders[seed, epoch] = first_tokens(loader)
            loader.batch_size = 25
            assert first_tokens(loader) == orders[seed, epoch]
            loader.batch_size = 10
    assert len({tuple(order) for order in orders.values()}) == 4
    # Records are shuffled on their own: neighbours in the file are rarely neighbours.
    order = orders[42, 0]
    assert sum(after - before == 1 for before, after in pairwise(order)) < 10
    again = pickle.loads(pickle.dumps(ChunkNativeLoader(hundred, 10, seed=43, epoch=1)))
    assert first_tokens(again) == orders[43, 1]


def test_the_order_of_a_seed_never_changes(hundred):
    assert first_tokens(ChunkNativeLoader(hundred, 4))[:8] == [26, 92, 80, 65, 60, 5, 35, 62]


def test_an_epoch_set_in_the_middle_is_for_the_next_iteration(hundred):
    loader = ChunkNativeLoader(hundred, 10)
    first = first_tokens(loader)
    iterator = iter(loader)
    seen = [next(iterator)]
    loader.set_epoch(1)
    assert first_tokens([*seen, *iterator]) == first
    assert first_tokens(loader) != first


def test_without_shuffling_records_come_as_they_are_stored(hundred):
    assert first_tokens(ChunkNativeLoader(hundred, 10, shuffle=False)) == list(range(100))


def test_records_of_different_lengths_are_refused_with_another_way(tmp_path):
    write_chunk_file(tmp_path / "a.chnk", [[1, 2], [3], [4, 5, 6]])
    with pytest.raises(UsageError, match=r"record 1 is not 2 long.*documents\(seq_len\)"):
        ChunkNativeLoader(tmp_path / "a.chnk")
    write_chunk_file(tmp_path / "b.chnk", [])
    with pytest.raises(UsageError, match="has no tokens"):
        ChunkNativeLoader(tmp_path / "b.chnk")


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"seed": -1}, {"epoch": -1}])
def test_arguments_that_cannot_work_are_refused(hundred, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        ChunkNativeLoader(hundred, **options)


def test_the_records_of_a_batch_file_can_be_stored_one_by_one(tmp_path):
    tokens = np.arange(70, dtype=np.uint32).reshape(10, 7)
    write_batch_file(tmp_path / "a.batch", tokens, 2, 7, 1)
    reader = zerobatch.BatchFileReader(tmp_path / "a.batch")
    rows = [row for k in range(len(reader)) for row in reader.read_batch(k)]
    assert write_chunk_file(tmp_path / "a.chnk", rows) == 10
    found = first_tokens(ChunkNativeLoader(tmp_path / "a.chnk", batch_size=5))
    assert sorted(found) == list(range(10))
