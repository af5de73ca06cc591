"""Recognition: what a file without tokens is, and what to do with it.

Bare tokens have no header: any file can be read as tokens, and gives garbage. Other kinds of files
are recognised by signatures, text by its characters; `flat` tells the widths of tokens.
"""

import json
import re
from pathlib import Path

import numpy as np

from millstream.errors import FormatError
from millstream.formats.files import Head
from millstream.formats.flat import is_big_endian, wider_token_type
from millstream.formats.signatures import DECOMPRESS, LEAVE_OUT, find_kind, is_arrow_stream
from millstream.formats.text_names import kind_of

_MIN_TEXT_BYTES = 64
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\f\r\x1b") | {127}
_NOT_LATIN1 = bytes({*_CONTROL, *range(128, 160)} - {0x85, *range(0x91, 0x98)})  # "…" of Windows
_LEAST_RANDOM_BITS = 7.94  # entropy of a byte, in 4,096 random ones 7.95; tokens have 7.8 at most
_OTHER_TEXT = "text in {encoding}, not tokens; convert it to UTF-8 (iconv) and tokenize the result"
_IDS_IN_JSON = re.compile(rb'"(input_ids|tokens|token_ids|ids)"\s*:\s*\[\s*\d+\s*[],]')
_NUMBERS = re.compile(rb"\d+[\s,;][\d\s,;]*")


def refuse_others(head: Head, *, is_told: bool) -> None:
    """Refuse a file of another kind where bare tokens are expected; `is_told` by `format=`."""
    what = recognise(head)
    if is_told and is_arrow_stream(head):
        what = f"an Arrow stream; {LEAVE_OUT}"
    if what is None and not is_told and is_text(head, least_bytes=8):
        what = f'{_text(head)}; if it contains tokens, pass format="flat:uint16"'
    if what is None and not is_told and is_big_endian(head.start):
        what = (
            "probably big-endian: as uint16, every other token would be 0; swap the bytes "
            '(numpy.ndarray.byteswap), or pass format="flat:uint16" if the tokens are uint16'
        )
    if what is not None:
        raise FormatError(f"{head.path}: is {what}")


def recognise(head: Head) -> str | None:
    """What a file certainly is, and what to do with it; None if it may be tokens."""
    kind = find_kind(head)
    if kind is not None:
        text = _text_by_name(head.path) if kind.advice == DECOMPRESS else ""
        return f"{kind.name} text; {text}" if text else f"{kind.name}; {kind.advice}"
    if is_text(head):
        return _text(head)
    if _is_utf16(head):
        return _OTHER_TEXT.format(encoding="UTF-16")
    if _is_latin1(head.start):
        return _OTHER_TEXT.format(encoding="Latin-1 or a similar encoding")
    return None


def recognise_in(directory: Path, head: Head) -> str | None:
    """`recognise` for a file in a directory; for text, advise to tokenize the whole directory."""
    what = recognise(head)
    is_corpus = what is not None and what.startswith(("JSON,", "text,"))
    if is_corpus and _text_by_name(head.path):
        return f"text, not tokens; {text_advice(directory, 'text')}"
    return what


def unknown(head: Head, formats: str) -> FormatError:
    """The error for a file of unknown format."""
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
            f"{found}, and does not look like tokens of two bytes or more; to read it as bytes, "
            f'pass format="flat:uint8" (formats: {formats})'
        )
    token = wider_token_type(head) or "uint16"
    formats = f"(formats: {formats})"
    return FormatError(f'{found}; if it contains bare tokens, pass format="flat:{token}" {formats}')


def text_advice(path: Path, kind: str, column: str = "text") -> str:
    """How to tokenize this file: the command and the call."""
    import shlex

    options, arguments = "", ""
    if not path.is_dir() and kind_of(path.name) is None:
        options, arguments = f" --kind {kind}", f', kind="{kind}"'
    if column != "text":
        options += f" --text {shlex.quote(column)}"
        arguments += f", columns=millstream.Columns(text={quoted(column)})"
    source = f"millstream.Source({quoted(path)}{arguments})" if arguments else quoted(path)
    return (
        f"tokenize it (millstream tokenize {shlex.quote(str(path))}{options} --tokenizer TOKENIZER "
        f"--out DIRECTORY), or train on the text (millstream.TextLoader({source}, tokenizer, "
        "batch_size, seq_len))"
    )


def quoted(text: object) -> str:
    """A path or name as a Python string literal."""
    return json.dumps(str(text), ensure_ascii=False)


def is_text(head: Head, least_bytes: int = _MIN_TEXT_BYTES) -> bool:
    """True if a file starts with UTF-8 text, where nearly half of all bytes cannot occur."""
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
    """True for mostly ASCII bytes without any that text never has."""
    if len(start) < _MIN_TEXT_BYTES or len(start[:64].translate(None, _NOT_LATIN1)) < 64:
        return False
    num_ascii = sum(byte < 128 for byte in start)
    return len(start.translate(None, _NOT_LATIN1)) == len(start) and num_ascii > 0.8 * len(start)


def is_json_lines(start: bytes) -> bool:
    """True if the first line is a JSON object and more follows."""
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
        return "an HTML page, perhaps a saved error message; download the file again"
    if head.path.suffix.lower() == ".csv":
        return f"a table in text, not tokens; {_as_parquet(head.path, 'csv.read_csv')}"
    if start.startswith(b"{") and _IDS_IN_JSON.search(start):
        return f"JSON with token ids; {_as_parquet(head.path, 'json.read_json')}"
    if _NUMBERS.fullmatch(start):
        return (
            "numbers as text; if they are token ids, parse them and write them with "
            f"millstream.Writer; otherwise, {text_advice(head.path, 'text')}"
        )
    name, kind = ("JSON", "jsonl") if start[:1] in (b"{", b"[") else ("text", "text")
    return f"{name}, not tokens; {text_advice(head.path, kind)}"


def _as_parquet(path: Path, read: str) -> str:
    parquet = quoted(path.with_suffix(".parquet"))
    call = f"pyarrow.parquet.write_table(pyarrow.{read}({quoted(path)}), {parquet})"
    return f"write it as Parquet ({call}) and open or tokenize the result"


def _text_by_name(path: Path) -> str:
    """What to do with a compressed text file; "" for other files."""
    kind = kind_of(path.name)
    return text_advice(path, kind) if kind is not None else ""


def _is_random(start: bytes) -> bool:
    if len(start) < 4096:
        return False
    shares = np.bincount(np.frombuffer(start, np.uint8), minlength=256) / len(start)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum()) > _LEAST_RANDOM_BITS
