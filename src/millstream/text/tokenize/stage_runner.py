"""`StageRunner`: runs the tasks of one stage after another, and explains what fails."""

import errno
import os
from dataclasses import dataclass

from millstream.copying.early_upload import WaitForRoom, no_wait
from millstream.error_texts import append
from millstream.errors import MillstreamError
from millstream.progress import OnProgress
from millstream.text.tokenize.executors import Executor, TaskFailedError, run_stage
from millstream.text.tokenize.stage import Stage
from millstream.text.tokenize.stage_progress import StageProgress

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class StageRunner:
    """Where tasks run, and who is told how far they are."""

    executor: Executor
    workers: int | None
    progress: OnProgress | None
    wait_for_room: WaitForRoom = no_wait

    def run(self, stage: Stage, numbers: list[int]) -> int:
        """Run the tasks that are not done yet; returns how many were done before."""
        progress = StageProgress(stage, numbers, self.progress)
        resumed = len(progress.done)
        try:
            run_stage(
                stage, progress.todo, self.executor, self.workers, progress, self.wait_for_room
            )
        except TaskFailedError as failed:
            done = f"{len(progress.done):,} of {len(numbers):,} tasks are done"
            raise _explain(failed, stage, done) from failed.__cause__
        return resumed


def _explain(failed: TaskFailedError, stage: Stage, done: str) -> BaseException:
    """The error that a user sees: what went wrong, and what to do."""
    error, again = failed.error, "run the same command again"
    if type(error) is MillstreamError:  # its process died
        what = f"task {failed.number:,} ({stage.describe(failed.number)})"
        return MillstreamError(f"{what}: {error}; {done}; {again}")
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        if isinstance(error, MillstreamError):  # of the cache: it says which disk, and what to do
            append(error, f"; {done}; then {again}")
            return error
        reason = f"{os.strerror(error.errno)}; {done}; free some space and {again}"
        return OSError(error.errno, reason, error.filename)
    return error
