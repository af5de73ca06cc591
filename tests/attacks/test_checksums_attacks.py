"""Hostile checksum files: every claim is checked before use, and no path leads elsewhere."""

import json
import os
import tracemalloc

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError
from millstream.formats.checksums import read_companion
from millstream.verifying import find_problems

HEAD = {
    "format": "millstream-checksums",
    "version": 1,
    "block_bytes": 4096,
    "files": {"00000.stream": {"bytes": 5000, "xxh3": "0" * 16}},
}
ENTRY = HEAD["files"]["00000.stream"]


def companion(head=HEAD, *, num_blocks=2, line=None):
    """A companion with a right checksum of its own, whatever it says."""
    text = json.dumps(head).encode() if line is None else line
    content = text + b"\n" + bytes(4 * num_blocks)
    return content + xxhash.xxh3_64_digest(content)


def with_file(name="00000.stream", **changes):
    return companion({**HEAD, "files": {name: {**ENTRY, **changes}}})


ATTACKS = {
    "empty": b"",
    "a newline": b"\n",
    "no line": b"x" * 5000,
    "no JSON": companion(line=b"{"),
    "not utf-8": companion(line=b'{"format": "\xff"}'),
    "very deep": companion(line=b"[" * 100_000),
    "a huge number": companion(line=b"9" * 100_000),
    "a list": companion([]),
    "null": companion(None),
    "another format": companion({**HEAD, "format": "millstream-stream"}),
    "another version": companion({**HEAD, "version": 2}),
    "version true": companion({**HEAD, "version": True}),
    "no version": companion({k: v for k, v in HEAD.items() if k != "version"}),
    "blocks of nothing": companion({**HEAD, "block_bytes": 0}),
    "negative blocks": companion({**HEAD, "block_bytes": -4096}),
    "other blocks": companion({**HEAD, "block_bytes": 8192}),
    "blocks as a float": companion({**HEAD, "block_bytes": 4096.0}),
    "no files": companion({**HEAD, "files": {}}, num_blocks=0),
    "files as a list": companion({**HEAD, "files": ["00000.stream"]}),
    "a file as a list": companion({**HEAD, "files": {"00000.stream": []}}),
    "a path": with_file("../00000.stream"),
    "an absolute path": with_file("/etc/passwd"),
    "this directory": with_file("."),
    "no name": with_file(""),
    "a NUL in a name": with_file("a\0b"),
    "a lone surrogate": with_file("\ud800"),
    "a negative size": with_file(bytes=-1),
    "a huge size": with_file(bytes=1 << 61),
    "a larger size": with_file(bytes=1 << 200),
    "a size as text": with_file(bytes="5000"),
    "a size as a float": with_file(bytes=5000.0),
    "a true size": with_file(bytes=True),
    "a size of other blocks": with_file(bytes=4096),
    "no checksum": with_file(xxh3=None),
    "a short checksum": with_file(xxh3="0" * 15),
    "a checksum in capitals": with_file(xxh3="A" * 16),
    "one block less": companion(num_blocks=1),
    "one block more": companion(num_blocks=3),
    "cut": companion()[:-1],
    "longer": companion() + b"\0",
    "a wrong checksum of its own": companion()[:-1] + b"\0",
}


@pytest.fixture
def path(tmp_path):
    with millstream.Writer(tmp_path / "data", vocab_size=100) as writer:
        writer.extend(np.arange(2500) % 100, [2000, 500])
    return tmp_path / "data"


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_companion_that_cannot_be_right_is_refused_and_named(path, attack):
    file = path / "00000.checksums"
    file.write_bytes(ATTACKS[attack])
    with pytest.raises(FormatError) as caught:
        read_companion(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert len(str(caught.value)) < 500
    (problem,) = find_problems(millstream.open(path))
    assert problem.startswith(f"{file}: ")
    assert problem.endswith("run millstream verify --add-checksums to make a new one")


def test_the_template_of_these_attacks_is_a_right_companion(tmp_path):
    (tmp_path / "x.checksums").write_bytes(companion())
    assert read_companion(tmp_path / "x.checksums")["00000.stream"].blocks.tolist() == [0, 0]


def test_a_forged_companion_is_told_from_the_files_by_their_checksums(path):
    """Its own checksum is right, and its sizes are; the manifest decides who is wrong."""
    (path / "00000.checksums").write_bytes(companion())
    (problem,) = find_problems(millstream.open(path))
    assert "00000.checksums: does not match 00000.stream" in problem


@pytest.mark.parametrize("kind", ["directory", "dangling link", "pipe", "device"])
def test_something_else_in_the_place_of_a_companion_is_a_problem_and_no_wait(path, kind):
    file = path / "00000.checksums"
    file.unlink()
    if kind == "directory":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero" if kind == "device" else path / "nowhere")
    (problem,) = find_problems(millstream.open(path))
    assert problem.startswith(f"{file}: ")


def test_a_huge_file_in_the_place_of_a_companion_is_not_read(path):
    file = path / "00000.checksums"
    file.write_bytes(companion())
    os.truncate(file, 1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="1,099,511,627,776 bytes"):
            read_companion(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_files_that_a_companion_lists_are_not_followed_out_of_the_directory(path, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (path / "other.checksums").write_bytes(with_file("../secret"))
    (problem,) = find_problems(millstream.open(path))
    assert "not a plain file name" in problem
    assert "expected" not in problem


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_flipped_bit_of_a_companion_is_found(tmp_path_factory, place, bit):
    content = bytearray(companion())
    content[place % len(content)] ^= 1 << bit
    file = tmp_path_factory.getbasetemp() / "flipped.checksums"
    file.write_bytes(content)
    with pytest.raises(FormatError, match=r"flipped\.checksums"):
        read_companion(file)
