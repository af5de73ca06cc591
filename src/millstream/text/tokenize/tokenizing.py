"""`tokenize`: agree on a plan, run its stages one after the other, finish the job."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from millstream.arguments import integer, one_of
from millstream.copying.outputs import output_directory
from millstream.errors import SplitsError, UsageError
from millstream.formats.splits import choose, divide
from millstream.progress import OnProgress
from millstream.remote.options import Remote
from millstream.remote.urls import is_remote
from millstream.text.chats.chat import Chat
from millstream.text.chats.loading import renderer_of
from millstream.text.marks import Add, choose_marks
from millstream.text.sources import Paths, Source
from millstream.text.sources.listing import ALL
from millstream.text.tokenize.annotations import SpanUnit
from millstream.text.tokenize.executors import Executor
from millstream.text.tokenize.finishing import JobEnd
from millstream.text.tokenize.hash_stage import HashStage
from millstream.text.tokenize.job_directory import JobDirectory
from millstream.text.tokenize.plan import TokenizePlan, check_number_of_tasks, choose_task_bytes
from millstream.text.tokenize.report import TokenizeReport
from millstream.text.tokenize.split import Split, threshold_of_fraction
from millstream.text.tokenize.stage_runner import StageRunner
from millstream.text.tokenize.tokenize_stage import TokenizeStage
from millstream.text.tokenizers.adapter import find_tokenizer
from millstream.text.tokenizers.dataset_tokenizer import files_of
from millstream.text.tokenizers.loading import Engine, load_tokenizer
from millstream.text.tokenizers.tokenizer import Tokenizer


def tokenize(
    source: Source | Paths,
    tokenizer: Tokenizer | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    engine: Engine = "auto",
    add: Add | None = None,
    shuffle: int | None = None,
    split: Split | None = None,
    span_unit: SpanUnit = "chars",
    chat: Chat | None = None,
    check: bool = True,
    workers: int | None = None,
    executor: Executor = "processes",
    task: tuple[int, int] | None = None,
    shard_bytes: int = 1 << 30,
    task_bytes: int | None = None,
    allow_empty: bool = False,
    progress: OnProgress | None = None,
    remote: Remote | None = None,
) -> TokenizeReport | None:
    r"""Make a dataset of text, in the directory `path`. To resume after a crash, call it again.

    If `path` is a URL, each shard is made in the user's cache, uploaded and freed there.

    Arguments:
        source: files, directories or patterns; or a `Source`, which says more about them.
        tokenizer: its file, see `load_tokenizer`; or any object with `encode`, such as a
            `Tokenizer` or an encoding of tiktoken. It is stored beside the dataset, see
            `Dataset.tokenizer`, unless it exists only in Python.
        engine: what computes the tokens; by default the fastest that can.
        add: the marks of every document: 'eos', 'bos', 'both' or 'none'; by default 'eos' if the
            tokenizer has one, else 'bos'.
        shuffle: a seed, to put the documents of all files into one random order.
        split: which documents become `path/val`, as in `millstream.Split(fraction=0.01)`; all
            others become `path/train`. By default one dataset is written to `path`.
        span_unit: what the spans of the source count, 'chars' or 'tokens'.
        chat: if rows have conversations, how they become text. Records then have a field
            `loss_mask`, by which views mask labels.
        check: compare a sample of a fast engine's tokens with the reference engine's.
        workers: the number of processes, or of tasks at a time on Ray; by default one per
            processor.
        executor: 'processes' or 'ray'.
        task: `(i, n)` runs only the tasks with number % n == i, for the i-th of n machines, and
            returns None. When all machines are done, call `millstream.finish(path)`.
        shard_bytes, task_bytes: the size of a shard, and of the text of one task.
        allow_empty: write a dataset without tokens if the source has none, which is an error
            otherwise.
        progress: is called with a `Progress` a few times a second.
        remote: how `path` is reached, if it is a URL.

    >>> _ = (tmp / "corpus.txt").write_text("a line\nanother one\n")
    >>> report = tokenize(tmp / "corpus.txt", "bytes", tmp / "out", workers=1)
    >>> report.documents, report.tokens
    (2, 19)
    >>> millstream.open(tmp / "out").document(0).tolist()
    [97, 32, 108, 105, 110, 101, 256]
    """
    started = time.perf_counter()
    workers = None if workers is None else integer("workers", workers, 1)
    one_of("executor", executor, get_args(Executor))
    share = _check_share(task)
    if is_remote(path):
        _refuse_remote(path, executor, is_shuffled_share=None not in (task, shuffle))
    if split is not None and not isinstance(split, Split):
        raise UsageError(
            f"split is {split!r:.60}; it must be a millstream.Split, as in "
            "millstream.Split(fraction=0.01)"
        )
    if not isinstance(source, Source):
        paths = source
        source = make_source(lambda name: Source(paths, split=name), split)
    if not source.files and (executor == "ray" or task is not None):
        raise UsageError(
            "documents that come from Python can only be read by this process; leave out "
            "executor='ray' and task"
        )
    if chat is not None:
        source = source.as_chats(renderer_of(chat, tokenizer))
    source.check_columns()
    loaded, reference = _load(tokenizer, engine, check=check, spells_specials=chat is not None)
    if split is not None:
        split.check(source.files, source.columns.metadata)
    source.warn_of_missing_keys()
    head = TokenizePlan(
        tokenizer={
            name: getattr(loaded, name)
            for name in ("name", "fingerprint", "vocab_size", "bos_id", "eos_id")
        },
        source=source.identity(),
        add=choose_marks(add or (None if chat is None else chat.default_add), loaded).add,
        shuffle=None if shuffle is None else integer("shuffle", shuffle, 0, (1 << 64) - 1),
        split=split,
        with_metadata=bool(source.columns.metadata or source.columns.spans),
        span_unit=one_of("span_unit", span_unit, get_args(SpanUnit)),
        shard_bytes=integer("shard_bytes", shard_bytes, 1),
        task_bytes=_check_task_bytes(task_bytes, source),
    )
    with output_directory(
        path,
        "tokenize",
        remote=remote,
        progress=progress,
        task=None if task is None else share,
    ) as output:
        job = _TokenizeJob(
            directory=JobDirectory(output.directory),
            head=head,
            source=source,
            tokenizer=loaded,
            reference=reference,
            runner=StageRunner(executor, workers, progress, output.wait_for_room),
        )
        return job.run(share, started, finishes=task is None, allow_empty=allow_empty)


def make_source(make: Callable[[str | None], Source], split: Split | None) -> Source:
    """Make a source. Of several splits of the files, `split` must hold out all but one."""
    try:
        return make(None)
    except SplitsError:
        if split is None or split.kind != "files":
            raise
    source = make(ALL)
    directories = [os.path.dirname(file) for file in source.files]  # noqa: PTH120
    # Not commonpath: URLs and paths may be mixed.
    root = os.path.commonprefix([f"{each}/" for each in directories]).rpartition("/")[0]  # noqa: RUF071
    kept = [file[len(root) + 1 :] for file in source.files if not split.matches(file)]
    choose(f"{root} without the files for validation", divide(kept), of=" of Source")
    return source


@dataclass(frozen=True, kw_only=True, slots=True)
class _TokenizeJob:
    """One call of `tokenize`, with its arguments checked."""

    directory: JobDirectory
    head: TokenizePlan
    """what is wanted, with no tasks yet"""
    source: Source
    tokenizer: Tokenizer
    reference: Tokenizer | None
    runner: StageRunner

    def find_report(self) -> TokenizeReport | None:
        """The report, if an earlier call has finished this job."""
        if self.directory.mark.exists():
            return None
        finished = TokenizeReport.find(self.directory.report)
        if finished is None:
            return None
        if finished.plan == self.head.identity and not self.head.source.get("iterable"):
            return finished
        try:
            differences = self.head.differences_from(finished.options)
        except (ValueError, TypeError, KeyError, AttributeError):  # by an older version
            differences = []
        self.directory.refuse_to_replace(differences or ["of other files or options"])
        return None

    def begin_mark(self) -> str:
        """The plan, with its tasks; the tokenizer's files are stored beside it."""
        tasks = tuple(self.source.slices(self.head.task_bytes))
        check_number_of_tasks(tasks, self.head.task_bytes)
        fraction = self.head.split.fraction if self.head.split else None
        threshold = threshold_of_fraction(fraction) if fraction else None
        self.directory.store_tokenizer(files_of(self.tokenizer))
        return replace(self.head, tasks=tasks, threshold=threshold).to_json()

    def continue_mark(self, begun: bytes) -> tuple[str, list[str]]:
        """The plan that was begun, with bad rows treated as here, and how it differs."""
        relaxed = self.head.relax(TokenizePlan.from_json(begun))
        return relaxed.to_json(), self.head.differences(relaxed)

    def run(
        self, share: tuple[int, int], started: float, *, finishes: bool, allow_empty: bool
    ) -> TokenizeReport | None:
        """Run a share of the tasks; then finish the job, if this call `finishes` it."""
        directory, (index, count) = self.directory, share
        with directory.begin(self) as mark:
            if mark is None:
                return self.find_report() if finishes else None
            plan = TokenizePlan.from_json(mark)
            start_seconds = time.perf_counter() - started
            resumed = len(plan.tasks)
            if not directory.is_written(plan):
                plan = self._choose_validation(plan)
                stage = TokenizeStage(
                    directory=directory,
                    plan=plan,
                    source=self.source,
                    tokenizer=self.tokenizer,
                    reference=self.reference,
                )
                resumed = self.runner.run(stage, list(range(index, len(plan.tasks), count)))
            if not finishes:
                return None
            end = JobEnd(
                directory=directory, plan=plan, runner=self.runner, allow_empty=allow_empty
            )
            return end.finish(started=started, start_seconds=start_seconds, resumed=resumed)

    def _choose_validation(self, plan: TokenizePlan) -> TokenizePlan:
        """The plan with a threshold: a split by count hashes all documents first."""
        if plan.split is None or plan.split.kind != "count" or plan.threshold is not None:
            return plan
        hashing = HashStage(
            directory=self.directory, plan=plan, source=self.source, tokenizer=self.tokenizer
        )
        self.runner.run(hashing, list(range(len(plan.tasks))))
        try:
            return self.directory.set_threshold(hashing.threshold)
        except UsageError:  # too few documents: there is nothing to resume
            self.directory.clear()
            raise


