"""Signatures: kinds of files that are not bare tokens, recognised by their first bytes.

A signature must be strong enough that tokens do not match it by chance: a long magic, or a short
one and a structure that fits it.
"""

import contextlib
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

from millstream.formats.files import Head, read_part

_WRITE = "read it with {with_what} and write the tokens with millstream.Writer"


class Signature(NamedTuple):
    """A kind of file: its first bytes, what to check beside them, and what to do with it."""

    name: str
    magic: bytes
    advice: str
    fits: Callable[[Head], bool] = lambda head: True


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
    """The name of the first file in a zip archive; "" for other files."""
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
    """True if the first bytes are more pickle instructions than chance would give."""
    if read_part(head.path, head.size_bytes - 1, 1) != b".":
        return False
    import pickletools

    count = 0
    with contextlib.suppress(Exception):  # other or truncated bytes may raise anything
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
    """True if the first 512 bytes match the checksum in them."""
    block = head.start[:512]
    if len(block) < 512 or head.size_bytes % 512:
        return False
    digits = block[148:156].strip(b" \0")
    if not digits or not digits.isdigit() or not 1 <= len(digits) <= 7:
        return False
    total = sum(block) - sum(block[148:156]) + 8 * 32
    return b"8" not in digits and b"9" not in digits and total == int(digits, 8)


def _is_safetensors(head: Head) -> bool:
    if head.start[8:10] not in (b'{"', b"{}"):
        return False
    (length,) = struct.unpack_from("<Q", head.start)
    return bool(2 <= length <= head.size_bytes - 8)


def _is_tfrecord(head: Head) -> bool:
    if len(head.start) < 12 or any(head.start[4:8]):  # no record has 4 GiB
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


LEAVE_OUT = "open it without format"
_UNPACK = "unpack it and open the files in it"
DECOMPRESS = "decompress it and open the result"
_OTHER_FILE = "open the token file instead"
_PICKLE = "if you trust it, load it with pickle and write the tokens with millstream.Writer"
_OLD_PICKLES = (b"(lp", b"(dp", b"]q\0", b"}q\0", b"cnumpy.", b"ccopy_reg\n")  # protocols 0 and 1
_TORCH = _WRITE.format(with_what="torch.load")
_KINDS = (
    # Formats with tokens that open as what they are.
    Signature("a NumPy array", b"\x93NUMPY", LEAVE_OUT),
    Signature("an LLMBATCH file", b"LLMBATCH", LEAVE_OUT),
    Signature("an LLMCHNK file", b"LLMCHNK\0", LEAVE_OUT),
    Signature(
        "a Megatron-LM index",
        b"MMIDIDX\0\0",
        "copy the .bin of the same name beside it and open that",
    ),
    Signature("a Parquet file", b"PAR1", LEAVE_OUT, _ends_with(b"PAR1")),
    Signature("an Arrow file", b"ARROW1\0\0", LEAVE_OUT),
    # Archives and compressed files.
    Signature("a PyTorch checkpoint", b"PK\3\4", _TORCH, _is_torch),
    Signature(
        "a NumPy archive (.npz)",
        b"PK\3\4",
        "save its array with numpy.save and open the result",
        lambda head: _zip_member(head).endswith(".npy"),
    ),
    Signature("a zip archive", b"PK\3\4", _UNPACK, lambda head: bool(_zip_member(head))),
    Signature("a 7z archive", b"7z\xbc\xaf\x27\x1c", _UNPACK),
    Signature("compressed (gzip)", b"\x1f\x8b\x08", DECOMPRESS, _is_gzip),
    Signature("compressed (zstd)", b"\x28\xb5\x2f\xfd", DECOMPRESS, _is_zstd),
    Signature("compressed (xz)", b"\xfd7zXZ\0", DECOMPRESS),
    Signature("compressed (bzip2)", b"BZh", DECOMPRESS, _has(4, b"1AY&SY")),
    Signature("compressed (lz4)", b"\x04\x22\x4d\x18", DECOMPRESS, _is_lz4),
    # Arrays, records and tables of others.
    Signature("a PyTorch checkpoint", b"\x80\2\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", _TORCH),
    *(
        Signature("a pickle", b"\x80" + bytes([version]), _PICKLE, _is_pickle)
        for version in range(2, 6)
    ),
    *(Signature("a pickle", magic, _PICKLE, _is_pickle) for magic in _OLD_PICKLES),
    Signature("an HDF5 file", b"\x89HDF\r\n\x1a\n", _WRITE.format(with_what="h5py")),
    Signature(
        "an ArrayRecord (Riegeli) file",
        b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f",
        _WRITE.format(with_what="array_record or grain"),
    ),
    Signature("a GGUF model", b"GGUF", _OTHER_FILE, _has(5, b"\0\0\0")),
    Signature("an SQLite database", b"SQLite format 3\0", _WRITE.format(with_what="sqlite3")),
    Signature(
        "an Avro file",
        b"Obj\1",
        _WRITE.format(with_what="fastavro"),
        lambda head: b"avro.schema" in head.start,
    ),
    Signature("an ORC file", b"ORC", _WRITE.format(with_what="pyarrow.orc"), _ends_with(b"ORC", 1)),
    Signature(
        "a Feather V1 file",
        b"FEA1",
        _WRITE.format(with_what="pyarrow.feather"),
        _ends_with(b"FEA1"),
    ),
    # What data directories also hold.
    Signature("an ELF program or library", b"\x7fELF", _OTHER_FILE, _has(6, b"\1")),
    Signature("a PDF document", b"%PDF-", "extract its text and tokenize that"),
    Signature("an image (PNG)", b"\x89PNG\r\n\x1a\n", _OTHER_FILE),
    Signature("an image (GIF)", b"GIF8", _OTHER_FILE, _has(4, b"7a", b"9a")),
    Signature("an image (JPEG)", b"\xff\xd8\xff", _OTHER_FILE, _has(6, b"JFIF", b"Exif")),
    Signature("an image (WebP)", b"RIFF", _OTHER_FILE, _has(8, b"WEBP")),
    Signature("audio or video (RIFF)", b"RIFF", _OTHER_FILE, _has(8, b"WAVE", b"AVI ")),
)
_BY_FIRST_BYTE: dict[bytes, list[Signature]] = {}
for _kind in _KINDS:
    _BY_FIRST_BYTE.setdefault(_kind.magic[:1], []).append(_kind)

_BY_STRUCTURE = (
    Signature(
        "a tar archive (WebDataset)", b"", "unpack it and open or tokenize its files", _is_tar
    ),
    Signature("a safetensors file", b"", _WRITE.format(with_what="safetensors"), _is_safetensors),
    Signature(
        "a TFRecord file", b"", _WRITE.format(with_what="tf.data.TFRecordDataset"), _is_tfrecord
    ),
)


def find_kind(head: Head) -> Signature | None:
    """The kind of a file, if it is certain."""
    by_magic = _BY_FIRST_BYTE.get(head.start[:1], [])
    for kind in (*by_magic, *_BY_STRUCTURE):
        if head.start.startswith(kind.magic) and kind.fits(head):
            return kind
    return None
