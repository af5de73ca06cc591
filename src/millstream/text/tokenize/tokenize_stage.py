"""The tokenize stage: each task turns a slice of the source into a part of each side."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.atomic import publish
from millstream.errors import FormatError, UsageError
from millstream.formats.json_values import encode
from millstream.formats.loss_masks import LOSS_MASK
from millstream.formats.shard import TOKEN
from millstream.progress import OnProgress
from millstream.text.batch import TextBatch, TextSpan
from millstream.text.marks import Marks
from millstream.text.sources import Source
from millstream.text.sources.batch_builder import without_documents
from millstream.text.tokenize.annotations import WrongSpan, check_spans, lay_over, to_tokens
from millstream.text.tokenize.document_counts import DocumentCounts
from millstream.text.tokenize.document_records import fill_records_u16, fill_records_u32
from millstream.text.tokenize.job_directory import JobDirectory, part_is_finished
from millstream.text.tokenize.plan import TokenizePlan
from millstream.text.tokenize.sampled_check import SampledCheck
from millstream.text.tokenize.slice_reader import SliceReader
from millstream.text.tokenize.split import VAL, whole_groups
from millstream.text.tokenize.stage import task_progress
from millstream.text.tokenize.text_pieces import TextPiece
from millstream.text.tokenizers.special_tokens import trained_tokens
from millstream.text.tokenizers.tokenizer import Ids, Offsets, Tokenizer
from millstream.write.writer import Writer


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeStage:
    """Each task writes its parts, then its counts; it is done when all of them are there."""

    directory: JobDirectory
    plan: TokenizePlan
    source: Source
    tokenizer: Tokenizer
    reference: Tokenizer | None
    """the engine that a sample is compared with"""

    @property
    def name(self) -> str:
        """The verb in the names of files."""
        return "tokenize"

    @property
    def activity(self) -> str:
        """What tasks do."""
        return "tokenizing"

    def describe(self, number: int) -> str:
        """What a task reads."""
        return self.plan.describe(number)

    def size_bytes(self, number: int) -> int:
        """About how many bytes a task reads."""
        return self.plan.tasks[number].size_bytes

    def is_done(self, number: int) -> bool:
        """True if all its parts and its counts are written."""
        return self.directory.counts(self.name, number).exists() and not self._missing(number)

    def _missing(self, number: int) -> list[str]:
        parts = {side: self.directory.parts(self.plan, side) for side in self.plan.sides}
        return [side for side, path in parts.items() if not part_is_finished(path, number)]

    def run(self, number: int, report: OnProgress) -> None:
        """Write the parts that are missing."""
        with contextlib.ExitStack() as stack:
            writers = {side: self._writer(side, number) for side in self._missing(number)}
            for writer in writers.values():
                stack.enter_context(writer)
            task = _Task(self, writers)
            for piece in task.reading.pieces(self.plan.tasks[number]):
                task.write(piece)
                counted = task.counts
                report(task_progress(self, counted.text_bytes, counted.tokens))
            started = time.perf_counter()
            for writer in writers.values():
                writer.finish()
            task.counts.spend("writing", time.perf_counter() - started)
        # If this is lost, the slice is only read again to count it.
        path = self.directory.counts(self.name, number)
        publish(path, task.counts.to_json(), lasting=False)

    def _writer(self, side: str, number: int) -> Writer:
        plan = self.plan
        return Writer(
            self.directory.parts(plan, side),
            fields=plan.fields,
            vocab_size=plan.tokenizer["vocab_size"],
            metadata=bytes if plan.with_metadata else None,
            part=number,
            shard_bytes=plan.shard_bytes,
            tokenizer={key: plan.tokenizer[key] for key in ("name", "fingerprint")},
            bos_id=plan.marks.bos_id,
            eos_id=plan.marks.eos_id,
            split=plan.split_note(side),
            group_size=plan.group_size,
        )


class _EncodedBatch(NamedTuple):
    """The tokens of some documents."""

    ids: Ids
    offsets: Offsets
    ends: Offsets | None = None
    """the byte of its document at which each token ends, if spans need it"""
    trained: NDArray[np.uint8] | None = None
    """of chats: 1 for tokens to train on"""


class _Task:
    """One run of a task."""

    def __init__(self, stage: TokenizeStage, writers: dict[str, Writer]) -> None:
        self._plan, self._writers = stage.plan, writers
        self._tokenizer = stage.tokenizer
        self.reading = SliceReader(source=stage.source, tokenizer=stage.tokenizer)
        self._check: SampledCheck | None = None
        if stage.reference is not None:
            self._check = SampledCheck(stage.tokenizer, stage.reference)
        self._side = ""
        """of the document that continues in the next piece"""
        self._length = 0
        """tokens of that document so far"""

    @property
    def counts(self) -> DocumentCounts:
        """The counts so far."""
        return self.reading.counts

    @contextlib.contextmanager
    def _spending(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.counts.spend(what, time.perf_counter() - started)

    def write(self, piece: TextPiece) -> None:
        """Tokenize and write some documents."""
        with self._spending("tokenizing"):
            try:
                encoded = self._encode(piece.batch)
            except FormatError:
                piece = self._without_refused(piece)
                encoded = self._encode(piece.batch)
        batch = piece.batch
        self._check_ids(encoded.ids)
        if self._check is not None and piece.begins:
            with self._spending("checking"):
                self._check.compare(batch, encoded.ids, encoded.offsets)
            self.counts.checked_bytes = self._check.checked_bytes
        with self._spending("writing"):
            left_out = set[int]()
            spans = None
            if batch.spans is not None:
                spans = self._token_spans(piece, encoded, left_out)
            for side, chosen in self._choose(piece, left_out):
                self._write_side(side, chosen, piece, encoded, spans)

    def _encode(self, batch: TextBatch) -> _EncodedBatch:
        data, offsets = batch.data, batch.offsets
        if batch.trained is not None:
            ids, id_offsets, ends = self._tokenizer.encode_with_specials(data, offsets)
            trained = trained_tokens(id_offsets, ends, offsets, batch.trained)
            return _EncodedBatch(ids, id_offsets, trained=trained)
        if batch.spans is None or self._plan.span_unit == "tokens":
            return _EncodedBatch(*self._tokenizer.encode(data, offsets))
        return _EncodedBatch(*self._tokenizer.encode_with_ends(data, offsets))

    def _without_refused(self, piece: TextPiece) -> TextPiece:
        """The piece without the documents that the tokenizer refuses; these are bad rows."""
        batch, refused = piece.batch, set[int]()
        for k in range(batch.num_documents):
            try:
                self._encode(replace(batch, offsets=batch.offsets[k : k + 2]))
            except FormatError as error:
                if not (piece.begins and piece.ends):  # other pieces of it are written, or will be
                    raise FormatError(f"{batch.place(k)}: {error}") from None
                self.reading.refuse(batch, k, str(error))
                refused.add(k)
        refused = whole_groups(refused, self._plan.group_size)
        return replace(piece, batch=without_documents(batch, refused))

    def _check_ids(self, ids: Ids) -> None:
        """Refuse ids that would not fit the type chosen by `vocab_size`."""
        vocab_size = self._plan.tokenizer["vocab_size"]
        if ids.size and ids.max() >= vocab_size:
            raise UsageError(
                f"the tokenizer {self._tokenizer.name} gives the id {ids.max():,}, not below its "
                f"vocab_size={vocab_size:,}"
            )

    def _choose(
        self, piece: TextPiece, left_out: set[int]
    ) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield each side and the documents that go to it."""
        split, batch = self._plan.split, piece.batch
        is_val = np.zeros(batch.num_documents, bool)
        if split is None:
            pass
        elif not split.goes_by_hash:
            is_val[:] = split.matches(batch.file)
        elif piece.begins:
            hashes, bad = self.reading.hashes(batch, split)
            threshold = self._plan.threshold
            assert threshold is not None  # it is set before anything is tokenized
            is_val = hashes < np.uint64(threshold)
            left_out |= whole_groups(bad, self._plan.group_size)
        else:
            is_val[:] = self._side == VAL
        kept = np.ones(batch.num_documents, bool)
        kept[list(left_out)] = False
        for side in self._plan.sides:
            chosen = np.flatnonzero(kept & (is_val if side == VAL else ~is_val if side else kept))
            if chosen.size:
                self._side = side
                yield side, chosen
        text_bytes = np.diff(batch.offsets)[kept].sum()
        self.counts.text_bytes += int(text_bytes)

    def _write_side(
        self,
        side: str,
        chosen: NDArray[np.int64],
        piece: TextPiece,
        encoded: _EncodedBatch,
        spans: list[list[TextSpan]] | None,
    ) -> None:
        marks = Marks(
            bos_id=self._plan.marks.bos_id if piece.begins else None,
            eos_id=self._plan.marks.eos_id if piece.ends else None,
        )
        lengths = np.diff(encoded.offsets)[chosen] + marks.num_tokens
        records = self._records(chosen, encoded, marks, int(lengths.sum()))
        if encoded.trained is not None:
            self.counts.count_trained(records[LOSS_MASK], lengths)
        writer = self._writers.get(side)
        if writer is not None:
            attached = self._attached(chosen, piece, lengths, spans, int(marks.bos_id is not None))
            writer.extend(records, lengths, **attached, continues=not piece.ends)
        self.counts.marks += marks.num_tokens * len(chosen)
        if not piece.begins:
            lengths[0] += self._length
        self._length = int(lengths[-1])
        if piece.ends:
            self.counts.count(side, lengths)

    def _records(
        self, chosen: NDArray[np.int64], encoded: _EncodedBatch, marks: Marks, num_records: int
    ) -> NDArray[Any]:
        """The records of documents between their marks, end to end."""
        is_narrow = self._plan.tokenizer["vocab_size"] <= 1 << 16
        tokens: NDArray[Any] = np.empty(num_records, np.uint16 if is_narrow else np.uint32)
        ids, offsets = np.ascontiguousarray(encoded.ids), np.ascontiguousarray(encoded.offsets)
        fill_records = fill_records_u16 if is_narrow else fill_records_u32
        fill_records(ids, offsets, chosen, *marks.codes, tokens)
        if encoded.trained is None:
            return tokens
        records = np.empty(num_records, [(TOKEN, tokens.dtype), (LOSS_MASK, np.uint8)])
        masks = np.empty(num_records, np.uint16)
        # The token that starts documents is never a label, and the one that ends them is learned.
        bos, eos = (-1 if code < 0 else of for code, of in zip(marks.codes, (0, 1), strict=True))
        fill_records_u16(encoded.trained.astype(np.uint32), offsets, chosen, bos, eos, masks)
        records[TOKEN], records[LOSS_MASK] = tokens, masks
        return records

    def _attached(
        self,
        chosen: NDArray[np.int64],
        piece: TextPiece,
        lengths: NDArray[np.int64],
        spans: list[list[TextSpan]] | None,
        shift: int,
    ) -> dict[str, Any]:
        """The metadata of documents, as arguments for the writer."""
        metadata = piece.batch.metadata
        if metadata is not None:
            self.counts.lost_spans += int((lengths == 0).sum())
        if spans is not None:
            return {
                "spans": [
                    lay_over(
                        spans[k], int(length), None if metadata is None else metadata[k], shift
                    )
                    for k, length in zip(chosen.tolist(), lengths, strict=True)
                ]
            }
        if metadata is None:
            return {}
        blobs: list[bytes | None] = [encode(metadata[k]) for k in chosen.tolist()]
        for k in np.flatnonzero(lengths == 0).tolist():
            blobs[k] = None
        return {"metadata": blobs}

    def _token_spans(
        self, piece: TextPiece, encoded: _EncodedBatch, left_out: set[int]
    ) -> list[list[TextSpan]]:
        """The spans of each document in tokens; documents with bad spans are left out."""
        batch, found = piece.batch, list[list[TextSpan]]()
        offsets, ends = encoded.offsets, encoded.ends
        for k, spans in enumerate(batch.spans or ()):
            first, last = int(offsets[k]), int(offsets[k + 1])
            try:
                if ends is None:
                    found.append(check_spans(spans, last - first, "tokens"))
                    continue
                text = batch.data[batch.offsets[k] : batch.offsets[k + 1]]
                in_tokens = to_tokens(text, spans, ends[first:last])
            except WrongSpan as wrong:
                self.reading.refuse(batch, k, str(wrong))
                left_out.add(k)
                found.append([])
                continue
            found.append(in_tokens.spans)
            self.counts.lost_spans += in_tokens.num_lost
        return found
