"""Files of other systems: each writer takes a run of documents and the files to put them in.

A writer streams: it asks for the records, and for where documents end, as often as it needs to, and
holds one chunk of either at a time.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from millstream.atomic import NewFile
from millstream.errors import UsageError
from millstream.formats import datatrove, llmchnk, megatron
from millstream.formats.flat import LLMC
from millstream.formats.llmbatch import Header
from millstream.formats.loss_masks import LOSS_MASK
from millstream.formats.shard import DOCUMENTS, OFFSET, STREAM, TOKEN
from millstream.write.shard_job import OpenNew

Ends = NDArray[np.int64]


class DocumentsToWrite(Protocol):
    """Consecutive documents to write."""

    @property
    def fields(self) -> np.dtype[Any]:
        """The record."""

    @property
    def num_records(self) -> int:
        """How many there are."""

    @property
    def num_documents(self) -> int:
        """How many there are."""

    @property
    def tokenizer(self) -> str:
        """The tokenizer's name, if known."""

    def records(self) -> Iterator[NDArray[Any]]:
        """All records, in chunks that share memory."""

    def ends(self) -> Iterator[Ends]:
        """Document ends, counted from the first record, in chunks."""


@dataclass(frozen=True, slots=True)
class Target:
    """A format that can be written."""

    write: Callable[[DocumentsToWrite, OpenNew], None]
    token_types: tuple[str, ...]
    """token types it can store; empty for any"""
    holds_documents: bool = True
    holds_loss_mask: bool = False
    holds_fields: bool = False


def write_stream(documents: DocumentsToWrite, open_new: OpenNew) -> None:
    """Our own shard."""
    table, stream = open_new(DOCUMENTS), open_new(STREAM)
    table.write(bytes(OFFSET.itemsize))
    for ends in documents.ends():
        table.write(ends.astype(OFFSET))
    for records in documents.records():
        stream.write(records)


def write_datatrove(documents: DocumentsToWrite, open_new: OpenNew) -> None:
    """`X.ds`, `X.ds.index`, `X.ds.loss` where there is a mask, and `X.ds.metadata`."""
    suffix = datatrove.SUFFIX
    tokens, index = open_new(suffix), open_new(suffix + datatrove.INDEX_SUFFIX)
    has_mask = LOSS_MASK in (documents.fields.names or ())
    loss = open_new(suffix + datatrove.LOSS_SUFFIX) if has_mask else None
    for ends in documents.ends():
        index.write(ends.astype("<u8"))
    for records in documents.records():
        tokens.write(np.ascontiguousarray(records[TOKEN]))
        if loss is not None:
            loss.write((records[LOSS_MASK] != 0).astype("u1"))
    size, count = documents.fields[TOKEN].itemsize, documents.num_records
    name = documents.tokenizer.replace("|", " ").replace("\n", " ") or "unknown"
    text = f"{name}|{size}\n{count}\n{_metric(count)}"
    open_new(suffix + datatrove.TEXT_SUFFIX).write(text.encode())


def write_megatron(documents: DocumentsToWrite, open_new: OpenNew) -> None:
    """`X.bin` and `X.idx`, one sequence per document."""
    code = next(c for c, dtype in megatron.DTYPES.items() if dtype == documents.fields[TOKEN])
    size, count = documents.fields[TOKEN].itemsize, documents.num_documents
    index = open_new(".idx")
    index.write(megatron.HEADER.pack(megatron.MAGIC, 1, code, count, count + 1))
    for lengths, _ in _lengths_and_starts(documents):
        if lengths.size and lengths.max() > np.iinfo(np.int32).max:
            raise UsageError(
                "a document has 2^31 tokens or more, too many for Megatron; if each file opened as "
                "one document, pass eos_id or bos_id to millstream.open"
            )
        index.write(lengths.astype("<i4"))
    for _, starts in _lengths_and_starts(documents):
        index.write((starts * size).astype("<i8"))
    for first in range(0, count + 1, 1 << 20):
        index.write(np.arange(first, min(first + (1 << 20), count + 1), dtype="<i8"))
    _write_tokens(documents, open_new(".bin"))


