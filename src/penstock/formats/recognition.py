"""Recognition: what a file is that holds no tokens, and what to do with it.

Bare tokens have no header, so any file can be read as some, and gives garbage. A file is said to be
of another kind only on evidence that tokens do not give by chance: a long magic, or a short one and
a structure that fits it.
"""

import contextlib
import json
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError
from penstock.formats.files import Head, read_part

_MIN_TEXT_BYTES = 64
_NUM_SAMPLES, _MIN_SAMPLES, _MIN_TOKENS, _MIN_NONZERO = 1024, 8, 10, 20
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\f\r\x1b") | {127}
_NOT_LATIN1 = bytes({*_CONTROL, *range(128, 160)} - {0x85, *range(0x91, 0x98)})  # "…" of Windows
_LEAST_RANDOM_BITS = 7.94  # entropy of a byte, in 4,096 random ones 7.95; tokens have 7.8 at most
_OTHER_TEXT = "text in {encoding}, not tokens; convert it to UTF-8 (iconv), and tokenize that"
_IDS_IN_JSON = re.compile(rb'"(input_ids|tokens|token_ids|ids)"\s*:\s*\[\s*\d+\s*[],]')
_NUMBERS = re.compile(rb"\d+[\s,;][\d\s,;]*")
_WRITE = "read it with {with_what}, and write the tokens with penstock.Writer"


class Kind(NamedTuple):
    """A kind of file: its first bytes, what to check beside them, and what to do with it."""

    name: str
    magic: bytes
    advice: str
    fits: Callable[[Head], bool] = lambda head: True


def refuse_others(head: Head, *, is_told: bool) -> None:
    """Refuse a file of another kind where bare tokens are expected, or were said to be."""
    what = recognise(head)
    if is_told and is_arrow_stream(head):
        what = f"an Arrow stream; {_LEAVE_OUT}"
    if what is None and not is_told and is_text(head, least_bytes=8):
        what = f'{_text(head)}; if it holds tokens, say format="flat:uint16"'
    if what is None and not is_told and _is_big_endian(head.start):
        what = (
            "big-endian, it seems: read as uint16, every other token would be 0; swap the bytes "
            '(numpy.ndarray.byteswap), or say format="flat:uint16", if that is what it is'
        )
    if what is not None:
        raise FormatError(f"{head.path}: is {what}")


def recognise(head: Head) -> str | None:
    """What a file certainly is, and what to do with it; None for what may be tokens."""
    start = head.start
    for kind in _BY_FIRST_BYTE.get(start[:1], ()):
        if start.startswith(kind.magic) and kind.fits(head):
            text = _text_by_name(head.path) if kind.advice == _DECOMPRESS else ""
            return f"{kind.name} text; {text}" if text else f"{kind.name}; {kind.advice}"
    if _is_tar(head):
        return "a tar archive, as of WebDataset; unpack it, and open or tokenize its files"
    if start[8:10] in (b'{"', b"{}") and _is_safetensors(head):
        return f"a safetensors file; {_WRITE.format(with_what='safetensors')}"
    if not any(start[4:8]) and _is_tfrecord(head):
        return f"a TFRecord file; {_WRITE.format(with_what='tf.data.TFRecordDataset')}"
    if is_text(head):
        return _text(head)
    if _is_utf16(head):
        return _OTHER_TEXT.format(encoding="UTF-16")
    if _is_latin1(head.start):
        return _OTHER_TEXT.format(encoding="Latin-1 or the like")
    return None


def recognise_in(directory: Path, head: Head) -> str | None:
    """The same for a file of a directory; text is tokenized with all the text that is there."""
    what = recognise(head)
    is_corpus = what is not None and what.startswith(("JSON,", "text,"))
    if is_corpus and _text_by_name(head.path):
        return f"text, not tokens; {text_advice(directory, 'text')}"
    return what


def unknown(head: Head, formats: str) -> FormatError:
    """The error for a file whose format is not found out."""
    what = recognise(head)
    if what is not None:
        return FormatError(f"{head.path}: is {what}")
    if not head.size_bytes:
        return FormatError(f"{head.path}: is empty; write or copy it again")
    if is_text(head, least_bytes=1):
        return FormatError(f"{head.path}: is {_text(head)}")
    found = f"{head.path}: starts with {head.start[:8]!r}, which is not a known format"
    if head.size_bytes % 2 or _is_random(head.start):
        return FormatError(
            f"{found}, nor does it look like tokens of two bytes or more; if it is to be read as "
            f'bytes, say format="flat:uint8" (formats are {formats})'
        )
    token = token_type(head) or "uint16"
    formats = f"(formats are {formats})"
    return FormatError(
        f'{found}; if it holds bare tokens, say so with format="flat:{token}" {formats}'
    )


