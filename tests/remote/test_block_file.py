"""`BlockFile` against a model, and the functions that plan and hand over bytes."""

import errno
import fcntl
import tempfile
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.errors import FormatError, ReadError
from millstream.load.step_ranges import merge_spans
from millstream.read.files import FILE_SPAN, GEOMETRY, FileKind, Files, OpenFiles, ShardFiles
from millstream.remote import block_changes
from millstream.remote.block_file import HEADER_BYTES, BlockFile
from millstream.remote.whole_blocks import WholeBlocks
from millstream.system.checksums import BLOCK_BYTES, block_checksums
from tests.helpers.waiting import wait_until

NUM_BLOCKS = 9
SIZE = BLOCK_BYTES * (NUM_BLOCKS - 1) + 100
CONTENT = np.random.default_rng(0).bytes(SIZE)
BLOCKS = st.integers(0, NUM_BLOCKS - 1)


def new_file(directory, size=SIZE, **identities):
    identities = identities or {"etag": "one"}
    return BlockFile(directory / "data", directory / "maps" / "data.blocks", size, **identities)


def fill(file, first, stop, content=CONTENT):
    file.fill(first * BLOCK_BYTES, content[first * BLOCK_BYTES : stop * BLOCK_BYTES])


def numbers_of(ranges):
    """The blocks that lie in ranges of bytes."""
    return {
        number
        for start, stop in ranges
        for number in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
    }


class BlockFileModel(RuleBasedStateMachine):
    """Two processes' views of one file: what one fills or drops, the other sees."""

    @initialize()
    def make(self):
        self.directory = Path(tempfile.mkdtemp())
        self.files = [new_file(self.directory), new_file(self.directory)]
        self.present = set()
        self.claims = []

    @rule(first=BLOCKS, count=st.integers(1, NUM_BLOCKS), which=st.integers(0, 1))
    def claim_some(self, first, count, which):
        stop = min(first + count, NUM_BLOCKS)
        claim = self.files[which].claim(first * BLOCK_BYTES, min(stop * BLOCK_BYTES, SIZE))
        found = numbers_of(claim.__enter__())
        others = set().union(*(blocks for _, blocks in self.claims))
        assert found == set(range(first, stop)) - self.present - others
        self.claims.append((claim, found))

    @rule(data=st.data())
    @precondition(lambda self: self.claims)
    def end_a_claim(self, data):
        claim, _ = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        claim.__exit__(None, None, None)

    def teardown(self):
        while self.claims:
            self.claims.pop()[0].__exit__(None, None, None)

    @rule(first=BLOCKS, count=st.integers(1, NUM_BLOCKS), which=st.integers(0, 1))
    def fill_some(self, first, count, which):
        stop = min(first + count, NUM_BLOCKS)
        fill(self.files[which], first, stop)
        self.present |= set(range(first, stop))

    @rule(first=BLOCKS, count=st.integers(1, NUM_BLOCKS), which=st.integers(0, 1))
    def drop_some(self, first, count, which):
        stop = min(first + count, NUM_BLOCKS)
        assert self.files[which].drop(first, stop)
        self.present -= set(range(first, stop))

    @rule(blocks=st.sets(BLOCKS), which=st.integers(0, 1))
    def drop_listed(self, blocks, which):
        assert self.files[which].drop_all(np.array(sorted(blocks), np.int64))
        self.present -= blocks

    @rule(which=st.integers(0, 1), stated=st.sampled_from(["", "sum"]))
    def open_again(self, which, stated):
        self.files[which] = new_file(self.directory, etag="one", stated=stated)

    @rule(which=st.integers(0, 1))
    def replace_by_another_object(self, which):
        new_file(self.directory, etag="two")
        assert not self.files[which].is_current
        with pytest.raises(ReadError, match="removed from the cache"):
            fill(self.files[which], 0, 1)
        self.files = [new_file(self.directory), new_file(self.directory)]
        self.present = set()
        self.teardown()

    @invariant()
    def all_views_agree(self):
        for file in self.files:
            assert file.present().tolist() == sorted(self.present)
            assert file.is_whole == (len(self.present) == NUM_BLOCKS)
            missing = file.missing(0, SIZE)
            assert numbers_of(missing) == set(range(NUM_BLOCKS)) - self.present
            assert all(a < b for a, b in missing)
            assert all(missing[k][1] < missing[k + 1][0] for k in range(len(missing) - 1))
            for first in range(NUM_BLOCKS):
                start = first * BLOCK_BYTES
                assert file.has(start, min(start + 10, SIZE)) == (first in self.present)
        content = (self.directory / "data").read_bytes()
        for first in self.present:
            part = slice(first * BLOCK_BYTES, (first + 1) * BLOCK_BYTES)
            assert content[part] == CONTENT[part]
        for first in set(range(NUM_BLOCKS)) - self.present:
            assert not any(content[first * BLOCK_BYTES : (first + 1) * BLOCK_BYTES])


