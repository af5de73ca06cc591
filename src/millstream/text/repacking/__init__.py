"""`repack`: any source into text shards of one size, in the source's order or shuffled.

Each slice of the source, or each stretch of the shuffled order, becomes a shard. Only a slice that
cannot be cut, such as a large `.jsonl.gz`, becomes several. To shuffle documents, they are first
written as bytes to a dataset, where each of them can be read by its number.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from millstream.arguments import integer, one_of
from millstream.copying.outputs import output_directory, relative_to
from millstream.errors import UsageError
from millstream.formats.files import MOST
from millstream.progress import OnProgress, ProgressMeter
from millstream.remote.options import Remote
from millstream.system.processors import num_processors
from millstream.text.repacking.documents import Document, documents_of_order, documents_of_slice
from millstream.text.repacking.numbering import COMPANIONS, COUNTS, ShardNumbers
from millstream.text.repacking.shard_formats import SHARDS
from millstream.text.repacking.shard_series import ShardSeries
from millstream.text.sources import Paths, Slice, Source
from millstream.text.tokenize.document_counts import MOST_PLACES, DocumentCounts, no_documents
from millstream.text.tokenize.source_differences import relax_source, source_differences
from millstream.text.tokenizers.byte_tokenizer import ByteTokenizer
from millstream.write.job import Job
from millstream.write.shard_job import OpenNew, ShardJob, WriteShard

To = Literal["parquet", "jsonl", "text"]

_SLACK = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class RepackReport:
    """What `millstream.repack` wrote."""

    files: tuple[Path, ...]
    """relative to the target, if that is a URL"""
    num_documents: int
    num_characters: int
    num_bytes: int
    """of the text"""
    skipped: int
    """bad rows that were left out"""
    places: tuple[str, ...]
    """where the first of them are, and what is wrong with them"""
    was_finished: bool = False
    """True if an earlier call had finished the job"""


def repack(
    source: Source | Paths,
    out: str | os.PathLike[str],
    *,
    to: To = "parquet",
    shard_chars: int = 250_000_000,
    shuffle: int | None = None,
    workers: int | None = None,
    allow_empty: bool = False,
    progress: OnProgress | None = None,
    remote: Remote | None = None,
) -> RepackReport:
    r"""Write the documents of a source into shards. To resume after a crash, call it again.

    A finished job is not run again: the same call returns the same report.

    If `out` is a URL, each shard is made in the user's cache, uploaded and freed there.

    Arguments:
        source: files, directories or patterns; or a `Source`, which says more about them.
        out: a directory, created if it is missing.
        to: "parquet" (zstd, row groups of 1024), "jsonl" or "text" (a document per line), both
            zstd.
        shard_chars: about how many characters a shard has.
        shuffle: a seed, to put the documents of all files into one random order.
        workers: how many shards are written at a time; by default one per processor.
        allow_empty: write nothing if the source has no documents, which is an error otherwise.
        progress: is called with a `Progress` in bytes of text.
        remote: how `out` is reached, if it is a URL.

    >>> _ = (tmp / "lines.txt").write_text("one\ntwo\n")
    >>> report = repack(tmp / "lines.txt", tmp / "packed")
    >>> [file.name for file in report.files], report.num_documents, report.num_characters
    (['shard_00000.parquet'], 2, 6)
    """
    source = source if isinstance(source, Source) else Source(source)
    one_of("to", to, SHARDS)
    _check_columns(source, to)
    shard_chars = integer("shard_chars", shard_chars, 1)
    seed = None if shuffle is None else integer("shuffle", shuffle, 0, (1 << 64) - 1)
    workers = integer("workers", workers or num_processors(), 1)
    source.warn_of_missing_keys()
    wanted = {"to": to, "shard_chars": shard_chars, "shuffle": seed, "source": source.identity()}
    total = sum(piece.size_bytes for piece in source.slices(1 << 40)) if progress else None
    meter = ProgressMeter(progress, "repacking", total=total, unit="bytes", every=1 << 20)
    with output_directory(
        out, "repack", remote=remote, progress=progress, companions=COMPANIONS
    ) as output:
        directory = output.directory
        job = ShardJob(
            directory,
            wanted,
            _differences,
            command="repack",
            wait_for_room=output.wait_for_room,
        )

        def advance(num_bytes: int) -> None:
            job.check()
            meter.advance(num_bytes)

        work = _RepackWork(
            source=source, to=to, shard_chars=shard_chars, allow_empty=allow_empty, advance=advance
        )
        with job.begin() as done:
            if done is None:
                report = work.run(job, directory, seed, workers)
                meter.finish()
            else:
                files = tuple(directory / name for name in done.pop("files"))
                done["places"] = tuple(done["places"])
                report = RepackReport(files=files, was_finished=True, **done)
    return replace(report, files=tuple(map(relative_to(out, directory), report.files)))


def _check_columns(source: Source, to: To) -> None:
    """Refuse columns that shards of this kind cannot store."""
    if source.columns.spans is not None:
        raise UsageError("text shards cannot store spans; leave them out")
    columns = ("text", *source.columns.metadata)
    if len(set(columns)) < len(columns):
        raise UsageError(
            f"text shards would have two columns of one name: {', '.join(columns)}; 'text' is the "
            "document; leave one out, or rename it in the source"
        )
    if to == "text" and source.columns.metadata:
        raise UsageError(
            "text shards with one document per line cannot store metadata; leave it out, or write "
            "jsonl or parquet"
        )
    source.check_columns()


def _differences(mine: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """Each difference, in words."""
    for name in ("to", "shard_chars", "shuffle"):
        if mine[name] != theirs[name]:
            yield f"{name} is {theirs[name]} there, {mine[name]} here"
    here, there = mine["source"], theirs["source"]
    yield from source_differences(here, relax_source(here, there))


def _report(counts: list[Path], skipped: DocumentCounts) -> dict[str, Any]:
    """The counts of all shards together."""
    each = [json.loads(path.read_bytes()) for path in counts]
    names = ("num_documents", "num_characters", "num_bytes")
    places = [*skipped.places, *(place for count in each for place in count["places"])]
    return {name: sum(count[name] for count in each) for name in names} | {
        "skipped": skipped.skipped + sum(count["skipped"] for count in each),
        "places": tuple(places[:MOST_PLACES]),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class _RepackWork:
    """How slices and shuffled stretches of a source become shards."""

    source: Source
    to: To
    shard_chars: int
    allow_empty: bool
    advance: Callable[[int], None]

    def run(self, job: ShardJob, directory: Path, seed: int | None, workers: int) -> RepackReport:
        """Write all shards that are missing, number them, and report."""
        skipped = DocumentCounts()
        if seed is None:
            shards = self.of_slices()
        else:
            shards, skipped = self.of_shuffled(Job(directory).unshuffled, seed, workers)
        todo = {name: write for name, write in shards.items() if job.find_done(name) is None}
        numbers = ShardNumbers(job, directory, shards, SHARDS[self.to][0])
        numbers.advance()
        job.run(todo, workers, numbers.advance)
        names = [file for name in shards for file in job.find_done(name) or ()]
        counts = [directory / name for name in names if name.endswith(COUNTS)]
        report = _report(counts, skipped)
        if not report["num_documents"] and not self.allow_empty:
            job.discard(shards)
            found = DocumentCounts(skipped=report["skipped"], places=list(report["places"]))
            raise no_documents(found, len(self.source.files))
        for path in counts:
            path.unlink()
        job.store_report({"files": [path.name for path in numbers.files], **report})
        return RepackReport(files=tuple(numbers.files), **report)

    def of_slices(self) -> Mapping[str, WriteShard]:
        """One shard, or several, for each slice."""
        slices = self.source.slices(self.shard_chars)
        return {f"{k:05d}": self._of_piece(piece) for k, piece in enumerate(slices)}

    def _of_piece(self, piece: Slice) -> WriteShard:
        # A slice has about the right size, and a small excess does not become a shard of its own;
        # a slice that the source could not cut is cut here.
        is_cut = piece.size_bytes <= _SLACK * self.shard_chars
        most_chars = int(_SLACK * self.shard_chars) if is_cut else self.shard_chars
        return self._writer(most_chars, documents_of_slice, self.source, piece)

    def of_shuffled(
        self, unshuffled: Path, seed: int, workers: int
    ) -> tuple[Mapping[str, WriteShard], DocumentCounts]:
        """One shard for each stretch of a random order, and the bad rows of the first pass."""
        from millstream.opening import open
        from millstream.text.tokenize.job_directory import JobDirectory
        from millstream.text.tokenize.report import TokenizeReport
        from millstream.text.tokenize.tokenizing import tokenize

        directory = JobDirectory(unshuffled)
        if directory.mark.exists() or not directory.report.exists():
            tokenize(
                self.source,
                ByteTokenizer(),
                unshuffled,
                add="none",
                workers=workers,
                allow_empty=self.allow_empty,
            )
        report = TokenizeReport.load(directory.report)
        data = open(unshuffled)
        count = max(1, -(-data.num_records // self.shard_chars))
        bounds = [data.num_documents * k // count for k in range(count + 1)]
        shards = {
            f"{k:05d}": self._writer(MOST, documents_of_order, data, seed, bounds[k], bounds[k + 1])
            for k in range(count)
        }
        return shards, DocumentCounts(skipped=report.skipped, places=list(report.places))

    def _writer(
        self, most_chars: int, documents: Callable[..., Iterable[Document]], *where: Any
    ) -> WriteShard:
        """A function that writes the shards of some documents, and their counts."""

        def write(open_new: OpenNew) -> None:
            counts = DocumentCounts()
            columns = self.source.columns.metadata
            shards = ShardSeries(self.to, columns, most_chars, open_new, self.advance)
            try:
                for text, metadata in documents(*where, counts):
                    shards.write(text, metadata)
                shards.finish()
            except BaseException:
                shards.discard()
                raise
            counted = {
                "num_documents": shards.num_documents,
                "num_characters": shards.num_characters,
                "num_bytes": shards.num_bytes,
                "skipped": counts.skipped,
                "places": counts.places,
            }
            open_new(COUNTS).write(json.dumps(counted).encode())

        return write
