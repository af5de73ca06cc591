"""Walking zstd headers, on frames written by hand after RFC 8878."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.text.sources.zstd_frames import FrameFault, FrameWalker

pytestmark = pytest.mark.kernels

PLAIN, REPEATED, COMPRESSED, RESERVED = range(4)


def block(kind, size, *, is_last=True):
    """A block whose content is zeros; a repeated one stores a single byte."""
    header = (size << 3 | kind << 1 | is_last).to_bytes(3, "little")
    return header + bytes(1 if kind == REPEATED else size)


def frame(*blocks, stated=None, flags=0):
    """A frame without a window, which states its size in four bytes; or with one, which does not.

    Blocks are last by default.
    """
    if stated is None:
        return b"\x28\xb5\x2f\xfd" + bytes([flags]) + b"\0" + b"".join(blocks)
    size = stated.to_bytes(4, "little")
    return b"\x28\xb5\x2f\xfd" + bytes([0xA0 | flags]) + size + b"".join(blocks)


def skippable(size, kind=0):
    return bytes([0x50 | kind]) + b"\x2a\x4d\x18" + size.to_bytes(4, "little") + bytes(size)


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Writes a file and returns all its runs, and the fault that ended the walk."""
    path = tmp_path_factory.mktemp("frames") / "a.zst"

    def walk(content, target_bytes=0, size_bytes=None):
        path.write_bytes(content)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size = len(content) if size_bytes is None else size_bytes
            walker = FrameWalker(descriptor, size, target_bytes, 3)
            found = []
            while runs := walker.next_runs():
                found += runs
            return found, walker.fault
        finally:
            os.close(descriptor)

    return walk


FINE = (FrameFault.FINE, 0, 0)


def test_each_frame_is_a_run_where_no_text_is_wanted_together(walk):
    one, two = frame(block(PLAIN, 10), stated=10), frame(block(PLAIN, 20), stated=20)
    ends = [len(one), len(one) + len(two)]
    assert walk(one + two) == ([(0, ends[0], 10), (ends[0], ends[1], 20)], FINE)


def test_frames_are_joined_up_to_about_the_target(walk):
    frames = frame(block(PLAIN, 10), stated=10) * 7
    size = len(frames) // 7
    runs, _ = walk(frames, target_bytes=30)
    assert runs == [(0, 3 * size, 30), (3 * size, 6 * size, 30), (6 * size, 7 * size, 10)]


def test_text_is_estimated_where_it_is_not_stated(walk):
    parts = [block(PLAIN, 10, is_last=False), block(REPEATED, 500, is_last=False)]
    content = frame(*parts, block(COMPRESSED, 7))
    assert walk(content) == ([(0, len(content), 10 + 500 + 3 * 7)], FINE)


def test_no_frame_counts_more_text_than_its_blocks_can_hold(walk):
    stated = frame(block(PLAIN, 1), stated=(1 << 32) - 1)
    estimated = frame(block(REPEATED, (1 << 21) - 1))
    for content in (stated, estimated):
        assert walk(content) == ([(0, len(content), 1 << 17)], FINE)


def test_sizes_are_stated_in_one_two_four_or_eight_bytes(walk):
    magic, content = b"\x28\xb5\x2f\xfd", block(PLAIN, 40)
    for flags, size, text_bytes in [
        (0x20, b"\x28", 40),
        (0x60, b"\x28\0", 40 + 256),
        (0xA0, b"\x28\0\0\0", 40),
        (0xE0, b"\x28\0\0\0\0\0\0\0", 40),
        (0xE0, b"\xff" * 8, 1 << 17),
    ]:
        whole = magic + bytes([flags]) + size + content
        assert walk(whole) == ([(0, len(whole), text_bytes)], FINE)


def test_dictionaries_and_checksums_are_part_of_the_header(walk):
    for dictionary, size in enumerate([0, 1, 2, 4]):
        head = b"\x28\xb5\x2f\xfd" + bytes([0x20 | 0x04 | dictionary]) + bytes(size) + b"\x05"
        whole = head + block(PLAIN, 5) + b"\1\2\3\4"
        assert walk(whole) == ([(0, len(whole), 5)], FINE)


