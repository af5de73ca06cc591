"""The end of a tokenize job: shuffle, join the parts, report, and clear away the rest."""

import time
from dataclasses import dataclass
from pathlib import Path

from millstream.arguments import integer
from millstream.errors import MissingDataError
from millstream.formats.checksums import publish_checked
from millstream.progress import OnProgress
from millstream.text.tokenize.document_counts import DocumentCounts, no_documents
from millstream.text.tokenize.job_directory import JobDirectory, is_finished
from millstream.text.tokenize.plan import TokenizePlan
from millstream.text.tokenize.report import TokenizeReport
from millstream.text.tokenize.stage_runner import StageRunner
from millstream.write.joining import join_parts, remove_joined_parts


def finish_tokenize_job(
    path: Path,
    *,
    workers: int | None = None,
    allow_empty: bool = False,
    progress: OnProgress | None = None,
) -> TokenizeReport:
    """Finish a job whose tasks have all been run."""
    started = time.perf_counter()
    directory = JobDirectory(path.absolute())
    plan = directory.read_plan()
    if plan is None:
        raise MissingDataError(f"{directory.mark}: no such file, so no tokenize job to finish")
    workers = None if workers is None else integer("workers", workers, 1)
    start_seconds = time.perf_counter() - started
    return JobEnd(
        directory=directory,
        plan=plan,
        runner=StageRunner("processes", workers, progress),
        allow_empty=allow_empty,
    ).finish(started=started, start_seconds=start_seconds, resumed=len(plan.tasks))


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnd:
    """What is left to do when all tasks of a plan have been run. Any runner may do it, once."""

    directory: JobDirectory
    plan: TokenizePlan
    runner: StageRunner
    allow_empty: bool

    def finish(self, *, started: float, start_seconds: float, resumed: int) -> TokenizeReport:
        """Write the datasets and the report, unless another runner has."""
        directory = self.directory
        with directory.hold("finish", wait=True) as is_ours:
            if is_ours and directory.mark.exists():  # else another runner has been here
                if not directory.is_written(self.plan):
                    self._write_datasets()
                for side in self.plan.sides:
                    remove_joined_parts(directory.out / side)
                if not directory.report.exists():
                    report = TokenizeReport.of(
                        self._count(),
                        self.plan,
                        wall_seconds=time.perf_counter() - started,
                        start_seconds=start_seconds,
                        resumed=resumed,
                    )
                    publish_checked(directory.report, report.to_json())
        report = TokenizeReport.load(directory.report)
        directory.clear()
        return report

    def _write_datasets(self) -> None:
        directory, num_tasks = self.directory, len(self.plan.tasks)
        directory.refuse_missing("tokenize", range(num_tasks), self.plan)
        if not self.allow_empty:
            self._refuse_empty()
        num_parts = dict.fromkeys(self.plan.sides, num_tasks)
        if self.plan.shuffle is not None:
            num_parts = self._shuffle()
        for side, count in num_parts.items():
            if not is_finished(directory.out / side):
                directory.keep_tokenizer(side)
                join_parts(directory.out / side, count)

    def _count(self) -> DocumentCounts:
        """The counts of all tasks together."""
        sums = DocumentCounts()
        for number in range(len(self.plan.tasks)):
            path = self.directory.counts("tokenize", number)
            sums.add(DocumentCounts.from_json(path.read_bytes()))
        return sums

    def _refuse_empty(self) -> None:
        """Refuse to make a dataset without tokens, and remove what was begun."""
        sums = self._count()
        if sums.tokens == 0:
            self.directory.discard(self.plan)
            raise no_documents(sums, num_files=len(self.plan.source.get("files", ())))

    def _shuffle(self) -> dict[str, int]:
        """Write the parts of all sides again, in a random order; returns how many each has."""
        from millstream.text.tokenize.shuffle_stage import (  # which most jobs do without
            ShuffleStage,
            cut_parts,
        )

        directory, plan = self.directory, self.plan
        for side in plan.sides:
            if not is_finished(directory.unshuffled / side):
                join_parts(directory.unshuffled / side, len(plan.tasks))
        parts = cut_parts(directory, plan)
        stage = ShuffleStage(directory=directory, plan=plan, parts=parts)
        self.runner.run(stage, list(range(len(parts))))
        return {side: sum(part.side == side for part in parts) for side in plan.sides}
