"""Bare tokens in one file: nanoGPT's `.bin`, that of llm.c and modded-nanogpt, NumPy's `.npy`.

    nanoGPT              tokens, nothing else; uint16 unless `format="flat:uint32"` says otherwise
    llm.c, modded-…      256 int32: magic, version, number of tokens, zeros; then the tokens
    .npy                 NumPy's header; one dimension is a stream, two are rows

None of them stores documents: a file is one document, or `millstream.open` finds them by bos_id or
eos_id. A row of a two-dimensional `.npy` is a document. Without a header, tokens wider than uint16
are told by their upper halves, which are mostly zero.
"""

import ast
import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.formats.files import MOST, Head, check_size, num_items, read_part
from millstream.formats.shard import STREAM, TOKEN, Manifest, Shard, StoredFile

NPY_MAGIC = b"\x93NUMPY"
_LLMC_BYTES, _LLMC_FIELDS = 1024, struct.Struct("<3i")
# The magic numbers of llm.c's token files, their version, and the type of the tokens.
LLMC = {20240520: (1, "<u2"), 20240801: (7, "<u4")}
_LLMC_FAMILY = range(20240501, 20241232)
_NUM_SAMPLES, _MIN_SAMPLES, _MIN_TOKENS, _MIN_NONZERO = 1024, 8, 10, 20
_NPY_TOKEN = re.compile(r"\|[iu]1|<[iu][1248]")


def describe_flat(head: Head, dtype: str | None = None, kind: str = "flat") -> Manifest:
    """Tokens without a header; `kind` is the detected format, for messages."""
    token = np.dtype(dtype or "<u2")
    num_tokens = num_items(head.path, head.size_bytes, token)
    if dtype is None:
        _refuse_chunks_of_litdata(head)
        wider = wider_token_type(head)
        if wider is not None:
            raise FormatError(
                f"{head.path}: looks like {wider}: as uint16, most tokens would be 0; pass "
                f'format="{kind}:{wider}", or "{kind}:uint16" if the tokens are uint16'
            )
    return one_file(head, token, num_tokens, kind="flat")