def text_advice(path: Path, kind: str, column: str = "text") -> str:
    """How text becomes tokens: the lines to write, for this file."""
    import shlex

    from penstock.text.sources.listing import kind_of

    options, arguments = "", ""
    if not path.is_dir() and kind_of(path.name) is None:
        options, arguments = f" --kind {kind}", f', kind="{kind}"'
    if column != "text":
        options += f" --text {shlex.quote(column)}"
        arguments += f", columns=penstock.Columns(text={quoted(column)})"
    source = f"penstock.Source({quoted(path)}{arguments})" if arguments else quoted(path)
    return (
        f"tokenize it (penstock tokenize {shlex.quote(str(path))}{options} --tokenizer TOKENIZER "
        f"--out DIRECTORY), or train on the text (penstock.TextLoader({source}, tokenizer, "
        "batch_size, seq_len))"
    )


def quoted(text: object) -> str:
    """A path or a name as it stands in Python code."""
    return json.dumps(str(text), ensure_ascii=False)


def token_type(head: Head) -> str | None:
    """The type of tokens that are wider than uint16, by their upper halves; None for others."""
    start = np.frombuffer(head.start, "<u2", len(head.start) // 8 * 4)
    if not start.size or head.size_bytes % 4 or _share_of_small(start[1::4]) < 0.97:
        return None  # nor would it be after the rest was read, by the shares below
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


def _is_big_endian(start: bytes) -> bool:
    """Whether these are numbers of four or eight bytes, and the upper halves come first."""
    halves = np.frombuffer(start, "<u2", len(start) // 4 * 2)
    return bool(not halves[::2].any() and np.count_nonzero(halves[1::2]) >= _MIN_NONZERO)


def _share_of_small(halves: NDArray[np.uint16]) -> float:
    """The share of numbers that are the upper halves of ids up to 4 million, or of -100."""
    return np.count_nonzero(halves + np.uint16(1) <= 64) / halves.size


def is_text(head: Head, least_bytes: int = _MIN_TEXT_BYTES) -> bool:
    """Whether a file starts with text in UTF-8: nearly half of all bytes could not stand there."""
    start = head.start
    if len(start) < least_bytes or 0 in start[:64]:
        return False
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if len(start) < head.size_bytes and error.start >= len(start) - 3:
            text = start[: error.start].decode()  # a character may be cut at the end of the sample
        else:
            return False
    return not _CONTROL & set(start) and len(set(text)) > 1


def _is_utf16(head: Head) -> bool:
    start = head.start[: len(head.start) // 2 * 2]
    if len(start) < 16 or not start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return False
    text = start.decode("utf-16", errors="replace").rstrip("\ufffd")  # one may be cut at the end
    return all(each.isprintable() or each.isspace() for each in text)


def _is_latin1(start: bytes) -> bool:
    """Whether bytes are ASCII for the most part, without one that no text has."""
    if len(start) < _MIN_TEXT_BYTES or len(start[:64].translate(None, _NOT_LATIN1)) < 64:
        return False
    num_ascii = sum(byte < 128 for byte in start)
    return len(start.translate(None, _NOT_LATIN1)) == len(start) and num_ascii > 0.8 * len(start)


def is_json_lines(start: bytes) -> bool:
    """Whether a file begins with a line that is an object of JSON, and does not end with it."""
    line, _, rest = start.lstrip(b"\xef\xbb\xbf").partition(b"\n")
    try:
        return isinstance(json.loads(line), dict) and bool(rest.strip())
    except (ValueError, RecursionError):
        return False


def _text(head: Head) -> str:
    start = head.start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        return "a Git LFS pointer, not the file itself; run git lfs pull"
    if start[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "an HTML page, perhaps an error that was saved as the file; download it again"
    if head.path.suffix.lower() == ".csv":
        return f"a table in text, not tokens; {_as_parquet(head.path, 'csv.read_csv')}"
    if start.startswith(b"{") and _IDS_IN_JSON.search(start):
        return f"JSON with token ids; {_as_parquet(head.path, 'json.read_json')}"
    if _NUMBERS.fullmatch(start):
        return (
            "numbers in text; if they are token ids, read them, and write them with "
            f"penstock.Writer; if not, {text_advice(head.path, 'text')}"
        )
    name, kind = ("JSON", "jsonl") if start[:1] in (b"{", b"[") else ("text", "text")
    return f"{name}, not tokens; {text_advice(head.path, kind)}"


def _as_parquet(path: Path, read: str) -> str:
    parquet = quoted(path.with_suffix(".parquet"))
    call = f"pyarrow.parquet.write_table(pyarrow.{read}({quoted(path)}), {parquet})"
    return f"write it as Parquet ({call}), and open or tokenize that"


def _text_by_name(path: Path) -> str:
    """What to do with a compressed file of text; "" for others."""
    from penstock.text.sources.listing import kind_of

    kind = kind_of(path.name)
    return text_advice(path, kind) if kind is not None else ""


def _is_random(start: bytes) -> bool:
    if len(start) < 4096:
        return False
    shares = np.bincount(np.frombuffer(start, np.uint8), minlength=256) / len(start)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum()) > _LEAST_RANDOM_BITS


# Structures


def is_arrow_stream(head: Head) -> bool:
    """Whether a file starts with a schema, as Arrow's streams do, which have no magic.

    Its length comes first, since Arrow 0.15 behind 0xffffffff. It is a flatbuffer: `root` points to
    a table, which points to the places of its fields: version, kind of message, header.
    """
    start = head.start
    first = 4 if start.startswith(b"\xff\xff\xff\xff") else 0
    if len(start) < first + 32:
        return False
    length, root = struct.unpack_from("<iI", start, first)
    is_inside = 28 <= length <= head.size_bytes - first - 4
    if not is_inside or length % 4 or not 4 <= root <= len(start) - first - 16:
        return False
    message = start[first + 4 :]
    places = root - struct.unpack_from("<i", message, root)[0]
    if not 4 <= places <= len(message) - 10:
        return False
    num_bytes, table_bytes, version, kind, header = struct.unpack_from("<5H", message, places)
    is_table = num_bytes in (10, 12, 14) and 12 <= table_bytes <= min(64, len(message) - root)
    if not is_table or max(version, kind, header) >= table_bytes or not kind or not header:
        return False
    return bool(message[root + kind] == 1 and message[root + version] <= 4)


def _zip_member(head: Head) -> str:
    """The name of the first file in a zip archive, or "" if this is none."""
    if len(head.start) < 30:
        return ""
    version, flags, method = struct.unpack_from("<3H", head.start, 4)
    (length,) = struct.unpack_from("<H", head.start, 26)
    name = head.start[30 : 30 + length]
    is_zip = version & 255 <= 63 and not flags & 0xC000 and method in (0, 8, 9, 12, 14, 93, 95, 99)
    return name.decode("latin1") if is_zip and len(name) == length and name.isascii() else ""


def _is_torch(head: Head) -> bool:
    return _zip_member(head).endswith(("/data.pkl", "/byteorder", "/.format_version"))


def _is_pickle(head: Head) -> bool:
    """Whether the first bytes are instructions of pickle, and not a few by chance."""
    if read_part(head.path, head.size_bytes - 1, 1) != b".":
        return False
    import pickletools

    count = 0
    with contextlib.suppress(Exception):  # whatever it makes of bytes that are none, or were cut
        for _ in pickletools.genops(head.start):
            count += 1
    is_whole = len(head.start) == head.size_bytes and count > 1
    frame = int.from_bytes(head.start[3:11], "little") if head.start[2:3] == b"\x95" else 0
    return is_whole or count >= 5 or 0 < frame <= head.size_bytes - 11


def _is_gzip(head: Head) -> bool:
    try:
        zlib.decompressobj(31).decompress(head.start, 1 << 16)
    except zlib.error:
        return False
    return True


def _is_zstd(head: Head) -> bool:
    return len(head.start) > 8 and not head.start[4] & 8


def _is_lz4(head: Head) -> bool:
    return len(head.start) > 6 and head.start[4] >> 6 == 1 and not head.start[5] & 0x8F


def _is_tar(head: Head) -> bool:
    """Whether the first 512 bytes add up to the checksum that they hold."""
    block = head.start[:512]
    if len(block) < 512 or head.size_bytes % 512:
        return False
    digits = block[148:156].strip(b" \0")
    if not digits or not digits.isdigit() or not 1 <= len(digits) <= 7:
        return False
    total = sum(block) - sum(block[148:156]) + 8 * 32
    return b"8" not in digits and b"9" not in digits and total == int(digits, 8)


def _is_safetensors(head: Head) -> bool:
    (length,) = struct.unpack_from("<Q", head.start)
    return bool(2 <= length <= head.size_bytes - 8)


def _is_tfrecord(head: Head) -> bool:
    if len(head.start) < 12:
        return False
    length, checksum = struct.unpack_from("<QI", head.start)
    is_inside = bool(0 < length <= head.size_bytes - 16)
    return is_inside and checksum == _masked_crc32c(head.start[:8])


def _masked_crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _ends_with(magic: bytes, before_end: int = 0) -> Callable[[Head], bool]:
    def fits(head: Head) -> bool:
        start = head.size_bytes - len(magic) - before_end
        return start >= 8 and read_part(head.path, start, len(magic)) == magic

    return fits


def _has(offset: int, *texts: bytes) -> Callable[[Head], bool]:
    return lambda head: head.start[offset:].startswith(texts)


_LEAVE_OUT = "open it without format"
_UNPACK = "unpack it, and open the files in it"
_DECOMPRESS = "decompress it, and open the result"
_OTHER_FILE = "name the file with the tokens instead"
_PICKLE = "load it with pickle only if you trust it, and write the tokens with penstock.Writer"
_OLD_PICKLES = (b"(lp", b"(dp", b"]q\0", b"}q\0", b"cnumpy.", b"ccopy_reg\n")  # protocols 0 and 1
_TORCH = _WRITE.format(with_what="torch.load")
_KINDS = (
    # Formats with tokens that open as what they are.
    Kind("a NumPy array", b"\x93NUMPY", _LEAVE_OUT),
    Kind("an LLMBATCH file", b"LLMBATCH", _LEAVE_OUT),
    Kind("an LLMCHNK file", b"LLMCHNK\0", _LEAVE_OUT),
    Kind(
        "a Megatron-LM index", b"MMIDIDX\0\0", "copy the .bin of that name beside it, and open that"
    ),
    Kind("a Parquet file", b"PAR1", _LEAVE_OUT, _ends_with(b"PAR1")),
    Kind("an Arrow file", b"ARROW1\0\0", _LEAVE_OUT),
    # Archives and compressed files.
    Kind("a PyTorch checkpoint", b"PK\3\4", _TORCH, _is_torch),
    Kind(
        "a NumPy archive (.npz)",
        b"PK\3\4",
        "save its array with numpy.save, and open that",
        lambda head: _zip_member(head).endswith(".npy"),
    ),
    Kind("a zip archive", b"PK\3\4", _UNPACK, lambda head: bool(_zip_member(head))),
    Kind("a 7z archive", b"7z\xbc\xaf\x27\x1c", _UNPACK),
    Kind("compressed (gzip)", b"\x1f\x8b\x08", _DECOMPRESS, _is_gzip),
    Kind("compressed (zstd)", b"\x28\xb5\x2f\xfd", _DECOMPRESS, _is_zstd),
    Kind("compressed (xz)", b"\xfd7zXZ\0", _DECOMPRESS),
    Kind("compressed (bzip2)", b"BZh", _DECOMPRESS, _has(4, b"1AY&SY")),
    Kind("compressed (lz4)", b"\x04\x22\x4d\x18", _DECOMPRESS, _is_lz4),
    # Arrays, records and tables of others.
    Kind("a PyTorch checkpoint", b"\x80\2\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", _TORCH),
    *(Kind("a pickle", b"\x80" + bytes([version]), _PICKLE, _is_pickle) for version in range(2, 6)),
    *(Kind("a pickle", magic, _PICKLE, _is_pickle) for magic in _OLD_PICKLES),
    Kind("an HDF5 file", b"\x89HDF\r\n\x1a\n", _WRITE.format(with_what="h5py")),
    Kind(
        "an ArrayRecord (Riegeli) file",
        b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f",
        _WRITE.format(with_what="array_record or grain"),
    ),
    Kind("a GGUF model", b"GGUF", _OTHER_FILE, _has(5, b"\0\0\0")),
    Kind("an SQLite database", b"SQLite format 3\0", _WRITE.format(with_what="sqlite3")),
    Kind(
        "an Avro file",
        b"Obj\1",
        _WRITE.format(with_what="fastavro"),
        lambda head: b"avro.schema" in head.start,
    ),
    Kind("an ORC file", b"ORC", _WRITE.format(with_what="pyarrow.orc"), _ends_with(b"ORC", 1)),
    Kind(
        "a Feather file of version 1",
        b"FEA1",
        _WRITE.format(with_what="pyarrow.feather"),
        _ends_with(b"FEA1"),
    ),
    # What data directories also hold.
    Kind("a program or a library (ELF)", b"\x7fELF", _OTHER_FILE, _has(6, b"\1")),
    Kind("a PDF document", b"%PDF-", "extract its text, and tokenize that"),
    Kind("an image (PNG)", b"\x89PNG\r\n\x1a\n", _OTHER_FILE),
    Kind("an image (GIF)", b"GIF8", _OTHER_FILE, _has(4, b"7a", b"9a")),
    Kind("an image (JPEG)", b"\xff\xd8\xff", _OTHER_FILE, _has(6, b"JFIF", b"Exif")),
    Kind("an image (WebP)", b"RIFF", _OTHER_FILE, _has(8, b"WEBP")),
    Kind("audio or video (RIFF)", b"RIFF", _OTHER_FILE, _has(8, b"WAVE", b"AVI ")),
)
_BY_FIRST_BYTE: dict[bytes, list[Kind]] = {}
for _kind in _KINDS:
    _BY_FIRST_BYTE.setdefault(_kind.magic[:1], []).append(_kind)
