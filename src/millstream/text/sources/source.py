"""`Source`: the text to read, and how it is cut and read."""

import copy
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, Literal, Self, get_args

import xxhash

from millstream.arguments import integer, one_of
from millstream.errors import FormatError, MillstreamError, UsageError
from millstream.formats.files import MOST
from millstream.formats.text_names import SourceKind
from millstream.remote.options import Remote
from millstream.reprs import one_line
from millstream.suggestions import did_you_mean
from millstream.text.batch import TextBatch
from millstream.text.chats.rendering import ChatRenderer
from millstream.text.sources import iterables, jsonl, missing_keys, parquet, plain_text
from millstream.text.sources.blocks import BLOCKS_VERSION, TextBlocks, list_blocks, tails_ahead
from millstream.text.sources.line_chunks import line_parts
from millstream.text.sources.listing import Paths, list_files
from millstream.text.sources.read_options import BadRow, BadRows, Columns, ReadOptions
from millstream.text.sources.slices import Slice, cut_bytes, cut_groups, join_small
from millstream.text.sources.slices_ahead import fetching_ahead
from millstream.text.sources.text_file import COMPRESSION_RATIO, TextFile

DocumentUnit = Literal["line", "file", "block"]

_FIRST_ROWS, _FIRST_BYTES = 100, 1 << 16  # checked at the start; the very first may be bad
_LAYOUTS = {"line": plain_text.LINES, "file": plain_text.FILE, "block": plain_text.BLOCKS}