TestBlockFile = pytest.mark.slow(BlockFileModel.TestCase)
TestBlockFile.settings = settings(max_examples=30, stateful_step_count=15)


@pytest.mark.parametrize(
    ("first", "second", "is_kept"),
    [
        ({"etag": "a"}, {"etag": "a"}, True),
        ({"etag": "a"}, {"etag": "b"}, False),
        ({"stated": "s"}, {"stated": "s", "etag": "a"}, True),
        ({"etag": "a", "stated": "s"}, {"stated": "t"}, False),
        ({"etag": "a", "stated": "s"}, {"etag": "b", "stated": "s"}, False),
        ({"etag": "a", "stated": "s"}, {"stated": "s"}, True),
        ({"etag": "a", "size": SIZE}, {"etag": "a", "size": SIZE - 1}, False),
    ],
)
def test_blocks_stay_as_long_as_no_identity_differs(tmp_path, first, second, is_kept):
    fill(new_file(tmp_path, **first), 0, 2)
    assert (new_file(tmp_path, **second).present().size > 0) == is_kept


def test_blocks_of_an_object_with_another_etag_are_not_used_when_it_is_told(tmp_path):
    fill(new_file(tmp_path, etag="a", stated="s"), 0, 3)
    again = new_file(tmp_path, stated="s")
    again.note_etag("a")
    assert again.present().size == 3
    with again.path.open("rb") as held:  # blocks of a held file cannot be dropped
        fcntl.flock(held, fcntl.LOCK_SH)
        again.note_etag("b")
        assert held.read(BLOCK_BYTES) == CONTENT[:BLOCK_BYTES]
    with pytest.raises(ReadError, match="removed from the cache"):
        fill(again, 3, 4)
    assert new_file(tmp_path, etag="b", stated="s").present().size == 0


def test_an_etag_is_not_told_to_files_that_took_the_place_of_others(tmp_path):
    stale = new_file(tmp_path, stated="s")
    fill(new_file(tmp_path, etag="b", stated="t"), 0, 3)
    stale.note_etag("a")
    assert new_file(tmp_path, etag="b", stated="t").present().size == 3


def test_a_map_that_was_removed_changes_no_file(tmp_path):
    """A new file may have the inode of the one that the map belonged to."""
    file = new_file(tmp_path)
    fill(file, 0, 3)
    with file.map_path.open("r+b") as opened:
        removed = b"/proc/self/fd/%d" % opened.fileno()
        inode = file.map_path.stat().st_ino
        file.map_path.unlink()
        error = block_changes.drop_blocks(bytes(file.path), removed, inode, 0, 3)
    assert error == errno.ESTALE
    assert file.path.read_bytes()[: 3 * BLOCK_BYTES] == CONTENT[: 3 * BLOCK_BYTES]


@pytest.mark.parametrize(("start", "size"), [(1, BLOCK_BYTES), (0, 10), (0, SIZE + 1)])
def test_parts_of_blocks_are_refused(tmp_path, start, size):
    file = new_file(tmp_path)
    with pytest.raises(ValueError, match="whole blocks"):
        file.fill(start, bytes(size))
    assert file.present().size == 0


