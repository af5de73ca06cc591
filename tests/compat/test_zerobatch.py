"""ZeroBatch's reader and loader: exact values, safe lifetimes, files never written."""

import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from millstream.compat.zerobatch import (
    BatchFileReader,
    BatchNativeLoader,
    write_batch_dataset,
    write_batch_file,
)
from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.formats.llmbatch import Header
from tests.helpers.waiting import wait_until

torch = pytest.importorskip("torch")

SHAPES = [(4, 6), (3, 1025), (2, 2048), (1, 1), (32, 512)]


@pytest.fixture(scope="module")
def directory():
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


def make(path, num_batches, batch_size=4, seq_len=6, first=0):
    """A file whose tokens are all different, up to 2^32 - 1, by the documented layout."""
    header = Header(batch_size, seq_len, num_batches, 0, num_batches * batch_size)
    tokens = np.arange(num_batches * batch_size * seq_len, dtype=np.uint32) + np.uint32(first)
    batches = tokens.reshape(num_batches, batch_size, seq_len)
    batches[:, -1, -1] |= np.uint32(1 << 31)
    padding = bytes(header.padded_batch_bytes - header.batch_bytes)
    path.write_bytes(header.pack() + b"".join(batch.tobytes() + padding for batch in batches))
    return batches


def first_tokens(loader):
    return [int(batch[0, 0]) for batch in loader]


# The reader


@pytest.mark.parametrize(("batch_size", "seq_len"), SHAPES)
def test_batches_are_what_the_file_holds(directory, batch_size, seq_len):
    expected = make(directory / "a.batch", 5, batch_size, seq_len)
    with BatchFileReader(directory / "a.batch") as reader:
        assert (reader.num_batches, len(reader)) == (5, 5)
        assert (reader.batch_size, reader.seq_len) == (batch_size, seq_len)
        assert reader.padded_batch_bytes % 4096 == 0
        for i in (0, 4, 2, -1, -5, np.int64(3)):
            array, tensor = reader.read_batch(i), reader.read_batch_torch(i)
            assert (array.dtype, array.shape) == (np.uint32, (batch_size, seq_len))
            assert tensor.dtype == torch.int64
            np.testing.assert_array_equal(array, expected[i])
            np.testing.assert_array_equal(tensor.numpy(), expected[i].astype(np.int64))


def test_reading_does_not_copy(directory):
    make(directory / "a.batch", 3)
    reader = BatchFileReader(directory / "a.batch")
    assert np.shares_memory(reader.read_batch(1), reader.read_batch(1))
    assert not np.shares_memory(reader.read_batch(0), reader.read_batch(1))


def test_torch_takes_a_view_without_a_warning_and_writing_never_reaches_the_file(directory):
    make(directory / "a.batch", 3)
    before = (directory / "a.batch").read_bytes()
    reader = BatchFileReader(directory / "a.batch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view = torch.from_numpy(reader.read_batch(1))
    view.zero_()
    assert reader.read_batch(1).any() == np.False_
    assert (directory / "a.batch").read_bytes() == before
    assert BatchFileReader(directory / "a.batch").read_batch(1).any()


def test_a_tensor_is_the_callers_own(directory):
    expected = make(directory / "a.batch", 3)
    reader = BatchFileReader(directory / "a.batch")
    kept = [reader.read_batch_torch(i % 3) for i in range(30)]
    kept[0].zero_()
    for i, tensor in enumerate(kept[1:], 1):
        np.testing.assert_array_equal(tensor.numpy(), expected[i % 3])


def test_arrays_outlive_their_reader(directory):
    expected = make(directory / "a.batch", 3)
    reader = BatchFileReader(directory / "a.batch")
    kept = reader.read_batch(2)[1:, 2]
    reader.close()
    reader.close()
    for read in (reader.read_batch, reader.read_batch_torch):
        with pytest.raises(UsageError, match="this reader is closed"):
            read(0)
    del reader
    gc.collect()
    (directory / "a.batch").unlink()
    np.testing.assert_array_equal(kept, expected[2][1:, 2])


def test_closing_during_a_read_of_another_thread_is_safe(directory):
    # The thread has begun, and either reads or is told that it is late.
    expected = make(directory / "big.batch", 2, 64, 8192)
    num_read = 0
    with ThreadPoolExecutor(1) as executor:
        for _ in range(30):
            reader = BatchFileReader(directory / "big.batch")
            future = executor.submit(reader.read_batch_torch, 1)
            wait_until(lambda future=future: future.running() or future.done())
            reader.close()
            with contextlib.suppress(UsageError):
                np.testing.assert_array_equal(future.result().numpy(), expected[1])
                num_read += 1
    assert num_read


@pytest.mark.parametrize("index", [3, -4, 1 << 70, -(1 << 70)])
def test_an_index_outside_of_the_file_is_named(directory, index):
    make(directory / "a.batch", 3)
    reader = BatchFileReader(directory / "a.batch")
    for read in (reader.read_batch, reader.read_batch_torch):
        with pytest.raises(IndexError, match=f"a.batch: batch {index} does not exist; there are 3"):
            read(index)


@pytest.mark.parametrize("index", [1.0, slice(0, 2), (0, 1), None])
def test_only_integers_are_indices(directory, index):
    make(directory / "a.batch", 3)
    reader = BatchFileReader(directory / "a.batch")
    with pytest.raises(TypeError):
        reader.read_batch(index)


def test_readers_and_loaders_can_be_sent_to_other_processes(directory, monkeypatch):
    expected = make(directory / "a.batch", 9)
    monkeypatch.chdir(directory)
    reader = BatchFileReader("a.batch")
    loader = BatchNativeLoader("a.batch", block_size=2, seed=5, epoch=3)
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(reader))
    np.testing.assert_array_equal(again.read_batch(2), expected[2])
    copy = pickle.loads(pickle.dumps(loader))
    assert first_tokens(copy) == first_tokens(loader)


