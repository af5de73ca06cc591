"""`finish`: the last step of what several processes have written together."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.copying.shares_joining import JoinedOutput
from millstream.errors import MissingDataError, UsageError
from millstream.formats.job_marks import PLAN, REPORT, planned_in
from millstream.paths import output_path
from millstream.progress import OnProgress
from millstream.remote.options import Remote
from millstream.remote.urls import is_remote
from millstream.suggestions import did_you_mean_path
from millstream.write.joining import is_joined, join_parts

if TYPE_CHECKING:
    from millstream.text.tokenize.report import TokenizeReport


def finish(
    path: str | os.PathLike[str],
    *,
    parts: int | None = None,
    workers: int | None = None,
    allow_empty: bool = False,
    progress: OnProgress | None = None,
    remote: Remote | None = None,
) -> "TokenizeReport | None":
    """Join the finished parts of a dataset, in the order of their numbers.

    Arguments:
        path: the directory or URL that `Writer`s with part numbers have written to, or that all
            tasks of `millstream.tokenize(…, task=(i, n))` have; the latter returns a report.
        parts: require exactly the parts 0 to `parts - 1`; by default, the parts that are there must
            be numbered without a gap. A tokenize job knows its number of parts.
        workers: the number of processes that shuffle the documents of a tokenize job.
        allow_empty: make the dataset of a tokenize job even if it has no tokens.
        progress: is called with a `Progress` while documents are shuffled.
        remote: how `path` is reached, if it is a URL. Shards stay where they are.
    """
    if is_remote(path):
        output = JoinedOutput(os.fspath(path), remote)
        with output.finished_target(REPORT) as finished:
            if finished is not None:
                return _finish(finished, parts, workers, progress, allow_empty=allow_empty)
        output.prepare()
        report = None
        if not is_joined(output.directory) or (output.directory / REPORT).exists():
            with output.joining() as directory:
                report = _finish(directory, parts, workers, progress, allow_empty=allow_empty)
        output.send(progress)
        return report
    return _finish(output_path(path), parts, workers, progress, allow_empty=allow_empty)


def _finish(
    directory: Path,
    parts: int | None,
    workers: int | None,
    progress: OnProgress | None,
    *,
    allow_empty: bool,
) -> "TokenizeReport | None":
    from millstream.text.tokenize.finishing import finish_tokenize_job
    from millstream.text.tokenize.job_directory import JobDirectory
    from millstream.text.tokenize.report import TokenizeReport

    if (directory / PLAN).exists():
        if parts is not None:
            raise UsageError(f"{directory}: has a plan, which knows its parts; leave out parts")
        return finish_tokenize_job(
            directory, workers=workers, allow_empty=allow_empty, progress=progress
        )
    report = TokenizeReport.find(JobDirectory(directory).report)
    if report is not None:
        return report
    if not directory.is_dir():
        raise MissingDataError(f"{directory}: no such directory{did_you_mean_path(directory)}")
    planned = planned_in(directory)
    if planned is not None:
        raise UsageError(f"{directory}: belongs to a tokenize job; use millstream finish {planned}")
    join_parts(directory, parts)
    return None
