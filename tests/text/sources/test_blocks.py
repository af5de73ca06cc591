"""Blocks: the parts of a source that are read independently."""

import itertools
import json
import os
import random
import re
import shutil
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError, UsageError
from millstream.text.sources import Columns, Source
from millstream.text.sources import blocks as blocks_module
from tests.helpers.text_sources import compress, frame, skippable, texts_of

EMPTY_FRAME = pa.compress(b"", "zstd", asbytes=True)


def test_every_row_group_with_rows_is_a_block(tmp_path):
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    for name, sizes in [("a", [3, 0, 2]), ("b", []), ("c", [0]), ("d", [1])]:
        with pq.ParquetWriter(tmp_path / f"{name}.parquet", schema, compression="zstd") as writer:
            for size in sizes:
                texts = [f"{name} {k} of {size}" for k in range(size)]
                writer.write_table(pa.table({"id": range(size), "text": texts}, schema))
    source = Source(tmp_path)
    blocks = source.blocks()
    places = [(Path(b.files[0]).name, b.start, b.stop) for b in blocks]
    assert places == [("a.parquet", 0, 1), ("a.parquet", 2, 3), ("d.parquet", 0, 1)]
    assert [len(texts_of(source, [block])) for block in blocks] == [3, 2, 1]
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    assert blocks[0].size_bytes == metadata.row_group(0).column(1).total_uncompressed_size


@pytest.mark.parametrize("kind", ["jsonl", "text"])
def test_lines_are_cut_into_blocks_of_about_4_mib(tmp_path, kind):
    texts = [f"{number:06} " + "x" * 90_000 for number in range(200)]
    lines = [json.dumps({"text": text}) if kind == "jsonl" else text for text in texts]
    (tmp_path / "a").write_text("\n".join(lines))
    source = Source(tmp_path / "a", kind=kind)
    blocks = source.blocks()
    assert [b.start for b in blocks[1:]] == [b.stop for b in blocks[:-1]]
    assert (blocks[0].start, blocks[-1].stop) == (0, (tmp_path / "a").stat().st_size)
    assert all(3 << 20 < block.size_bytes < 5 << 20 for block in blocks)
    assert texts_of(source, source.blocks()) == [text.encode() for text in texts]


def test_small_files_stay_apart_and_empty_ones_are_no_blocks(tmp_path):
    for name, text in [("a", b"one\ntwo\n"), ("b", b""), ("c", b"three")]:
        (tmp_path / f"{name}.txt").write_bytes(text)
    (tmp_path / "d.txt.gz").write_bytes(compress(b"four\nfive", ".gz"))
    (tmp_path / "e.txt.zst").write_bytes(compress(b"six\n\nseven", ".zst", cuts=[2, 4]))
    for documents, expected in [
        ("line", [[b"one", b"two"], [b"three"], [b"four", b"five"], [b"six", b"seven"]]),
        ("file", [[b"one\ntwo\n"], [b"three"], [b"four\nfive"], [b"six\n\nseven"]]),
        ("block", [[b"one\ntwo"], [b"three"], [b"four\nfive"], [b"six", b"seven"]]),
    ]:
        source = Source(tmp_path, documents=documents)
        assert [texts_of(source, [block]) for block in source.blocks()] == expected


@pytest.mark.parametrize("codec", [".gz", ".zst"])
def test_a_compressed_file_without_a_byte_is_refused_and_not_left_out(tmp_path, codec):
    (tmp_path / f"a.txt{codec}").write_bytes(b"")
    with pytest.raises(FormatError, match=rf"a\.txt{codec}: empty; "):
        Source(tmp_path).blocks()


@pytest.mark.slow
@pytest.mark.parametrize("documents", ["file", "block"])
def test_a_file_whose_documents_have_several_lines_is_one_block(tmp_path, documents):
    text = b"\n".join(b"%d" % number * 100 for number in range(100_000))
    (tmp_path / "a.txt").write_bytes(text)
    source = Source(tmp_path, documents=documents)
    (block,) = source.blocks()
    assert texts_of(source, [block]) == [text]
    assert block.size_bytes == len(text)