class Source:
    r"""Files of text of one kind.

    Arguments:
        paths: a file, a directory, a pattern (`**` too), a URL of these, or a list of them.
        kind: "parquet", "jsonl" or "text"; by default, by the suffix of the files.
        split: the files to read from a directory or pattern with several splits, by their names:
            "train", "val", …, or "all". Required if there are several; a list of files needs none.
        columns: what to read of each row of Parquet or JSONL.
        documents: the unit of plain text that makes a document: a "line", a "file", or a "block"
            of lines between empty lines.
        bad_rows: what to do with rows that cannot become documents: "refuse" raises, "skip" skips
            and reports them.
        max_document_bytes: a longer row of Parquet or line of JSONL is a bad row, since it has to
            be in memory whole. Plain text has no limit.
        remote: how files behind URLs (`s3://`, `gs://`, `az://`, `https://`) are reached and
            cached. Such a file is fetched as it is read; HTTP servers do not list files, so name
            each.

    >>> _ = (tmp / "two.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    >>> source = Source(tmp / "two.jsonl")
    >>> [batch.text(0) for piece in source.slices(8) for batch in source.read(piece)]
    [b'one', b'two']
    """

    def __init__(
        self,
        paths: Paths,
        *,
        kind: SourceKind | None = None,
        split: str | None = None,
        columns: Columns | None = None,
        documents: DocumentUnit = "line",
        bad_rows: BadRows = "refuse",
        max_document_bytes: int = 64 << 20,
        remote: Remote | None = None,
    ) -> None:
        if kind is not None:
            one_of("kind", kind, get_args(SourceKind))
        self._set_options(columns, documents, bad_rows, max_document_bytes)
        self.kind, files = list_files(paths, kind, split, remote)
        self._files = {file.path: file for file in files}
        self._iterable: Iterable[Any] | None = None
        self._is_spent = False
        if self.kind == "text" and self.columns != Columns():
            raise UsageError(
                "plain text has no columns; leave out columns=… (--text, --metadata, --spans)"
            )
        if self.kind != "text" and documents != "line":
            raise UsageError(
                f"documents={documents!r} applies to plain text only; these files are {self.kind}"
            )

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Any],
        *,
        columns: Columns | None = None,
        bad_rows: BadRows = "refuse",
        max_document_bytes: int = 64 << 20,
    ) -> Self:
        """Make a source of Python objects: str, UTF-8 bytes, or dicts like JSONL objects.

        It is one slice, which only this process can read; once only if `documents` is an iterator.
        """
        source = cls.__new__(cls)
        source._set_options(columns, "line", bad_rows, max_document_bytes)
        source.kind, source._files, source._iterable = "jsonl", {}, documents
        source._is_spent = False
        return source

    def as_chats(self, renderer: ChatRenderer) -> Self:
        """Return the same source, of which every row has conversations instead of a text."""
        if self.kind == "text":
            raise UsageError("conversations are read from JSONL or Parquet, not from plain text")
        if self.columns.spans is not None:
            raise UsageError(
                f"spans={self.columns.spans!r} count characters of a text, and rows of chats have "
                "none; leave spans out"
            )
        if self.columns.text != Columns().text:
            raise UsageError(
                f"text={self.columns.text!r} is the column of a text, and rows of chats have none; "
                "leave it out"
            )
        source = copy.copy(self)
        source.renderer = renderer
        return source

    @property
    def masks_loss(self) -> bool:
        """Whether batches say which tokens are trained on."""
        return self.renderer is not None

    @property
    def _document_columns(self) -> tuple[str, ...]:
        """The columns that every row must have."""
        return (self.columns.text,) if self.renderer is None else self.renderer.chat.columns

    def _set_options(
        self,
        columns: Columns | None,
        documents: DocumentUnit,
        bad_rows: BadRows,
        max_document_bytes: int,
    ) -> None:
        if columns is not None and not isinstance(columns, Columns):
            raise UsageError(
                f"columns must be a Columns, such as Columns(text='body'); found {columns!r:.80}"
            )
        self.columns = columns or Columns()
        self.documents = one_of("documents", documents, get_args(DocumentUnit))
        self.bad_rows = one_of("bad_rows", bad_rows, get_args(BadRows))
        self.max_document_bytes = integer("max_document_bytes", max_document_bytes, 1)
        self.renderer: ChatRenderer | None = None

    @one_line
    def __repr__(self) -> str:
        if self._iterable is not None:
            return f"of documents from Python ({type(self._iterable).__name__})"
        first, *others = self._files
        more = f" and {len(others):,} more" if others else ""
        return f"{first}{more}: {self.kind}"

    @property
    def files(self) -> tuple[str, ...]:
        """All paths and URLs, sorted."""
        return tuple(self._files)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self._files.values())

    def warn_of_missing_keys(self) -> None:
        """Warn of JSONL columns that the first objects lack; they may be misspelt."""
        if self.kind == "jsonl":
            missing_keys.warn_of_missing_keys(self.columns, tuple(self._files.values()))

    def identity(self) -> dict[str, Any]:
        """Return all that determines the documents: options, and each file's path, size and time.

        Can be written as JSON. `"iterable": True` marks a source that no other process can read.
        """
        options: dict[str, Any] = {
            "kind": self.kind,
            "columns": asdict(self.columns) | {"metadata": list(self.columns.metadata)},
            "documents": self.documents,
            "bad_rows": self.bad_rows,
            "max_document_bytes": self.max_document_bytes,
        }
        if self.renderer is not None:
            options["chat"] = self.renderer.identity
        if self._iterable is not None:
            return options | {"iterable": True}
        names = ("path", "size_bytes", "mtime_ns")
        files = [{name: getattr(file, name) for name in names} for file in self._files.values()]
        return options | {"files": files}

    @property
    def fingerprint(self) -> str:
        """A hash of all that determines the documents and their blocks, for saved states.

        Files count by name and size only, so a run can resume on a machine that holds a copy.
        `bad_rows` does not count: a run that a bad row ended may resume with "skip".
        """
        self._need_files("a fingerprint")
        identity = self.identity() | {"blocks": BLOCKS_VERSION}
        del identity["bad_rows"]
        identity["files"] = [
            (os.path.basename(file.path), file.size_bytes)  # noqa: PTH119
            for file in self._files.values()
        ]
        return xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())

    def split_by_file(self, num_val_files: int = 1) -> tuple[Self, Self]:
        """Return two sources: all files but the last, and the last ones, for validation.

        >>> for name in "abc":
        ...     _ = (tmp / f"{name}.txt").write_text(name)
        >>> train, val = Source(tmp / "*.txt").split_by_file()
        >>> len(train.files), len(val.files)
        (2, 1)
        """
        self._need_files("split_by_file")
        num_val_files = integer("num_val_files", num_val_files, 1)
        files = list(self._files.items())
        if len(files) <= num_val_files:
            remedy = (
                f"give {len(files) - 1:,} or less"
                if len(files) > 1
                else "name more files, or cut this one into several "
                "(millstream repack --shard-chars)"
            )
            raise UsageError(
                f"num_val_files is {num_val_files:,}, but the source has {len(files):,} files and "
                f"training needs at least one; {remedy}"
            )
        train, val = copy.copy(self), copy.copy(self)
        train._files, val._files = dict(files[:-num_val_files]), dict(files[-num_val_files:])
        return train, val

    def _need_files(self, what: str) -> None:
        if self._iterable is not None:
            raise UsageError(
                f"{what} needs a source of files; write the documents to files first "
                "(millstream.repack)"
            )

    def check_columns(self) -> None:
        """Raise if JSONL is an array, or if its first rows all lack the text.

        Parquet columns are checked when the source is cut.
        """
        for file in self._files.values() if self.kind == "jsonl" else ():
            if jsonl.is_array(file):
                raise FormatError(
                    f"{file.path}: a JSON array; expected one object per line; convert it with "
                    "jq -c '.[]', and name the new file .jsonl"
                )
            rows = jsonl.first_rows(file, _FIRST_ROWS, self._reading(None, _FIRST_BYTES))
            wanted = self._document_columns
            missing = [name for name in wanted if not any(name in row for row in rows)]
            if rows and not missing:
                return
            if rows:
                keys = list(dict.fromkeys(key for row in rows for key in row))
                how = "text=…, --text"
                if self.renderer is not None:
                    how = self.renderer.chat.option_for(missing[0])
                for name in ("messages", "conversations"):
                    if self.renderer is None and name in keys:
                        how += (
                            f"; for conversations, chat=Chat(messages={name!r}), --messages {name}"
                        )
                raise FormatError(
                    f"{file.path}: none of the first {len(rows):,} rows has {missing[0]!r}; "
                    f"they have {', '.join(keys):.200} (choose one with {how})"
                    f"{did_you_mean(missing[0], keys)}"
                )

    def blocks(self) -> TextBlocks:
        """Return the blocks that a live loader deals to ranks, in order.

        A block is a row group with rows, about 4 MiB of lines, or a file that cannot be cut. Blocks
        depend on the files alone. Every document is in exactly one block; a block inside a line
        longer than a block has none.
        """
        self._need_files("live loading")
        by_line = self.documents == "line"
        return list_blocks(
            self._files.values(), self.kind, self.columns, self.renderer, by_line=by_line
        )

    def slices(self, target_bytes: int) -> list[Slice]:
        """Return slices of about `target_bytes` of text, in order.

        They depend on the files and on `target_bytes` alone.
        """
        target_bytes = integer("target_bytes", target_bytes, 1)
        if self._iterable is not None:
            return [Slice(files=(), start=0, stop=0, size_bytes=0)]
        files: Iterable[TextFile] = self._files.values()
        if self.kind == "parquet":
            files = tails_ahead(files)
        cut = (self._cut(file, target_bytes) for file in files)
        return list(join_small(cut, target_bytes))

    def _cut(self, file: TextFile, target_bytes: int) -> list[Slice]:
        if self.kind == "parquet":
            sizes = parquet.row_groups(file, self.columns, self.renderer).text_bytes
            return cut_groups(file.path, sizes, target_bytes)
        if not file.codec and self.documents == "line":
            return cut_bytes(file.path, file.size_bytes, target_bytes)
        size_bytes = file.size_bytes * (COMPRESSION_RATIO if file.codec else 1)
        return [Slice(files=(file.path,), start=0, stop=file.size_bytes, size_bytes=size_bytes)]

    def read(
        self,
        piece: Slice,
        bad: Callable[[BadRow], None] | None = None,
        *,
        batch_bytes: int = 1 << 20,
    ) -> Iterator[TextBatch]:
        """Yield the documents of a slice, in order, in batches of about `batch_bytes` of text.

        Calls `bad` with every skipped row.
        """
        reading = self._reading(bad, integer("batch_bytes", batch_bytes, 1))
        if self._iterable is not None:
            if self._is_spent:
                raise UsageError(
                    "this iterator was already read; give from_documents a list, or another "
                    "iterable that can be read again"
                )
            self._is_spent = iter(self._iterable) is self._iterable
            yield from iterables.read_iterable(self._iterable, reading)
        if len(piece.files) > 1 and self.ahead_bytes:
            whole = [replace(piece, files=(path,), stop=MOST) for path in piece.files]
            for each in self.fetching_ahead(whole):
                yield from self._read_slice(each, reading)
        else:
            yield from self._read_slice(piece, reading)

    def _read_slice(self, piece: Slice, reading: ReadOptions) -> Iterator[TextBatch]:
        for file, start, stop in self._ranges(piece):
            unpacked_from = start if file.codec else 0
            for batch in self._read_file(file, start, stop, reading):
                yield replace(batch, file=file.path, unpacked_from=unpacked_from)

    def _ranges(self, piece: Slice) -> Iterator[tuple[TextFile, int, int]]:
        """Yield each file of a slice, with the row groups or bytes to read of it."""
        for path in piece.files:
            file = self._files.get(path)
            if file is None:
                raise UsageError(f"{path}: not a file of this source; call slices() again")
            is_range = len(piece.files) == 1 and file.codec != ".gz"
            yield file, *((piece.start, piece.stop) if is_range else (0, MOST))

    @property
    def ahead_bytes(self) -> int:
        """How much of remote files may be fetched ahead of reading; 0 if all files are local."""
        options = (file.remote for file in self._files.values())
        return max((each.ahead_bytes for each in options if each is not None), default=0)

    def fetching_ahead(self, pieces: Iterable[Slice]) -> Iterator[Slice]:
        """Yield slices to read; meanwhile, fetch those that follow, if they are remote."""
        max_bytes = self.ahead_bytes
        if not max_bytes:
            return iter(pieces)
        return fetching_ahead(pieces, lambda piece: piece, self.announce, max_bytes)

    def announce(self, piece: Slice, max_bytes: int) -> int:
        """Start to fetch a remote slice; returns how many bytes, at most `max_bytes`."""
        try:
            return self._announce(piece, max_bytes)
        except MillstreamError:  # whoever reads the slice raises it
            return 0

    def _announce(self, piece: Slice, max_bytes: int) -> int:
        num_bytes = 0
        for file, start, stop in self._ranges(piece):
            if file.remote is None or num_bytes >= max_bytes:
                continue
            if self.kind == "parquet":
                parts = parquet.column_parts(file, start, stop, self.columns, self.renderer)
            else:
                parts = line_parts(file, start, stop)
            num_bytes += file.announce(parts, max_bytes - num_bytes)
        return num_bytes

    def _reading(self, bad: Callable[[BadRow], None] | None, batch_bytes: int) -> ReadOptions:
        return ReadOptions(
            columns=self.columns,
            max_document_bytes=self.max_document_bytes,
            batch_bytes=batch_bytes,
            report=functools.partial(self._report, bad),
            renderer=self.renderer,
        )

    def _read_file(
        self, file: TextFile, start: int, stop: int, reading: ReadOptions
    ) -> Iterator[TextBatch]:
        if self.kind == "parquet":
            return parquet.read_parquet(file, start, stop, reading)
        if self.kind == "jsonl":
            return jsonl.read_jsonl(file, start, stop, reading)
        layout = _LAYOUTS[self.documents]
        if self.documents != "line":
            start, stop = 0, MOST
        return plain_text.read_plain(file, layout, start, stop, reading)

    def _report(self, bad: Callable[[BadRow], None] | None, row: BadRow) -> None:
        if self.bad_rows == "refuse":
            raise FormatError(
                f"{row}; fix it, or skip such rows with bad_rows='skip' (--bad-rows skip)"
            )
        if bad is not None:
            bad(row)
