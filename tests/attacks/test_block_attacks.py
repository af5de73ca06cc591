"""Hostile zstd files: their headers are followed without unpacking anything.

Whatever they say, a file is read as it would be as a whole, or refused by name, soon and in little
memory.
"""

import itertools
import os
import struct

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.errors import FormatError, MillstreamError, MissingDataError
from millstream.text.sources import Slice, Source
from millstream.text.sources import blocks as blocks_module
from tests.helpers.text_sources import frame, skippable, texts_of

TEXTS = [f"document {number}, é\U0001d11e" for number in range(200)]
LINES = "".join(f"{text}\n" for text in TEXTS).encode()
EXPECTED = [text.encode() for text in TEXTS]
MAGIC = struct.pack("<I", 0xFD2FB528)
PARTS = [
    frame(LINES[:700]),
    skippable(b"123"),
    frame(LINES[700:705], is_streamed=True),
    frame(b""),
    frame(LINES[705:3000], is_streamed=True),
    frame(LINES[3000:]),
]
WHOLE = b"".join(PARTS)
STARTS = list(itertools.accumulate(map(len, PARTS), initial=0))


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where a file is to be written that is cut at all its frames."""
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 1)
    return tmp_path / "a.txt.zst"


def block(size, kind=0, *, is_last=True):
    return (size << 3 | kind << 1 | is_last).to_bytes(3, "little")


def test_the_file_that_is_attacked_is_fine(path):
    path.write_bytes(WHOLE)
    source = Source(path)
    assert [each.start for each in source.blocks()] == [STARTS[k] for k in (0, 2, 4, 5)]
    assert texts_of(source, source.blocks()) == EXPECTED


def test_a_file_that_is_cut_off_inside_a_frame_is_refused_before_it_is_read(path):
    for size in {*range(1, len(WHOLE), 7), *STARTS[1:]}:
        path.write_bytes(WHOLE[:size])
        if size in STARTS:
            source = Source(path)
            found = texts_of(source, source.blocks())
            assert found[:-1] == EXPECTED[: len(found) - 1]
            assert EXPECTED[len(found) - 1].startswith(found[-1])
        else:
            with pytest.raises(FormatError, match=r"a\.txt\.zst: (damaged|cannot be decompressed)"):
                Source(path).blocks()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"garbage", "at byte 0 of 7, 0x62726167"),
        (frame(b"x\n") + b"garbage", "at byte 11 of 18, 0x62726167"),
        (frame(b"x\n") + b"\0", "at byte 11 of 12, the header is incomplete"),
        (struct.pack("<I", 0xFD2FB527) + bytes(40), "0xfd2fb527"),
        (struct.pack("<I", 0x184D2A60) + bytes(40), "0x184d2a60"),
        (MAGIC + b"\x08" + bytes(40), "at byte 4 of 45, a reserved bit is set"),
        (MAGIC + b"\x20\x01" + block(1, kind=3) + b"x", "at byte 6 of 10, a block has the reserv"),
        (MAGIC + b"\x20\x01" + block(2) + b"x", "at byte 0 of 10, a frame of 11 bytes begins"),
        (
            MAGIC + b"\x20\x01" + block(1, is_last=False) + b"x",
            "at byte 10 of 10, the header is incomplete",
        ),
        (MAGIC + b"\x24\x01" + block(1) + b"x", "a frame of 14 bytes begins"),
        (MAGIC + b"\xe3", "the header is incomplete"),
        (MAGIC + b"\x20\x01" + block((1 << 21) - 1) + b"x", "a frame of 2,097,160 bytes begins"),
        (skippable(b"")[:4] + b"\xff" * 4, "at byte 0 of 8, a frame of 4,294,967,303 bytes begins"),
        (skippable(b"")[:6], "at byte 4 of 6, the header is incomplete"),
    ],
)
def test_headers_that_lead_nowhere_are_refused_by_name_and_place(path, content, message):
    path.write_bytes(content)
    with pytest.raises(FormatError, match=f"damaged, truncated or not zstd: .*{message}"):
        Source(path).blocks()
    with pytest.raises(FormatError, match="damaged"):  # nor could it be read
        list(Source(path).read(Source(path).slices(1)[0]))


@pytest.mark.parametrize(
    "header",
    [
        b"\xe0" + b"\xff" * 8,  # a text of 2^64 - 1 bytes
        b"\xc0\xff" + struct.pack("<Q", 1 << 62),  # and a window of 3.75 TB
        b"\x00\xff",  # a window of 3.75 TB
        b"\x23\xff\xff\xff\xff\x02",  # a dictionary that nobody has
    ],
)
def test_headers_that_promise_too_much_are_believed_by_nobody(path, header):
    content = MAGIC + header + block(2) + b"x\n"
    path.write_bytes(frame(b"a\n") + content)
    source = Source(path)
    first, second = source.blocks()
    assert second.size_bytes <= 1 << 17
    for piece in (first, second):  # the first ends with the line that begins with the second
        with pytest.raises(FormatError, match=r"a\.txt\.zst: (damaged|cannot be decompressed)"):
            texts_of(source, [piece])


def read_or_refused(source, pieces):
    """All documents, or None; an error that is not ours or does not name the file is a failure."""
    try:
        return [text for piece in pieces() for text in texts_of(source, [piece])]
    except MillstreamError as error:
        message = str(error)
    assert source.files[0] in message
    return None


@pytest.mark.slow
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(near=st.sampled_from(STARTS), at=st.integers(0, 30), value=st.binary(min_size=1, max_size=3))
def test_changed_headers_give_the_documents_of_the_whole_file_or_none(path, near, at, value):
    start = (near + at) % len(WHOLE)
    path.write_bytes(WHOLE[:start] + value + WHOLE[start + len(value) :])
    source = Source(path, bad_rows="skip")
    found = read_or_refused(source, source.blocks)
    assert found == read_or_refused(source, lambda: source.slices(1))


@pytest.mark.slow
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    parts=st.lists(
        st.one_of(
            st.sampled_from([MAGIC, MAGIC + b"\x20\x01", skippable(b""), *PARTS[1:3]]),
            st.binary(max_size=12),
            st.builds(block, st.integers(0, 9), st.integers(0, 3), is_last=st.booleans()),
        ),
        min_size=1,
        max_size=9,
    )
)
def test_any_bytes_are_read_like_the_whole_file_or_refused_by_name(path, parts):
    path.write_bytes(b"".join(parts))
    source = Source(path, bad_rows="skip")
    found = read_or_refused(source, source.blocks)
    if found is not None and source.blocks():
        assert found == read_or_refused(source, lambda: source.slices(1))


def test_millions_of_frames_and_blocks_without_text_are_few_blocks(path, monkeypatch):
    monkeypatch.undo()
    nothing = MAGIC + b"\x20\x00" + block(0, is_last=False) * 1_000_000 + block(0)
    path.write_bytes(frame(b"a\n") * 200_000 + nothing + skippable(b"") * 200_000 + frame(b"b"))
    source = Source(path)
    (only,) = source.blocks()
    assert only.size_bytes == 400_001
    assert len(texts_of(source, [only])) == 200_001


def test_slices_that_no_source_has_made_are_refused_or_empty(path):
    path.write_bytes(WHOLE)
    source, size = Source(path), len(WHOLE)
    for start, stop in [
        (1, size), (0, 1), (STARTS[4] + 1, size), (size, size), (size + 9, size + 99), (size, 0),
        (STARTS[2], STARTS[1]), (-5, size), (-5, -9), (1 << 62, 1 << 63), (STARTS[1], STARTS[2]),
    ]:  # fmt: skip
        piece = Slice(files=source.files, start=start, stop=stop, size_bytes=1)
        found = read_or_refused(source, lambda piece=piece: [piece])
        assert found is None or set(found) <= set(EXPECTED)


@pytest.mark.parametrize("change", ["grows", "shrinks", "touched", "vanishes"])
def test_a_file_that_changes_before_its_blocks_are_found_is_refused(path, change):
    path.write_bytes(WHOLE)
    source = Source(path)
    if change == "vanishes":
        path.unlink()
    elif change == "touched":
        os.utime(path, ns=(1, 1))
    else:
        path.write_bytes(WHOLE * 2 if change == "grows" else WHOLE[: STARTS[-2]])
    expected = MissingDataError if change == "vanishes" else FormatError
    words = "missing" if change == "vanishes" else "changed since it was listed"
    with pytest.raises(expected, match=f"a.txt.zst: {words}"):
        source.blocks()


def test_a_line_over_many_frames_is_read_once(path):
    long = b"x" * 5_000
    content = b"a\n" + long + b"\nb\n" + long
    frames = [pa.compress(content[k : k + 100], "zstd") for k in range(0, len(content), 100)]
    path.write_bytes(b"".join(frames))
    source = Source(path)
    found = [texts_of(source, [each], batch_bytes=64) for each in source.blocks()]
    assert list(itertools.chain.from_iterable(found)) == [b"a", long, b"b", long]
    assert sum(not texts for texts in found) > 90