def _lengths_and_starts(documents: DocumentsToWrite) -> Iterator[tuple[Ends, Ends]]:
    last = 0
    for ends in documents.ends():
        starts = np.concatenate([[last], ends[:-1]])
        yield ends - starts, starts
        last = int(ends[-1])


def write_flat(documents: DocumentsToWrite, open_new: OpenNew) -> None:
    """Bare tokens."""
    _write_tokens(documents, open_new(".bin"))


def write_llmc(documents: DocumentsToWrite, open_new: OpenNew) -> None:
    """Tokens behind 256 int32."""
    magic, version = next((m, v) for m, (v, t) in LLMC.items() if t == documents.fields[TOKEN])
    if documents.num_records > np.iinfo(np.int32).max:
        raise UsageError("an llm.c file has fewer than 2^31 tokens; decrease shard_bytes")
    file = open_new(".bin")
    file.write(struct.pack("<3i", magic, version, documents.num_records).ljust(1024, b"\0"))
    _write_tokens(documents, file)


def write_llmchnk(documents: DocumentsToWrite, open_new: OpenNew) -> None:
    """A header, where records start, and their tokens."""
    code = llmchnk.DTYPES.index(documents.fields[TOKEN])
    counts = documents.num_documents, documents.num_records
    file = open_new(".chnk")
    file.write(llmchnk.HEADER.pack(llmchnk.MAGIC, 1, code, *counts))
    file.write(bytes(OFFSET.itemsize))
    for ends in documents.ends():
        file.write(ends.astype(OFFSET))
    _write_tokens(documents, file)


def llmbatch_target(batch_size: int, seq_len: int) -> Target:
    """Rows of `seq_len` tokens, in batches, in their original order."""

    def write(documents: DocumentsToWrite, open_new: OpenNew) -> None:
        num_rows = documents.num_records // seq_len
        header = Header(batch_size, seq_len, num_rows // batch_size, 0, num_rows)
        file = open_new(".batch")
        file.write(header.pack())
        per_batch, left = batch_size * seq_len, header.num_batches * batch_size * seq_len
        padding = bytes(header.padded_batch_bytes - header.batch_bytes)
        until_padding = per_batch
        for records in documents.records():
            tokens = np.ascontiguousarray(records[TOKEN][:left])
            left -= tokens.size
            if not padding:
                file.write(tokens)
                continue
            while tokens.size:
                file.write(tokens[:until_padding])
                rest = tokens[until_padding:]
                until_padding -= tokens.size - rest.size
                tokens = rest
                if not until_padding:
                    file.write(padding)
                    until_padding = per_batch

    return Target(write, ("<u4",), holds_documents=False)


def _write_tokens(documents: DocumentsToWrite, file: NewFile) -> None:
    for records in documents.records():
        file.write(np.ascontiguousarray(records[TOKEN]))


def _metric(count: int) -> str:
    """A number of tokens as datatrove formats it: three digits and a prefix, "1.23 MT"."""
    power, digit = divmod(len(str(count)) - 1, 3)
    return f"{count / 1000**power:.{2 - digit}f} {' kMGTPE'[power].strip()}T"


TARGETS = {
    "millstream": Target(write_stream, (), holds_loss_mask=True, holds_fields=True),
    "datatrove": Target(write_datatrove, ("<u2", "<u4"), holds_loss_mask=True),
    "megatron": Target(write_megatron, ("<u2", "<i4", "<i8", "|u1", "|i1", "<i2")),
    "llmchnk": Target(write_llmchnk, ("<u2", "<u4")),
    "llmbatch": llmbatch_target(1, 1),
    "llmc": Target(write_llmc, ("<u2", "<u4"), holds_documents=False),
    "flat": Target(write_flat, (), holds_documents=False),
}
