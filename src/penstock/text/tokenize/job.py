"""`tokenize`: the stages of a job, one after the other; and `finish`, its end."""

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np

from penstock.arguments import integer, one_of
from penstock.errors import (
    DatasetExistsError,
    MissingDataError,
    PenstockError,
    SplitsError,
    UsageError,
)
from penstock.formats.checksums import publish_checked
from penstock.formats.splits import choose, divide
from penstock.progress import OnProgress
from penstock.text.marks import Add, choose_marks
from penstock.text.sources import Paths, Source
from penstock.text.sources.listing import ALL
from penstock.text.tokenize.annotations import SpanUnit
from penstock.text.tokenize.executors import (
    Executor,
    TaskFailedError,
    run_stage,
)
from penstock.text.tokenize.hash_stage import HashStage
from penstock.text.tokenize.job_directory import JobDirectory, is_finished
from penstock.text.tokenize.plan import TokenizePlan, check_number_of_tasks, choose_task_bytes
from penstock.text.tokenize.report import TokenizeReport
from penstock.text.tokenize.split import make_split, threshold_of_fraction
from penstock.text.tokenize.stage import Stage
from penstock.text.tokenize.stage_progress import StageProgress
from penstock.text.tokenize.statistics import Statistics, no_documents
from penstock.text.tokenize.tokenize_stage import TokenizeStage
from penstock.text.tokenizers.adapter import adapt
from penstock.text.tokenizers.dataset_tokenizer import files_of
from penstock.text.tokenizers.loading import Engine, load_tokenizer
from penstock.text.tokenizers.tokenizer import Tokenizer
from penstock.write.joining import join_parts

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def tokenize(
    source: Source | Paths,
    tokenizer: Tokenizer | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    engine: Engine = "auto",
    add: Add | None = None,
    shuffle: int | None = None,
    val_files: str | Sequence[str] = (),
    val_fraction: float | None = None,
    val_count: int | None = None,
    split_by: str = "text",
    span_unit: SpanUnit = "chars",
    check: bool = True,
    workers: int | None = None,
    executor: Executor = "processes",
    task: tuple[int, int] | None = None,
    shard_bytes: int = 1 << 30,
    task_bytes: int | None = None,
    allow_empty: bool = False,
    progress: OnProgress | None = None,
) -> TokenizeReport | None:
    r"""Make a dataset of text, in the directory `path`; call it again to go on after a crash.

    Arguments:
        source: files, directories or patterns; or a `Source`, which says more about them.
        tokenizer: its file, see `load_tokenizer`; or any object with `encode`, such as a
            `Tokenizer` or an encoding of tiktoken. It is kept beside the dataset, see
            `Dataset.tokenizer`, unless only Python has it.
        engine: what computes its tokens; the fastest that can.
        add: the marks of every document: 'eos', 'bos', 'both' or 'none'; by default 'eos' if the
            tokenizer has one, else 'bos'.
        shuffle: a seed, to put the documents of all files into one random order.
        val_files, val_fraction, val_count: which documents become `path/val`, and all others
            `path/train`: those of files whose name or path matches a pattern, a fraction of all,
            or so many. The last two go by the hash of `split_by`: the text, or a metadata column.
        span_unit: what the spans of the source count, 'chars' or 'tokens'.
        check: compare a sample of a fast engine's tokens with the reference engine's.
        workers: processes, or tasks at a time on Ray; as many as there are processors.
        executor: 'processes', or 'ray'.
        task: `(i, n)` runs only the tasks with number % n == i, for the i-th of n machines, and
            gives no report; `penstock.finish(path)` comes when all have ended.
        shard_bytes, task_bytes: the size of shards, and of the text that is one task.
        allow_empty: write a dataset without tokens, where the source has none; else it is an error.
        progress: is called with a `Progress` a few times a second.

    >>> _ = (tmp / "corpus.txt").write_text("a line\nanother one\n")
    >>> report = tokenize(tmp / "corpus.txt", "bytes", tmp / "out", workers=1)
    >>> report.documents, report.tokens
    (2, 19)
    >>> penstock.open(tmp / "out").document(0).tolist()
    [97, 32, 108, 105, 110, 101, 256]
    """
    started = time.perf_counter()
    workers = None if workers is None else integer("workers", workers, 1)
    one_of("executor", executor, get_args(Executor))
    index, count = _share(task)
    if not isinstance(source, Source):
        paths = source
        source = with_held_out(lambda split: Source(paths, split=split), val_files)
    if not source.files and (executor == "ray" or task is not None):
        raise UsageError("documents that come from Python are read by this process alone")
    source.check_columns()
    loaded, reference = _load(tokenizer, engine, check=check)
    split = make_split(val_files, val_fraction, val_count, split_by, source.columns.metadata)
    split.check_files(source.files)
    source.warn_of_missing_keys()
    head = TokenizePlan(
        tokenizer={
            name: getattr(loaded, name)
            for name in ("name", "fingerprint", "vocab_size", "bos_id", "eos_id")
        },
        source=source.identity(),
        add=choose_marks(add, loaded).add,
        shuffle=None if shuffle is None else integer("shuffle", shuffle, 0, (1 << 64) - 1),
        split=split,
        with_metadata=bool(source.columns.metadata or source.columns.spans),
        span_unit=one_of("span_unit", span_unit, get_args(SpanUnit)),
        shard_bytes=integer("shard_bytes", shard_bytes, 1),
        task_bytes=_task_bytes(task_bytes, source),
    )
    place = JobDirectory(Path(path).absolute())
    finished = None if place.plan.exists() else TokenizeReport.find(place.report)
    if finished and finished.plan == head.identity and not head.source.get("iterable"):
        return None if task is not None else finished
    if finished:
        raise _something_else(place, head, finished)
    runner = _Runner(place, executor, workers, progress)

    with place.work(head, lambda: _cut(head, source), lambda: files_of(loaded)) as plan:
        start_seconds = time.perf_counter() - started
        resumed = len(plan.tasks)
        if not place.is_written(plan):
            plan = _choose_validation(runner, plan, source, loaded)
            stage = TokenizeStage(
                place=place, plan=plan, source=source, tokenizer=loaded, reference=reference
            )
            resumed = runner.run(stage, list(range(index, len(plan.tasks), count)))
        if task is not None:
            return None
        return _finish(runner, plan, started, start_seconds, resumed, allow_empty=allow_empty)