def test_the_last_files_are_for_validation_and_keep_all_options(tmp_path):
    for name in "dbac":
        (tmp_path / f"{name}.jsonl").write_text(f'{{"body": "{name}"}}\n')
    source = Source(tmp_path, columns=Columns(text="body"), max_document_bytes=99)
    for count, expected in [(1, (b"abc", b"d")), (3, (b"a", b"bcd"))]:
        sides = source.split_by_file(count)
        assert tuple(b"".join(texts_of(side, side.blocks())) for side in sides) == expected
        for side, again in zip(sides, source.split_by_file(num_val_files=count), strict=True):
            assert side.columns == source.columns
            assert side.max_document_bytes == 99
            assert side.fingerprint == again.fingerprint != source.fingerprint
    assert len(source.files) == 4
    for count in (4, 5):
        with pytest.raises(
            UsageError, match=f"is {count}, but the source has 4 files .* give 3 or less"
        ):
            source.split_by_file(count)
    with pytest.raises(UsageError, match="num_val_files"):
        source.split_by_file(0)


def test_what_comes_from_python_is_refused_by_all_that_reads_again():
    source = Source.from_documents(["one", "two"])
    for call in (source.blocks, source.split_by_file, lambda: source.fingerprint):
        with pytest.raises(UsageError, match=r"needs a source of files.*millstream\.repack"):
            call()


def test_a_fingerprint_stays_when_data_moves_and_changes_when_documents_may(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    for name, text in [("a", "one\ntwo"), ("b", "three")]:
        (here / f"{name}.txt").write_text(text)
    shutil.copytree(here, there)
    os.utime(there / "a.txt", ns=(1, 1))
    mine = Source(here).fingerprint
    assert Source(there).fingerprint == Source(there, bad_rows="skip").fingerprint == mine
    assert mine == "e4ed022bdc40605580508836d5c2499a"  # states that are saved refer to it
    others = [
        Source(here / "a.txt"),
        Source(here, documents="file"),
        Source(here, max_document_bytes=5),
        Source(here / "*.txt", kind="jsonl"),
        Source(here / "*.txt", kind="jsonl", columns=Columns(text="body")),
        Source(here / "*.txt", kind="jsonl", columns=Columns(metadata=("id",))),
    ]
    (there / "a.txt").rename(there / "A.txt")
    others.append(Source(there))
    (there / "A.txt").rename(there / "a.txt")
    (there / "b.txt").write_text("three\n")
    others.append(Source(there))
    found = [mine, *(source.fingerprint for source in others)]
    assert all(a != b for a, b in itertools.combinations(found, 2))


@st.composite
def handmade(draw, text):
    """A frame of plain blocks with any header that says the truth."""
    stated = draw(st.sampled_from([0, 1, 2, 3]))
    has_window, has_checksum = draw(st.booleans()), draw(st.booleans())
    if stated == 0 and len(text) > 255:
        has_window = True
    if stated == 1 and not 256 <= len(text) < 256 + 65_536:
        stated = 2
    num_dictionary_bytes = draw(st.sampled_from([0, 1, 2, 4]))  # dictionary 0 is none
    flags = stated << 6 | (not has_window) << 5 | has_checksum << 2
    content = struct.pack("<IB", 0xFD2FB528, flags | (0, 1, 2, 4).index(num_dictionary_bytes))
    content += b"\x58" * has_window + bytes(num_dictionary_bytes)
    if stated or not has_window:
        size = len(text) - 256 * (stated == 1)
        content += size.to_bytes(1 << stated, "little")
    step = draw(st.integers(1, 50))
    blocks = [text[k : k + step] for k in range(0, len(text), step)]
    for each in blocks:
        if len(set(each)) == 1:
            content += (len(each) << 3 | 1 << 1).to_bytes(3, "little") + each[:1]
        else:
            content += (len(each) << 3).to_bytes(3, "little") + each
    content += (1).to_bytes(3, "little")
    checksum = struct.pack("<I", xxhash.xxh64_intdigest(text) & 0xFFFFFFFF)
    return content + checksum * has_checksum


@st.composite
def frames_of(draw, text):
    """A text in any frames, and what may lie between them."""
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=8))
    content = b""
    for a, b in itertools.pairwise(sorted([0, *cuts, len(text)])):
        content += draw(st.sampled_from([b"", b"", EMPTY_FRAME, skippable(b"(\xb5/\xfd", 7)]))
        writer = draw(st.sampled_from(["whole", "streamed", "handmade"]))
        if writer == "handmade":
            content += draw(handmade(text[a:b]))
        else:
            content += frame(text[a:b], is_streamed=writer == "streamed")
    return content + draw(st.sampled_from([b"", EMPTY_FRAME, skippable(b"")]))


