"""`TokenizePlan`: what a tokenize job makes, agreed on by all runners."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import xxhash

from millstream.errors import FormatError, UsageError
from millstream.formats.job_marks import PLAN_FORMAT
from millstream.formats.loss_masks import LOSS_MASK
from millstream.formats.shard import TOKEN
from millstream.text.marks import Add, Marks
from millstream.text.sources import Slice
from millstream.text.tokenize.annotations import SpanUnit
from millstream.text.tokenize.source_differences import relax_source, source_differences
from millstream.text.tokenize.split import NO_SPLIT, TRAIN, VAL, Split

_VERSION = 1
_MOST_TASKS = 99_999  # the most parts that a dataset can have
_MIN_TASK_BYTES, _MAX_TASK_BYTES = 1 << 24, 1 << 30
_NUM_TASKS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizePlan:
    """Depends on the source and the options alone, never on who runs it."""

    tokenizer: dict[str, Any]
    """name, fingerprint, vocab_size, bos_id and eos_id"""
    source: dict[str, Any]
    """the identity of the source: files, their sizes and times, how they are read"""
    add: Add
    """which marks every document gets"""
    shuffle: int | None
    """the seed of the order of documents; None keeps their order"""
    split: Split | None
    """which documents are for validation; None for one dataset of all"""
    with_metadata: bool
    """True if records carry metadata"""
    span_unit: SpanUnit
    """what the spans of the source count"""
    shard_bytes: int
    """a shard ends with the document that makes it this large"""
    task_bytes: int
    """about how much text one task reads"""
    tasks: tuple[Slice, ...] = ()
    """what each task reads; empty until the plan is made"""
    threshold: int | None = None
    """documents with smaller hashes are for validation; None until a count has been hashed"""

    @property
    def masks_loss(self) -> bool:
        """True if records say which tokens are trained on, as chats do."""
        return "chat" in self.source

    @property
    def group_size(self) -> int:
        """How many neighbouring documents belong together: 2 for pairs."""
        return 2 if self.masks_loss and self.source["chat"]["chosen"] is not None else 1

    @property
    def fields(self) -> list[tuple[str, str]] | None:
        """The fields of a record; None for a token alone."""
        token = "<u2" if self.tokenizer["vocab_size"] <= 1 << 16 else "<u4"
        return [(TOKEN, token), (LOSS_MASK, "u1")] if self.masks_loss else None

    @property
    def sides(self) -> tuple[str, ...]:
        """The datasets to write, by the names of their directories; "" if there is only one."""
        return ("",) if self.split is None else (TRAIN, VAL)

    def split_note(self, side: str) -> dict[str, str]:
        """What the manifest of a side says about the split."""
        return {} if self.split is None else {"name": side, "rule": self.split.rule}

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
        """Equal for plans that make the same dataset, whether or not their tasks are cut yet."""
        values = replace(self, tasks=(), threshold=None)._to_dict()
        return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True).encode())

    def _to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"split": self.split.to_json() if self.split else NO_SPLIT}

    @property
    def options(self) -> dict[str, Any]:
        """What decides the result, for JSON, with a hash instead of the list of files."""
        files = json.dumps(self.source.get("files", []), sort_keys=True).encode()
        source = {name: value for name, value in self.source.items() if name != "files"}
        head = replace(self, tasks=(), threshold=None, source=source)
        return {"head": json.loads(head.to_json()), "files": xxhash.xxh3_128_hexdigest(files)}

    def differences_from(self, options: dict[str, Any]) -> list[str]:
        """How this plan differs from one of which only the options are known, in words."""
        here = self.options
        mine, theirs = (
            TokenizePlan.from_json(json.dumps(each["head"])) for each in (here, options)
        )
        files = [] if here["files"] == options["files"] else ["other files, or changed ones"]
        return [*mine.differences(theirs), *files]

    def to_json(self) -> str:
        """The content of the file."""
        head = {"format": PLAN_FORMAT, "version": _VERSION, **self._to_dict()}
        tasks = ",\n".join(f"  {json.dumps(task)}" for task in head.pop("tasks"))
        return f'{json.dumps(head, indent=1)[:-2]},\n "tasks": [\n{tasks}\n ]\n}}\n'

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the content of the file."""
        values = json.loads(text)
        if values.pop("version") != _VERSION or values.pop("format") != PLAN_FORMAT:
            raise FormatError(
                "the plan is of another version of Millstream; finish it with that one"
            )
        split = Split.from_json(values.pop("split"))
        tasks = tuple(Slice(**task) for task in values.pop("tasks"))
        return cls(split=split, tasks=tasks, **values)

    def relax(self, found: "TokenizePlan") -> "TokenizePlan":
        """The plan that was found, with bad rows treated as in this one where that is possible."""
        return replace(found, source=relax_source(self.source, found.source))

    def differences(self, found: "TokenizePlan") -> list[str]:
        """How this plan differs from the one that was found, in words."""
        return list(_differences(self, found))


def choose_task_bytes(total_bytes: int) -> int:
    """A size that makes a few hundred tasks, none too small to be worth its files."""
    return min(max(total_bytes // _NUM_TASKS, _MIN_TASK_BYTES), _MAX_TASK_BYTES)


def check_number_of_tasks(tasks: tuple[Slice, ...], task_bytes: int) -> None:
    """Refuse more tasks than a dataset can have parts."""
    if len(tasks) > _MOST_TASKS:
        raise UsageError(
            f"task_bytes={task_bytes:,} makes {len(tasks):,} tasks, more than {_MOST_TASKS:,}; "
            "raise it"
        )


def _differences(mine: TokenizePlan, theirs: TokenizePlan) -> Iterator[str]:
    """Each difference, in words."""
    if mine.tokenizer["fingerprint"] != theirs.tokenizer["fingerprint"]:
        yield f"another tokenizer ({theirs.tokenizer['name']} there, {mine.tokenizer['name']} here)"
    yield from source_differences(mine.source, theirs.source)
    for name in ("add", "shuffle", "span_unit", "shard_bytes", "task_bytes"):
        there, here = getattr(theirs, name), getattr(mine, name)
        if there != here:
            yield f"{name} is {there} there, {here} here"
    if mine.split != theirs.split:
        there, here = (each.split.rule if each.split else "none" for each in (theirs, mine))
        yield f"split is {there!r} there, {here!r} here"
