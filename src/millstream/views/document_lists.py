"""Documents that a user names: by their numbers, in a file, or by a function of their metadata."""

import io
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, UsageError
from millstream.formats.files import open_regular, read_head
from millstream.formats.flat import NPY_MAGIC, describe_npy
from millstream.formats.shard import STREAM, TOKEN
from millstream.metadata.span_decoding import Decoder
from millstream.read.record_stream import RecordStream
from millstream.views.document_metadata import metadata_of_documents

_AT_ONCE = 1 << 20
_MOST_DIGITS = 19
_MOST_LINE_BYTES = 1 << 12


class ListedDocuments(NamedTuple):
    """Numbers of documents, some at a time."""

    numbers: Iterator[NDArray[np.integer]]
    where: str
    """where they come from, for errors"""


def listed_documents(data: RecordStream, documents: Any, decode: Decoder | None) -> ListedDocuments:
    """The numbers of the documents that a user names; nothing is read yet."""
    if isinstance(documents, str | os.PathLike):
        path = Path(documents).expanduser()
        return ListedDocuments(_numbers_in_file(path), str(path))
    if callable(documents):
        return ListedDocuments(_chosen_by(documents, data, decode), "documents")
    return ListedDocuments(_given(documents), "documents")


def _given(documents: Any) -> Iterator[NDArray[np.integer]]:
    try:
        numbers = documents if isinstance(documents, np.ndarray) else np.array(list(documents))
    except TypeError:
        numbers = np.array(None)
    except (OverflowError, ValueError) as error:
        raise UsageError(f"documents: {error}; expected numbers of documents") from None
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise UsageError(
            f"documents is {documents!r:.80}; it must be numbers of documents, the path of a file "
            "of numbers, or a function of a document's metadata"
        )
    for start in range(0, numbers.size, _AT_ONCE):
        yield numbers[start : start + _AT_ONCE]


def _chosen_by(
    is_left_out: Callable[[list[Any]], bool], data: RecordStream, decode: Decoder | None
) -> Iterator[NDArray[np.integer]]:
    spans_of = enumerate(metadata_of_documents(data, decode))
    chosen = (number for number, spans in spans_of if is_left_out(spans))
    while (some := np.fromiter(islice(chosen, _AT_ONCE), np.int64)).size:
        yield some


def _numbers_in_file(path: Path) -> Iterator[NDArray[np.integer]]:
    """Yield the numbers in a file: a NumPy array, or a number in each line of text."""
    head = read_head(path)
    if not head.start.startswith(NPY_MAGIC):
        return _numbers_in_text(path)
    array = describe_npy(head)
    (shard,) = array.shards
    if shard.row_records != shard.num_records:
        raise FormatError(f"{path}: has two dimensions; expected a list of document numbers")
    return _numbers_in_npy(path, array.fields[TOKEN], shard.files[STREAM].first_byte)


def _numbers_in_npy(
    path: Path, dtype: np.dtype[Any], first_byte: int
) -> Iterator[NDArray[np.integer]]:
    with open_regular(path) as file:
        file.seek(first_byte)
        while (some := np.fromfile(file, dtype, _AT_ONCE)).size:
            yield some


def _numbers_in_text(path: Path) -> Iterator[NDArray[np.integer]]:
    with open_regular(path) as file, io.BufferedReader(file) as lines:
        numbers = _numbers_in_lines(path, iter(lambda: lines.readline(_MOST_LINE_BYTES), b""))
        while (some := np.fromiter(islice(numbers, _AT_ONCE), np.int64)).size:
            yield some


def _numbers_in_lines(path: Path, lines: Iterable[bytes]) -> Iterator[int]:
    for count, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        if not text.isdigit() or len(text) > _MOST_DIGITS or int(text) >= 1 << 63:
            raise FormatError(
                f"{path}, line {count:,}: {text[:40]!r} is not the number of a document; write one "
                "number in each line"
            )
        yield int(text)