def _send_sum(reader, loader, pipe):
    pipe.send((int(reader.read_batch_torch(1).sum()), first_tokens(loader)))


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_reads_on(directory):
    expected = make(directory / "a.batch", 9)
    reader, loader = (
        BatchFileReader(directory / "a.batch"),
        BatchNativeLoader(directory / "a.batch"),
    )
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_send_sum, args=(reader, loader, theirs))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == (int(expected[1].astype(np.int64).sum()), first_tokens(loader))
    child.join()


def test_a_missing_file_and_a_directory_are_named(directory):
    with pytest.raises(MissingDataError, match=r"none\.batch: missing"):
        BatchFileReader(directory / "none.batch")
    with pytest.raises(FormatError, match="is not a regular file"):
        BatchFileReader(directory)


def test_a_file_larger_than_memory_can_be_mapped(tmp_path):
    # 256 GiB of nothing: a private map of it is refused unless it reserves no memory.
    header = Header(32, 512, 1 << 22, 0, 0)
    path = tmp_path / "sparse.batch"
    path.write_bytes(header.pack())
    try:
        os.truncate(path, header.size_bytes)
    except OSError:
        pytest.skip("no sparse files of this size here")
    reader = BatchFileReader(path)
    assert not reader.read_batch(-1).any()


# The loader


@pytest.fixture
def forty(tmp_path):
    make(tmp_path / "a.batch", 40)
    return tmp_path / "a.batch"


@pytest.mark.parametrize("block_size", [1, 7, 39, 40, 1000])
@pytest.mark.parametrize("epoch", [0, 1, 12_345])
def test_an_epoch_has_every_batch_once_and_blocks_in_one_piece(forty, block_size, epoch):
    loader = BatchNativeLoader(forty, block_size=block_size, epoch=epoch)
    batches = [token // 24 for token in first_tokens(loader)]
    assert len(loader) == 40
    assert sorted(batches) == list(range(40))
    for before, after in itertools.pairwise(batches):
        assert after % block_size == 0 or after == before + 1


def test_every_epoch_and_seed_has_an_order_of_its_own(forty):
    orders = {}
    for seed in (42, 43):
        loader = BatchNativeLoader(forty, block_size=2, seed=seed)
        for epoch in range(2):
            loader.set_epoch(epoch)
            orders[seed, epoch] = tuple(first_tokens(loader))
            assert orders[seed, epoch] == tuple(first_tokens(loader))
    assert len(set(orders.values())) == 4, "with seed XOR epoch, (42, 1) is (43, 0)"


def test_the_order_of_a_seed_never_changes(forty):
    loader = BatchNativeLoader(forty, block_size=10, epoch=1)
    assert [token // 240 for token in first_tokens(loader)][::10] == [1, 3, 2, 0]


def test_without_shuffling_batches_come_as_they_are_stored(forty):
    loader = BatchNativeLoader(forty, shuffle=False, epoch=3)
    assert first_tokens(loader) == list(range(0, 40 * 24, 24))


def test_an_epoch_set_in_the_middle_is_for_the_next_iteration(forty):
    loader = BatchNativeLoader(forty, block_size=1)
    first = first_tokens(loader)
    iterator = iter(loader)
    seen = [int(next(iterator)[0, 0])]
    loader.set_epoch(1)
    assert seen + first_tokens(iterator) == first
    assert first_tokens(loader) != first


def test_batches_that_are_kept_stay_what_they_are(forty):
    loader = BatchNativeLoader(forty, shuffle=False)
    kept = list(loader)
    assert [int(batch[0, 0]) for batch in kept] == list(range(0, 40 * 24, 24))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 300])