def test_a_damaged_block_is_dropped_after_the_machine_was_started_again(tmp_path):
    fill(new_file(tmp_path), 0, 4)
    with (tmp_path / "data").open("r+b") as data:
        data.seek(2 * BLOCK_BYTES + 5)
        data.write(b"\xff\xff\xff")
    assert new_file(tmp_path).present().tolist() == [0, 1, 2, 3]
    path = tmp_path / "maps" / "data.blocks"
    content = bytearray(path.read_bytes())
    content[48:88] = b"another boot".ljust(40, b"\0")
    path.write_bytes(bytes(content))
    assert new_file(tmp_path).present().tolist() == [0, 1, 3]


def test_all_blocks_that_differ_from_the_datasets_checksums_are_dropped(tmp_path):
    file = new_file(tmp_path)
    wrong = bytearray(CONTENT)
    wrong[0] ^= 1
    wrong[5 * BLOCK_BYTES] ^= 1
    fill(file, 0, NUM_BLOCKS, bytes(wrong))
    with pytest.raises(FormatError, match="block checksums"):
        file.expect(block_checksums(CONTENT))
    assert sorted(set(range(NUM_BLOCKS)) - set(file.present().tolist())) == [0, 5]
    with pytest.raises(FormatError, match=r"bytes 0 to 4,096"):
        fill(file, 0, 1, bytes(wrong))
    fill(file, 0, 1)


@given(
    cuts=st.lists(st.integers(0, SIZE), max_size=20),
    begin=BLOCKS,
    restart=st.one_of(st.none(), st.integers(0, SIZE)),
)
def test_answers_are_stored_in_whole_blocks_however_they_are_cut(cuts, begin, restart):
    with tempfile.TemporaryDirectory() as directory:
        file, start = new_file(Path(directory)), begin * BLOCK_BYTES
        blocks = WholeBlocks(SIZE, file.fill)
        for stop in [restart, SIZE]:  # an answer that was cut off, and the whole
            if stop is None or stop < start:
                continue
            edges = [start, *sorted(cut for cut in cuts if start < cut < stop), stop]
            for one, other in pairwise(edges):
                blocks(one, CONTENT[one:other])
        assert file.present().tolist() == list(range(begin, NUM_BLOCKS))
        assert (Path(directory) / "data").read_bytes()[start:] == CONTENT[start:]


def test_a_held_file_keeps_its_blocks(tmp_path):
    file = new_file(tmp_path)
    fill(file, 0, 3)
    with (tmp_path / "data").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert not file.drop(0, 1)
        assert file.has(0, 10)
    assert file.drop(0, 1)