def wider_token_type(head: Head) -> str | None:
    """The type of tokens wider than uint16, judged by their upper halves; otherwise None."""
    start = np.frombuffer(head.start, "<u2", len(head.start) // 8 * 4)
    if not start.size or head.size_bytes % 4 or _share_of_small(start[1::4]) < 0.97:
        return None  # the rest of the file could not change this
    count = min(head.size_bytes // 8, _NUM_SAMPLES)
    middle = (head.size_bytes // 8 - count) // 2 * 8
    sample = np.frombuffer(read_part(head.path, middle, 8 * count), "<u2")
    if middle:
        sample = np.concatenate((start, sample))  # the middle may be padding
    fours = sample.reshape(-1, 4)
    is_sign = (fours == 0) | (fours == 0xFFFF)  # as the upper half of a small number is
    # Ids of characters or bytes stay below 256: every other one may well be small by chance.
    has_large = (
        len(fours) >= _MIN_SAMPLES and np.count_nonzero(fours[:, 0] >= 256) > len(fours) / 10
    )
    is_upper = is_sign.all(axis=0)
    if has_large:  # a few may be damaged
        is_upper = np.array([_share_of_small(fours[:, column]) > 0.99 for column in range(4)])
    is_int64 = bool(is_upper[2]) and head.size_bytes % 8 == 0
    lower = ~is_sign[:, 0] if is_int64 else ~is_sign[:, ::2]
    # Small ids of two bytes look like this by chance once in a million files.
    all_are_ids = lower.size >= _MIN_TOKENS and lower.all()
    is_told = has_large or all_are_ids or np.count_nonzero(lower) >= _MIN_NONZERO
    if not (is_upper[1] and is_upper[3] and is_told):
        return None
    if is_int64:
        return "int64"
    return "int32" if (fours[:, 1::2] == 0xFFFF).any() else "uint32"


def is_big_endian(start: bytes) -> bool:
    """True for numbers of four or eight bytes whose upper halves come first."""
    halves = np.frombuffer(start, "<u2", len(start) // 4 * 2)
    return bool(not halves[::2].any() and np.count_nonzero(halves[1::2]) >= _MIN_NONZERO)


def _share_of_small(halves: NDArray[np.uint16]) -> float:
    """The share of values that are upper halves of ids up to 4 million, or of -100."""
    return np.count_nonzero(halves + np.uint16(1) <= 64) / halves.size


def is_llmc(head: Head) -> bool:
    """True if a file starts with an llm.c header."""
    return (
        head.size_bytes >= _LLMC_FIELDS.size
        and struct.unpack_from("<i", head.start)[0] in _LLMC_FAMILY
        and not any(head.start[12:_LLMC_BYTES])
    )


def describe_llmc(head: Head) -> Manifest:
    """Tokens behind 256 int32."""
    if len(head.start) < _LLMC_BYTES:
        raise FormatError(
            f"{head.path}: {head.size_bytes:,} bytes, shorter than an llm.c header of "
            f"{_LLMC_BYTES:,}; copy it again"
        )
    magic, version, num_tokens = _LLMC_FIELDS.unpack_from(head.start)
    if magic not in LLMC or LLMC[magic][0] != version:
        raise FormatError(
            f"{head.path}: magic {magic}, version {version}; llm.c token files have "
            f"{', '.join(f'{m}, version {v}' for m, (v, _) in LLMC.items())}"
        )
    if num_tokens < 0:
        raise FormatError(
            f"{head.path}: the header says {num_tokens:,} tokens; it is damaged, copy it again"
        )
    token = np.dtype(LLMC[magic][1])
    size = _LLMC_BYTES + num_tokens * token.itemsize
    check_size(head.path, head.size_bytes, size, f"a header and {num_tokens:,} tokens")
    return one_file(head, token, num_tokens, kind="llmc", first_byte=_LLMC_BYTES)


def describe_npy(head: Head) -> Manifest:
    """A NumPy array of one or two dimensions."""
    if not head.start.startswith(NPY_MAGIC):
        raise FormatError(f"{head.path}: does not start with {NPY_MAGIC!r}")
    version, length, first_byte = head.start[6:8], head.start[8:10], 10
    if version in (b"\2\0", b"\3\0"):
        length, first_byte = head.start[8:12], 12
    elif version != b"\1\0":
        raise FormatError(
            f"{head.path}: .npy version {list(version)}; this Millstream reads 1.0 to 3.0"
        )
    first_byte += int.from_bytes(length, "little")
    shape, is_fortran, dtype = _read_npy_header(head, head.start[8 + len(length) : first_byte])
    if len(shape) not in (1, 2) or not all(0 <= n <= MOST for n in shape):
        raise FormatError(
            f"{head.path}: has shape {shape!s:.60}; token arrays have one or two dimensions"
        )
    if is_fortran and len(shape) == 2 and min(shape) > 1:
        raise FormatError(
            f"{head.path}: is in Fortran order; save it again with np.ascontiguousarray(…)"
        )
    num_tokens = int(np.prod(shape, dtype=object))
    size = first_byte + num_tokens * dtype.itemsize
    check_size(head.path, head.size_bytes, size, f"a header and {num_tokens:,} tokens")
    row_records = int(shape[1]) if len(shape) == 2 else 0
    return one_file(
        head, dtype, num_tokens, kind="npy", first_byte=first_byte, row_records=row_records
    )


def _read_npy_header(head: Head, text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and type; parsed without NumPy, which some types crash."""
    try:
        header = ast.literal_eval(text.decode("latin1").strip())
        shape, is_fortran, kind = (header[key] for key in ("shape", "fortran_order", "descr"))
    except Exception as error:  # a damaged header may raise anything
        raise FormatError(f"{head.path}: not a NumPy header ({error!s:.200})") from None
    if not isinstance(kind, str) or not _NPY_TOKEN.fullmatch(kind):
        raise FormatError(
            f"{head.path}: has dtype {kind!r:.60}; tokens must be little-endian integers"
        )
    if not isinstance(shape, tuple) or not all(type(length) is int for length in shape):
        raise FormatError(f"{head.path}: {shape!r:.60} is not an array shape")
    return shape, bool(is_fortran), np.dtype(kind)


def one_file(
    head: Head,
    token: np.dtype[Any],
    num_tokens: int,
    *,
    kind: str,
    first_byte: int = 0,
    row_records: int = 0,
) -> Manifest:
    """The manifest of one token file: one document, or rows of equal length."""
    row_records = row_records or num_tokens
    shard = Shard(
        head.path.parent,
        head.path.name,
        num_tokens,
        num_tokens // row_records if row_records else 0,
        0,
        {STREAM: StoredFile(head.size_bytes, path=str(head.path), first_byte=first_byte)},
        row_records=row_records,
    )
    return Manifest(np.dtype([(TOKEN, token)]), None, {}, None, None, (shard,), kind)


def _refuse_chunks_of_litdata(head: Head) -> None:
    """Refuse litdata chunks: also `.bin`, but with a table that ends with the file's own size."""
    count, first = struct.unpack("<2I", head.start[:8].ljust(8, b"\0"))
    if first == 4 * (count + 2) <= head.size_bytes:
        end = int.from_bytes(read_part(head.path, first - 4, 4), "little")
        if end == head.size_bytes:
            raise FormatError(
                f"{head.path}: is a litdata chunk; open its directory, with its index.json, or "
                'pass format="flat:uint16" if these are bare tokens'
            )