words = st.text("ab é\U0001d11e\r\ufeff", max_size=12) | st.just("x" * 280)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), lines=st.lists(words, max_size=12))
@pytest.mark.parametrize("kind", ["jsonl", "text"])
def test_frames_give_every_document_once_and_in_order(tmp_path, monkeypatch, kind, data, lines):
    if kind == "jsonl":
        lines = [json.dumps({"text": line}, ensure_ascii=False) if line else "" for line in lines]
    mark = data.draw(st.sampled_from(["", "", "\ufeff", "\ufeff\ufeff"]))
    newline, last = data.draw(st.sampled_from(["\n", "\r\n"])), data.draw(st.booleans())
    text = (mark + newline.join(lines) + newline * last).encode()
    (tmp_path / f"a.{kind}").write_bytes(text)
    (tmp_path / f"a.{kind}.zst").write_bytes(data.draw(frames_of(text)))
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", data.draw(st.sampled_from([1, 20, 60])))
    plain, packed = (Source(tmp_path / f"a.{kind}{codec}", kind=kind) for codec in ("", ".zst"))
    (whole,) = plain.slices(1 << 40)
    batch_bytes = data.draw(st.sampled_from([1, 2, 7, 1 << 20]))
    expected = texts_of(plain, [whole])
    assert texts_of(packed, packed.blocks(), batch_bytes=batch_bytes) == expected
    assert texts_of(plain, plain.blocks(), batch_bytes=batch_bytes) == expected
    blocks = packed.blocks()
    assert all(0 < block.start == other.stop for other, block in itertools.pairwise(blocks))
    assert not blocks or (blocks[0].start, blocks[-1].stop) == (0, len(packed_bytes(packed)))
    assert bool(blocks) or not text


def packed_bytes(source):
    return Path(source.files[0]).read_bytes()


@pytest.mark.slow
def test_small_frames_are_joined_to_about_4_mib_and_large_ones_stay(tmp_path):
    noise = random.Random(0).randbytes(10 << 20).hex().encode()
    for is_streamed in (False, True):
        for sizes, expected in [
            ([4 << 20] * 4, [4 << 20] * 4),
            ([1 << 20] * 16, [4 << 20] * 4),
            ([100, 9 << 20, 100, 100, 9 << 20], [100, 9 << 20, 200, 9 << 20]),
            ([100, 0, 0, 4 << 20, 0], [100 + (4 << 20)]),
            ([0, 0], []),
        ]:
            cuts = itertools.pairwise(itertools.accumulate(sizes, initial=0))
            frames = [frame(noise[a:b], is_streamed=is_streamed) for a, b in cuts]
            (tmp_path / "a.txt.zst").write_bytes(b"".join(frames))
            blocks = Source(tmp_path).blocks()
            if is_streamed:  # then it is estimated as English, which is packed better than digits
                assert len(blocks) == len(expected)
                for block, size in zip(blocks, expected, strict=True):
                    assert 1 / 2 < block.size_bytes / size < 2.1
            else:
                assert [block.size_bytes for block in blocks] == expected
                starts = [0, *itertools.accumulate(map(len, frames))]
                assert {block.start for block in blocks} <= set(starts)