def with_held_out(make: Callable[[str | None], Source], val_files: str | Sequence[str]) -> Source:
    """Make a source; one of several splits only if `val_files` hold out all but one of them."""
    try:
        return make(None)
    except SplitsError:
        if not val_files:
            raise
    source = make(ALL)
    split = make_split(val_files, None, None, "text", ())
    root = os.path.commonpath([os.path.dirname(file) for file in source.files])  # noqa: PTH120
    kept = [os.path.relpath(file, root) for file in source.files if not split.matches(file)]
    choose(f"{root} without val_files", divide(kept), of=" of Source")
    return source


def _something_else(
    place: JobDirectory, head: TokenizePlan, finished: TokenizeReport
) -> DatasetExistsError:
    """Say how a finished dataset differs from what is wanted."""
    try:
        differences = head.differences_from(finished.options)
    except (ValueError, TypeError, KeyError, AttributeError):  # an older version wrote the report
        differences = []
    more = "; …" if len(differences) > 5 else ""
    what = f": {'; '.join(differences[:5])}{more}" if differences else ", of other files or options"
    return DatasetExistsError(
        f"{place.out}: a finished dataset is here{what}; choose another path, or remove this one"
    )


def _cut(head: TokenizePlan, source: Source) -> TokenizePlan:
    """The plan with its tasks."""
    tasks = tuple(source.slices(head.task_bytes))
    check_number_of_tasks(tasks, head.task_bytes)
    fraction = head.split.fraction
    return replace(
        head, tasks=tasks, threshold=threshold_of_fraction(fraction) if fraction else None
    )


def _choose_validation(
    runner: "_Runner", plan: TokenizePlan, source: Source, tokenizer: Tokenizer
) -> TokenizePlan:
    """The plan with the hashes that a count of documents means, for which all are hashed first."""
    if plan.split.kind != "count" or plan.threshold is not None:
        return plan
    hashing = HashStage(place=runner.place, plan=plan, source=source, tokenizer=tokenizer)
    runner.run(hashing, list(range(len(plan.tasks))))
    try:
        return runner.place.set_threshold(hashing.threshold)
    except UsageError:  # too few documents: there is nothing to go on with
        runner.place.clear()
        raise


def finish(
    path: Path,
    *,
    workers: int | None = None,
    allow_empty: bool = False,
    progress: OnProgress | None = None,
) -> TokenizeReport:
    """End a job whose tasks have all been run: shuffle, join the parts, report."""
    started = time.perf_counter()
    place = JobDirectory(path.absolute())
    plan = place.read_plan()
    if plan is None:
        raise MissingDataError(f"{place.plan}: there is no plan to finish")
    workers = None if workers is None else integer("workers", workers, 1)
    runner = _Runner(place, "processes", workers, progress)
    start_seconds = time.perf_counter() - started
    num_tasks = len(plan.tasks)
    return _finish(runner, plan, started, start_seconds, num_tasks, allow_empty=allow_empty)


def _finish(
    runner: "_Runner",
    plan: TokenizePlan,
    started: float,
    start_seconds: float,
    resumed: int,
    *,
    allow_empty: bool,
) -> TokenizeReport:
    place, numbers = runner.place, range(len(plan.tasks))
    with place.hold("finish", wait=True) as is_ours:
        if is_ours and place.plan.exists():  # else another runner has been here
            if not place.is_written(plan):
                place.refuse_missing("tokenize", numbers, plan)
                if not allow_empty:
                    _refuse_empty(place, plan)
                num_parts = dict.fromkeys(plan.split.sides, len(numbers))
                if plan.shuffle is not None:
                    num_parts = _shuffle(runner, plan)
                for side, count in num_parts.items():
                    if not is_finished(place.out / side):
                        place.keep_tokenizer(side)
                        join_parts(place.out / side, count)
            if not place.report.exists():
                report = _sum_up(place, plan, started, start_seconds, resumed)
                publish_checked(place.report, report.to_json())
        if is_ours:
            place.clear()
    return TokenizeReport.load(place.report)