def _refuse_remote(
    path: str | os.PathLike[str], executor: Executor, *, is_shuffled_share: bool
) -> None:
    """Refuse what needs a directory that all machines share."""
    if executor == "ray" or is_shuffled_share:
        what = "executor='ray' needs" if executor == "ray" else "task with shuffle needs"
        raise UsageError(
            f"{os.fspath(path)}: {what} a directory that all machines share, which a store is not; "
            "write to a shared file system, and upload the finished dataset with millstream copy"
        )


def _check_share(task: tuple[int, int] | None) -> tuple[int, int]:
    """Which tasks this call runs: those with number % n == i."""
    if task is None:
        return 0, 1
    if not isinstance(task, tuple | list) or len(task) != 2:
        raise UsageError(f"task is {task!r}; it must be (i, n), for the i-th of n shares, from 0")
    index, count = task
    count = integer("n of task=(i, n)", count, 1)
    return integer("i of task=(i, n)", index, 0, count - 1), count


def _check_task_bytes(wanted: int | None, source: Source) -> int:
    if wanted is not None:
        return integer("task_bytes", wanted, 1)
    return choose_task_bytes(source.size_bytes)


def _load(
    tokenizer: Tokenizer | str | os.PathLike[str],
    engine: Engine,
    *,
    check: bool,
    spells_specials: bool,
) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer, and the one that a sample of its tokens is compared with."""
    loaded = find_tokenizer(tokenizer, engine, spells_specials=spells_specials)
    if not isinstance(tokenizer, str | os.PathLike):
        return loaded, None
    _warm_up(loaded)
    if not check or loaded.engine != "fast":
        return loaded, None
    try:
        reference = load_tokenizer(tokenizer, "reference")
        _warm_up(reference)
    except UsageError as error:
        raise UsageError(
            f"{error}, to compare a sample of the tokens with the reference engine's; or skip "
            "that check with check=False (--no-check)"
        ) from None
    return loaded, reference


def _warm_up(tokenizer: Tokenizer) -> None:
    """Build tables here, once, that every worker forked from this process would build again."""
    if tokenizer.engine != "huggingface":  # built already, and its threads do not survive a fork
        tokenizer.encode(np.zeros(1, np.uint8), np.array([0, 1]))