def test_frames_without_text_go_with_the_one_before(walk):
    full, empty = frame(block(PLAIN, 9), stated=9), frame(block(PLAIN, 0), stated=0)
    content = skippable(3) + full + empty + skippable(600, kind=15) + full
    assert walk(content) == (
        [(0, len(content) - len(full), 9), (len(content) - len(full), len(content), 9)],
        FINE,
    )
    assert walk(skippable(5) + empty) == ([], FINE)
    assert walk(b"") == ([], FINE)


@pytest.mark.parametrize("num_frames", [255, 256, 257, 513])
def test_more_runs_than_one_call_returns(walk, num_frames):
    one = frame(block(PLAIN, 1), stated=1)
    size = len(one)
    runs = [(k * size, (k + 1) * size, 1) for k in range(num_frames)]
    assert walk(one * num_frames) == (runs, FINE)


def test_faults_say_where_and_what(walk):
    good = frame(block(PLAIN, 4), stated=4)
    at = len(good)
    assert walk(good + b"\1\2\3\4")[1] == (FrameFault.NOT_A_FRAME, at, 0x04030201)
    assert walk(frame(block(PLAIN, 4), stated=4, flags=8))[1] == (FrameFault.RESERVED_BIT, 4, 0)
    assert walk(good + frame(block(RESERVED, 4)))[1] == (FrameFault.RESERVED_BLOCK, at + 6, 0)
    endless = good + frame(block(PLAIN, 4, is_last=False))
    assert walk(endless)[1] == (FrameFault.CUT_OFF, len(endless), 0)
    assert walk(good[:-1])[1] == (FrameFault.TOO_LONG, 0, at)
    assert walk(good + b"\x28\xb5")[1] == (FrameFault.CUT_OFF, at, 0)
    assert walk(skippable(9)[:-1])[1] == (FrameFault.TOO_LONG, 0, 17)


def test_a_read_that_fails_is_a_fault_with_its_errno():
    walker = FrameWalker(-1, 100, 0, 3)
    assert walker.next_runs() == []
    assert walker.fault == (FrameFault.CANNOT_READ, 0, 9)  # EBADF


def test_sizes_are_checked():
    for sizes in [(-1, 0, 3), (0, -1, 3), (0, 0, 0), (0, 0, 1 << 20)]:
        with pytest.raises(ValueError, match="sizes must not be negative"):
            FrameWalker(0, *sizes)


frames = st.one_of(
    st.integers(0, 3000).map(skippable),
    st.builds(
        lambda sizes, stated: frame(
            *(block(PLAIN, size, is_last=False) for size in sizes),
            block(PLAIN, 0),
            stated=sum(sizes) if stated else None,
        ),
        st.lists(st.integers(0, 3000), max_size=4),
        st.booleans(),
    ),
)


@pytest.mark.slow
@given(st.lists(frames, max_size=20), st.integers(0, 5000))
def test_runs_cover_whole_frames_in_order(walk, parts, target_bytes):
    ends, end = {0}, 0
    for part in parts:
        end += len(part)
        ends.add(end)
    runs, fault = walk(b"".join(parts), target_bytes)
    assert fault == FINE
    at = 0
    for start, stop, text_bytes in runs:
        assert start == at
        assert stop in ends
        assert text_bytes > 0
        at = stop
    assert not runs or at == end


@pytest.mark.slow
@given(st.binary(max_size=80), st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255))))
def test_any_bytes_end_in_runs_inside_the_file_or_a_fault(walk, tail, changes):
    content = bytearray((skippable(30) + frame(block(PLAIN, 50), stated=50)) * 4 + tail)
    for at, byte in changes:
        content[at % len(content)] = byte
    runs, _ = walk(bytes(content))
    assert all(0 <= start < stop <= len(content) for start, stop, _ in runs)
