"""Hostile LLMBATCH headers: none crashes, hangs, allocates or reads past a batch."""

import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.compat.zerobatch import BatchFileReader, BatchNativeLoader
from millstream.errors import FormatError
from millstream.formats.llmbatch import Header, parse_header
from tests.helpers.memory_limit import limit_memory

FIELDS = struct.Struct("<8sIIIQIII")
U32 = st.one_of(st.integers(0, 40), st.integers(0, (1 << 32) - 1), st.just((1 << 32) - 1))
U64 = st.one_of(st.integers(0, 40), st.integers(0, (1 << 64) - 1), st.just((1 << 64) - 1))


@pytest.fixture(scope="module")
def path():
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory, "a.batch")


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(batch_size=U32, seq_len=U32, num_batches=U64, size_bytes=U64)
@example(1 << 31, 1 << 31, 1, 4096)  # 2^64 bytes, 0 in 64 bits
@example(1 << 31, 1 << 31, 4, 4096)
@example(1, 1024, 1 << 52, 4096)  # so are all batches
@example(1, 1024, (1 << 52) + 1, 8192)
@example((1 << 32) - 1, (1 << 32) - 1, (1 << 64) - 1, 4096)
def test_a_header_is_believed_only_if_its_numbers_make_the_size(
    batch_size, seq_len, num_batches, size_bytes
):
    head = FIELDS.pack(b"LLMBATCH", 1, batch_size, seq_len, num_batches, 0, 7, 9).ljust(4096, b"\0")
    pages = -(-batch_size * seq_len * 4 // 4096)
    fits = size_bytes == 4096 * (1 + num_batches * pages) and batch_size * seq_len * num_batches
    if not fits:
        with pytest.raises(FormatError, match=r"^x: "):
            parse_header(head, size_bytes, "x")
    else:
        assert parse_header(head, size_bytes, "x").num_batches == num_batches


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(batch_size=U32, seq_len=U32, num_batches=U64, pages=st.integers(0, 12))
@example(1 << 31, 1 << 31, 4, 1)
@example(4, 6, 3, 3)
def test_a_file_with_any_header_is_refused_or_read_exactly(
    path, batch_size, seq_len, num_batches, pages
):
    head = FIELDS.pack(b"LLMBATCH", 1, batch_size, seq_len, num_batches, 0, 7, 9).ljust(4096, b"\0")
    path.write_bytes(head + np.arange(1024 * pages, dtype="<u4").tobytes())
    try:
        reader = BatchFileReader(path)
    except FormatError:
        return
    assert reader.num_batches * reader.padded_batch_bytes == 4096 * pages
    for i in range(reader.num_batches):
        start = i * reader.padded_batch_bytes // 4
        expected = np.arange(start, start + batch_size * seq_len).reshape(batch_size, seq_len)
        np.testing.assert_array_equal(reader.read_batch(i), expected)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=80), keep=st.integers(0, 16_384), at=st.integers(0, 44))
def test_damaged_and_cut_files_are_refused_or_have_the_right_shape(path, content, keep, at):
    whole = bytearray(Header(4, 6, 3, 7, 12).pack() + bytes(3 * 4096))
    whole[at : at + len(content)] = content
    path.write_bytes(whole[:keep])
    try:
        loader = BatchNativeLoader(path)
    except FormatError:
        return
    assert sum(batch.numel() for batch in loader) * 4 <= keep - 4096


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200))
def test_random_bytes_are_no_file(path, content):
    path.write_bytes(content)
    with pytest.raises(FormatError):
        BatchFileReader(path)


@pytest.mark.process
def test_a_huge_promise_takes_no_memory(path):
    path.write_bytes(Header((1 << 32) - 1, (1 << 32) - 1, (1 << 64) - 1, 0, 0).pack())
    script = (
        "import sys\n"
        "from millstream.compat.zerobatch import BatchFileReader\n"
        f"{limit_memory(8 << 30)}"
        "try:\n"
        "    BatchFileReader(sys.argv[1])\n"
        "except ValueError as error:\n"
        "    print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("FormatError", "")


@pytest.mark.process
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.batch")
    script = (
        "import sys\n"
        "from millstream.compat.zerobatch import BatchFileReader\n"
        "try:\n"
        "    BatchFileReader(sys.argv[1])\n"
        "except ValueError as error:\n"
        "    print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.batch")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("FormatError", "")