def _sum_up(
    place: JobDirectory, plan: TokenizePlan, started: float, start_seconds: float, resumed: int
) -> TokenizeReport:
    sums = _count(place, plan)
    seconds = time.perf_counter() - started
    return TokenizeReport.of(
        sums, plan, wall_seconds=seconds, start_seconds=start_seconds, resumed=resumed
    )


def _count(place: JobDirectory, plan: TokenizePlan) -> Statistics:
    """What all tasks have counted."""
    sums = Statistics()
    for number in range(len(plan.tasks)):
        path = place.statistics("tokenize", number)
        sums.add(Statistics.from_json(path.read_bytes()))
    return sums


def _refuse_empty(place: JobDirectory, plan: TokenizePlan) -> None:
    """Refuse to make a dataset without tokens, and remove what was begun."""
    sums = _count(place, plan)
    if sums.tokens == 0:
        place.remove_parts(plan)
        place.clear()
        raise no_documents(sums, num_files=len(plan.source.get("files", ())))


def _shuffle(runner: "_Runner", plan: TokenizePlan) -> dict[str, int]:
    """Write the parts of all sides anew; how many they are."""
    from penstock.text.tokenize.shuffle_stage import (  # which most jobs do without
        ShuffleStage,
        cut_parts,
    )

    place = runner.place
    for side in plan.split.sides:
        if not is_finished(place.unshuffled / side):
            join_parts(place.unshuffled / side, len(plan.tasks))
    parts = cut_parts(place, plan)
    runner.run(ShuffleStage(place=place, plan=plan, parts=parts), list(range(len(parts))))
    return {side: sum(part.side == side for part in parts) for side in plan.split.sides}


@dataclass(frozen=True, slots=True)
class _Runner:
    """Who runs tasks, and who is told of it."""

    place: JobDirectory
    executor: Executor
    workers: int | None
    progress: OnProgress | None

    def run(self, stage: Stage, numbers: list[int]) -> int:
        """Run the tasks that are not done; how many were."""
        progress = StageProgress(stage, numbers, self.progress)
        resumed = len(progress.done)
        try:
            run_stage(stage, progress.todo, self.executor, self.workers, progress)
        except TaskFailedError as failed:
            done = f"{len(progress.done):,} of {len(numbers):,} tasks are done"
            raise _explain(failed, stage, done) from failed.__cause__
        return resumed


def _explain(failed: TaskFailedError, stage: Stage, done: str) -> BaseException:
    """What went wrong with a task, and what to do."""
    error, again = failed.error, "run the same command again"
    if type(error) is PenstockError:  # its process died
        what = f"task {failed.number:,} ({stage.describe(failed.number)})"
        return PenstockError(f"{what}: {error}; {done}; {again}")
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        reason = f"{os.strerror(error.errno)}; {done}; make room and {again}"
        return OSError(error.errno, reason, error.filename)
    return error


def _share(task: tuple[int, int] | None) -> tuple[int, int]:
    if task is None:
        return 0, 1
    if not isinstance(task, tuple | list) or len(task) != 2:
        raise UsageError(f"task is {task!r}; it must be (i, n), for the i-th of n shares, from 0")
    index, count = task
    count = integer("n of task=(i, n)", count, 1)
    return integer("i of task=(i, n)", index, 0, count - 1), count


def _load(
    tokenizer: Tokenizer | str | os.PathLike[str], engine: Engine, *, check: bool
) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer, and the one that it is checked against."""
    if not isinstance(tokenizer, str | os.PathLike):
        return adapt(tokenizer), None
    loaded = load_tokenizer(tokenizer, engine)
    _warm_up(loaded)
    if not check or loaded.engine != "fast":
        return loaded, None
    try:
        reference = load_tokenizer(tokenizer, "reference")
        _warm_up(reference)
    except UsageError as error:
        raise UsageError(
            f"{error}, to compare a sample of the tokens with what it gives; or do without that: "
            "check=False (--no-check)"
        ) from None
    return loaded, reference


def _warm_up(tokenizer: Tokenizer) -> None:
    """Make here, once, what workers that are forked from this process would make each."""
    if tokenizer.engine != "huggingface":  # which has made all, but for threads that do not fork
        tokenizer.encode(np.zeros(1, np.uint8), np.array([0, 1]))


def _task_bytes(wanted: int | None, source: Source) -> int:
    if wanted is not None:
        return integer("task_bytes", wanted, 1)
    return choose_task_bytes(sum(Path(file).stat().st_size for file in source.files))