@pytest.mark.parametrize(
    "keep",
    [
        lambda batch: batch[-1:],
        lambda batch: batch.numpy()[-1:],
        lambda batch: np.asarray(batch.T).T[-1:],
        lambda batch: torch.utils.dlpack.to_dlpack(batch[-1:]),
        lambda batch: batch.untyped_storage(),
    ],
    ids=["view", "array", "array of a view", "capsule", "storage"],
)
def test_whatever_keeps_a_part_of_a_batch_keeps_it_as_it_is(tmp_path, batch_size, keep):
    # Small batches are read many at once, and the largest of these two at a time.
    stored = make(tmp_path / "x.batch", 100, batch_size, 1025)
    kept = [
        keep(batch) if number % 3 else None
        for number, batch in enumerate(BatchNativeLoader(tmp_path / "x.batch", shuffle=False))
    ]
    for number, part in enumerate(kept):
        if part is None:
            continue
        if isinstance(part, torch.UntypedStorage):
            part = torch.tensor([], dtype=torch.int64).set_(part)[-1025:].view(1, -1)
        elif not isinstance(part, torch.Tensor | np.ndarray):
            part = torch.utils.dlpack.from_dlpack(part)
        assert part.tolist() == stored[number, -1:].tolist()


def test_memory_that_is_dropped_is_used_again(forty):
    loader = BatchNativeLoader(forty)
    assert len({batch.data_ptr() for batch in loader}) < len(loader)


def test_several_files_are_one_dataset(tmp_path):
    sizes = [3, 1, 6]
    for number, size in enumerate(sizes):
        make(tmp_path / f"{number}.batch", size, first=1000 * number)
    paths = sorted(tmp_path.iterdir())
    expected = [1000 * n + 24 * i for n, size in enumerate(sizes) for i in range(size)]
    for given in (tmp_path, str(tmp_path), paths, [str(path) for path in paths]):
        assert first_tokens(BatchNativeLoader(given, shuffle=False)) == expected
    assert first_tokens(BatchNativeLoader(paths[::-1], shuffle=False))[0] == 2000
    shuffled = first_tokens(BatchNativeLoader(tmp_path, block_size=4))
    assert sorted(shuffled) == expected


def test_a_written_directory_is_read_by_its_list(tmp_path):
    records = np.arange(5 * 23).reshape(23, 5)
    write_batch_file(tmp_path / "one.batch", records, 2, 5, 7)
    many = tmp_path / "many"
    write_batch_dataset(many, iter(records), 23, 2, 5, 7, batches_per_file=4)
    expected = first_tokens(BatchNativeLoader(tmp_path / "one.batch", shuffle=False))
    assert first_tokens(BatchNativeLoader(many, shuffle=False)) == expected
    (many / "00003.batch").write_bytes(b"not listed, so not there")
    assert first_tokens(BatchNativeLoader(many, shuffle=False)) == expected
    os.truncate(many / "00001.batch", 100)
    with pytest.raises(FormatError, match=r"00001\.batch: 100 bytes, but files\.json says 20,480"):
        BatchNativeLoader(many)
    (many / "00001.batch").unlink()
    with pytest.raises(MissingDataError, match=r"00001\.batch: missing, although it is listed"):
        BatchNativeLoader(many)


@pytest.mark.parametrize(
    "listed",
    [
        "",
        "{}",
        "[]",
        "[1]",
        "null",
        '[{"path": 1, "size": 1}]',
        '[{"path": "", "size": 1}]',
        '[{"path": "a.batch"}]',
        '[{"path": "a.batch", "size": "1"}]',
        "[" * 100_000,
    ],
)
def test_a_list_of_files_that_is_none_is_refused(tmp_path, listed):
    (tmp_path / "files.json").write_text(listed)
    with pytest.raises(FormatError, match=r"files\.json: "):
        BatchNativeLoader(tmp_path)


def test_files_that_do_not_fit_together_are_refused(tmp_path):
    make(tmp_path / "0.batch", 3, 4, 6)
    make(tmp_path / "1.batch", 3, 6, 4)
    with pytest.raises(
        FormatError, match=r"1\.batch: has batches of 6 x 4 tokens, but 0\.batch has 4"
    ):
        BatchNativeLoader(tmp_path)


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(MissingDataError, match=r"contains no \.batch file"):
        BatchNativeLoader(tmp_path)
    with pytest.raises(UsageError, match="empty list"):
        BatchNativeLoader([])
    with pytest.raises(MissingDataError, match=r"x\.batch: missing"):
        BatchNativeLoader(tmp_path / "x.batch")


@pytest.mark.parametrize(
    "options", [{"block_size": 0}, {"seed": -1}, {"epoch": -1}, {"epoch": 1 << 63}, {"seed": "a"}]
)
def test_arguments_that_cannot_work_are_refused(forty, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        BatchNativeLoader(forty, **options)


@pytest.mark.process
def test_reading_arrays_needs_no_torch(forty):
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from millstream.compat.zerobatch import BatchFileReader\n"
        "print(BatchFileReader(sys.argv[1]).read_batch(1)[0, 0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(forty)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("24", "")


def test_the_list_that_is_written_is_plain_json(tmp_path):
    write_batch_dataset(tmp_path / "a", np.zeros((4, 1), int), 4, 2, 1, 0, batches_per_file=1)
    (first, second) = json.loads((tmp_path / "a" / "files.json").read_text())
    assert set(first) == set(second) == {"path", "size", "xxh3"}
