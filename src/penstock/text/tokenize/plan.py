"""`TokenizePlan`: what is to be made, agreed on by all who take part."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import xxhash

from penstock.errors import DatasetExistsError, FormatError, UsageError
from penstock.formats.job_marks import PLAN_FORMAT
from penstock.text.marks import Add, Marks
from penstock.text.sources import Slice
from penstock.text.tokenize.annotations import SpanUnit
from penstock.text.tokenize.split import Split

_VERSION = 1
_MOST_TASKS = 99_999  # as many parts a dataset can have
_MIN_TASK_BYTES, _MAX_TASK_BYTES = 1 << 24, 1 << 30
_NUM_TASKS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizePlan:
    """Follows from the source and the options alone, never from who runs it."""

    tokenizer: dict[str, Any]
    """name, fingerprint, vocab_size, bos_id and eos_id"""
    source: dict[str, Any]
    """what the source says of itself: files, their sizes and times, how they are read"""
    add: Add
    """which marks every document gets"""
    shuffle: int | None
    """the seed of the order of documents; None keeps it"""
    split: Split
    """which documents are for validation"""
    with_metadata: bool
    """whether records carry any"""
    span_unit: SpanUnit
    """what the spans of the source count"""
    shard_bytes: int
    """a shard ends with the document that makes it this large"""
    task_bytes: int
    """about as much text is a task"""
    tasks: tuple[Slice, ...] = ()
    """what each task reads; empty until the plan is made"""
    threshold: int | None = None
    """documents with smaller hashes are for validation; of a count, only known in time"""

    @property
    def marks(self) -> Marks:
        """The marks of every document."""
        return Marks(
            bos_id=self.tokenizer["bos_id"] if self.add in ("bos", "both") else None,
            eos_id=self.tokenizer["eos_id"] if self.add in ("eos", "both") else None,
        )

    def describe(self, task: int) -> str:
        """What a task reads, for people."""
        files = self.tasks[task].files or ("the documents",)
        return files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"

    @property
    def identity(self) -> str:
        """Equal for plans that make the same, whether or not their tasks are cut yet."""
        values = asdict(replace(self, tasks=(), threshold=None))
        return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True).encode())

    @property
    def options(self) -> dict[str, Any]:
        """What decides the result, for JSON, with a hash in place of the list of files."""
        files = json.dumps(self.source.get("files", []), sort_keys=True).encode()
        source = {name: value for name, value in self.source.items() if name != "files"}
        head = replace(self, tasks=(), threshold=None, source=source)
        return {"head": json.loads(head.to_json()), "files": xxhash.xxh3_128_hexdigest(files)}

    def differences_from(self, options: dict[str, Any]) -> list[str]:
        """How another plan, of which only its options are known, is not this one, in words."""
        here = self.options
        mine, theirs = (
            TokenizePlan.from_json(json.dumps(each["head"])) for each in (here, options)
        )
        files = [] if here["files"] == options["files"] else ["other files, or changed ones"]
        return [*mine.differences(theirs), *files]

    def to_json(self) -> str:
        """For the file."""
        head = {"format": PLAN_FORMAT, "version": _VERSION, **asdict(self)}
        tasks = ",\n".join(f"  {json.dumps(task)}" for task in head.pop("tasks"))
        return f'{json.dumps(head, indent=1)[:-2]},\n "tasks": [\n{tasks}\n ]\n}}\n'

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """What was written there."""
        values = json.loads(text)
        if values.pop("version") != _VERSION or values.pop("format") != PLAN_FORMAT:
            raise FormatError("the plan of another version of Penstock; finish it with that")
        split = values.pop("split")
        split = Split(**{**split, "files": tuple(split["files"])})
        tasks = tuple(Slice(**task) for task in values.pop("tasks"))
        return cls(split=split, tasks=tasks, **values)

    def relax(self, found: "TokenizePlan") -> "TokenizePlan":
        """The plan that was found, with bad rows treated as in this one, where that may change."""
        return replace(found, source=relax_source(self.source, found.source))

    def differences(self, found: "TokenizePlan") -> list[str]:
        """How a plan that was found is not this one, in words."""
        return list(_differences(self, found))

    def check_agrees(self, found: "TokenizePlan", path: Path) -> None:
        """Refuse to go on with a plan that is not this one."""
        differences = self.differences(found)
        if differences:
            more = "; …" if len(differences) > 5 else ""
            raise DatasetExistsError(
                f"{path}: cannot go on with this plan: {'; '.join(differences[:5])}{more}; choose "
                "another directory, or remove this one"
            )


def choose_task_bytes(total_bytes: int) -> int:
    """A size that makes some hundred tasks, none too small to be worth its files."""
    return min(max(total_bytes // _NUM_TASKS, _MIN_TASK_BYTES), _MAX_TASK_BYTES)


def check_number_of_tasks(tasks: tuple[Slice, ...], task_bytes: int) -> None:
    """Refuse more tasks than a dataset has parts."""
    if len(tasks) > _MOST_TASKS:
        raise UsageError(
            f"task_bytes={task_bytes:,} makes {len(tasks):,} tasks, more than {_MOST_TASKS:,}; "
            "give more"
        )


def relax_source(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The source that was found, with bad rows treated as in this one, where that may change.

    What is done while they are refused has none: they may be skipped from then on, and rows that
    were too long may be long enough.
    """
    there = dict(theirs)
    if there["bad_rows"] == "refuse":
        there["bad_rows"] = mine["bad_rows"]
        there["max_document_bytes"] = max(mine["max_document_bytes"], there["max_document_bytes"])
    return there


def _differences(mine: TokenizePlan, theirs: TokenizePlan) -> Iterator[str]:
    """What differs, in words."""
    if mine.tokenizer["fingerprint"] != theirs.tokenizer["fingerprint"]:
        yield f"another tokenizer ({theirs.tokenizer['name']} there, {mine.tokenizer['name']} here)"
    yield from source_differences(mine.source, theirs.source)
    for name in ("add", "shuffle", "span_unit", "shard_bytes", "task_bytes"):
        there, here = getattr(theirs, name), getattr(mine, name)
        if there != here:
            yield f"{name} is {there} there, {here} here"
    if mine.split != theirs.split:
        yield f"split is {theirs.split.rule!r} there, {mine.split.rule!r} here"


def source_differences(mine: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """What differs between two sources, in words."""
    here, there = json.loads(json.dumps(mine)), theirs
    if here.get("iterable"):
        yield "documents that come from Python cannot be read a second time"
    for name in sorted({*here, *there} - {"files"}):
        if here.get(name) != there.get(name):
            yield f"{name} is {there.get(name)} there, {here.get(name)} here"
    my_files, their_files = _by_path(here), _by_path(there)
    for path in sorted({*my_files, *their_files}):
        if path not in their_files:
            yield f"{path} was not among the files"
        elif path not in my_files:
            yield f"{path} is not among the files any more"
        elif my_files[path] != their_files[path]:
            yield f"{path} has changed since"


def _by_path(source: dict[str, Any]) -> dict[str, Any]:
    return {file["path"]: file for file in source.get("files", [])}