@pytest.mark.slow
def test_threads_that_fill_and_drop_never_show_a_hole(tmp_path):
    """A reader that finds its blocks unchanged before and after has the right bytes."""
    file, wrong, num_read, is_over = new_file(tmp_path), [], [], threading.Event()
    map_ = file._entries

    def change(seed):
        generator = np.random.default_rng(seed)
        mine = new_file(tmp_path)
        while not is_over.is_set():
            first = int(generator.integers(NUM_BLOCKS))
            stop = min(first + int(generator.integers(1, 4)), NUM_BLOCKS)
            if generator.integers(2):
                fill(mine, first, stop)
            else:
                mine.drop(first, stop)

    def read():
        with (tmp_path / "data").open("rb", buffering=0) as data:
            while not is_over.is_set():
                before = map_[:4].copy()
                data.seek(0)
                content = data.read(4 * BLOCK_BYTES)
                after = map_[:4].copy()
                if (before >> np.uint64(63)).all() and (before == after).all():
                    num_read.append(1)
                    if content != CONTENT[: 4 * BLOCK_BYTES]:
                        wrong.append(content)

    threads = [threading.Thread(target=change, args=[seed]) for seed in range(2)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    is_over.wait(1.0)
    wait_until(lambda: num_read)
    is_over.set()
    for thread in threads:
        thread.join()
    assert num_read
    assert not wrong


spans = st.lists(
    st.tuples(
        st.integers(0, 1), st.just(0), st.integers(0, 2), st.integers(0, 300), st.integers(1, 60)
    ).map(lambda each: (*each[:4], each[3] + each[4])),
    max_size=20,
)


@given(spans=spans, gap_bytes=st.integers(0, 50), gap_share=st.sampled_from([0.0, 0.1, 1.0]))
def test_merged_spans_cover_all_and_stay_apart(spans, gap_bytes, gap_share):
    table = np.array(spans, FILE_SPAN)
    merged, run_of = merge_spans(table, gap_bytes=gap_bytes, gap_share=gap_share)
    assert len(run_of) == len(table)
    for span, run in zip(table, merged[run_of], strict=True):
        assert span[["source", "kind", "shard"]] == run[["source", "kind", "shard"]]
        assert run["start"] <= span["start"] < span["stop"] <= run["stop"]
    for one, two in pairwise(merged):
        same = one[["source", "kind", "shard"]] == two[["source", "kind", "shard"]]
        assert not same or two["start"] - one["stop"] > gap_bytes
    for number, run in enumerate(merged):
        members = table[run_of == number]
        assert run["start"] == members["start"].min()
        assert run["stop"] == members["stop"].max()


def one_file(tmp_path):
    path = tmp_path / "shard"
    path.write_bytes(bytes(100))
    geometry = np.zeros(1, GEOMETRY)
    geometry["size_bytes"] = 100
    shards = ShardFiles(FileKind.RECORDS, 1, np.array([0, 100]), geometry, bytes(path) + b"\0")
    return Files(shards, OpenFiles(2), use_mmap=False)


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("ranges", "data"),
    [
        ([[0, 0, 10]], [bytes(9)]),
        ([[0, 0, 10]], []),
        ([[0, 0, 10]], [bytes(10), bytes(1)]),
        ([[0, 10, 10]], [b""]),
        ([[0, -1, 9]], [bytes(10)]),
        ([[0, 0, 10], [0, 5, 15]], [bytes(10), bytes(10)]),
        ([[1, 0, 10], [0, 20, 30]], [bytes(10), bytes(10)]),
        ([[0, 0]], [bytes(10)]),
    ],
)
def test_bytes_from_memory_must_fit_their_ranges(tmp_path, ranges, data):
    with pytest.raises(ValueError, match=r"range|expected"):
        one_file(tmp_path).use_fetched(np.array(ranges, np.int64), data)


@pytest.mark.kernels
def test_bytes_from_memory_must_be_bytes(tmp_path):
    files = one_file(tmp_path)
    with pytest.raises((TypeError, ValueError)):
        files.use_fetched(np.array([[0, 0, 10]]), [None])
    with pytest.raises(TypeError):
        files.use_fetched(np.array([[0, 0, 10]]), None)
    with pytest.raises((TypeError, ValueError)):
        files.use_fetched(None, [])


@pytest.mark.kernels
def test_changes_of_blocks_check_their_arguments(tmp_path):
    file = new_file(tmp_path)
    names = bytes(file.path), bytes(file.map_path), file.map_path.stat().st_ino
    with pytest.raises(ValueError, match="checksum for each block"):
        block_changes.fill_blocks(*names, b"", CONTENT[:BLOCK_BYTES], 0, np.zeros(2, np.uint32))
    with pytest.raises(ValueError, match="at least one block"):
        block_changes.drop_blocks(*names, 0, 0)
    with pytest.raises(ValueError, match="at least one block"):
        block_changes.drop_blocks(*names, -1, 1)
    with pytest.raises(TypeError):
        block_changes.drop_blocks(None, *names[1:], 0, 1)
    with pytest.raises(ValueError, match="number of a block"):
        block_changes.claim_blocks(0, -1, np.ones(1, np.uint8))
    assert block_changes.claim_blocks(-1, 0, np.ones(1, np.uint8)) == errno.EBADF
    assert HEADER_BYTES == BLOCK_BYTES