@pytest.mark.parametrize("size", [1, 255, 256, 300, 65_791, 65_792, 5 << 20])
def test_a_block_has_as_many_bytes_as_its_frame_says(tmp_path, size):
    (tmp_path / "a.txt.zst").write_bytes(frame(b"x" * size))
    (block,) = Source(tmp_path).blocks()
    assert block.size_bytes == size


@pytest.mark.parametrize("num_frames", [255, 256, 257, 600])
def test_many_frames_are_as_many_blocks(tmp_path, monkeypatch, num_frames):
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 1)
    frames = [frame(b"%d\n" % number * (number % 5 + 1)) for number in range(num_frames)]
    (tmp_path / "a.txt.zst").write_bytes(b"".join(frames))
    blocks = Source(tmp_path).blocks()
    ends = list(itertools.accumulate(map(len, frames), initial=0))
    assert [(block.start, block.stop) for block in blocks] == list(itertools.pairwise(ends))
    sizes = [len(str(number)) + 1 for number in range(num_frames)]
    assert [b.size_bytes for b in blocks] == [s * (k % 5 + 1) for k, s in enumerate(sizes)]


@pytest.mark.slow
def test_what_repack_writes_is_a_block_for_every_frame(tmp_path):
    texts = [f"{number:06} " + "word " * 20_000 for number in range(200)]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    millstream.repack(tmp_path / "a.txt", tmp_path / "out", to="jsonl", workers=1)
    source = Source(tmp_path / "out" / "*.zst")
    blocks = source.blocks()
    assert len(blocks) == 5
    assert all(4 << 20 <= block.size_bytes < 5 << 20 for block in blocks[:-1])
    assert texts_of(source, source.blocks()) == [text.encode() for text in texts]


def test_a_bad_line_inside_a_run_of_frames_can_be_found(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 1)
    first, second = frame(b'{"text": "one"}\n'), frame(b'{"text": "two"}\n{"text": \n')
    for kind, rest in [("jsonl", b""), ("text", b"\xff\n")]:
        (tmp_path / "a.zst").write_bytes(first + (frame(b"\n" + rest) if rest else second))
        source = Source(tmp_path / "a.zst", kind=kind, bad_rows="skip")
        bad = []
        texts_of(source, source.blocks(), bad.append)
        (row,) = bad
        found = pa.CompressedInputStream(
            pa.BufferReader(packed_bytes(source)[len(first) :]), "zstd"
        ).read()
        where = r"line at byte (\d+) of the text unpacked from byte (\d+) on"
        place = re.fullmatch(where, row.place)
        assert int(place[2]) == len(first)
        assert found[int(place[1]) :] in (b'{"text": \n', b"\xff\n")


def test_files_that_are_read_by_threads_are_in_order_all_the_same(tmp_path, monkeypatch):
    for number in range(40):
        (tmp_path / f"{number:02}.txt.zst").write_bytes(frame(b"%02d" % number) * (number % 3 + 1))
    source = Source(tmp_path)
    alone = source.blocks()
    monkeypatch.setattr(blocks_module, "_SLOW_SECONDS", 0)
    assert list(source.blocks()) == list(alone)
    assert texts_of(source, source.blocks()) == [b"%02d" % n * (n % 3 + 1) for n in range(40)]
    (tmp_path / "33.txt.zst").write_bytes(b"garbage")
    with pytest.raises(FormatError, match=r"33\.txt\.zst: damaged"):
        Source(tmp_path).blocks()
