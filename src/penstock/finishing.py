"""`finish`: the last step of what several processes have written together."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.formats.job_marks import PLAN
from penstock.progress import OnProgress
from penstock.write import joining

if TYPE_CHECKING:
    from penstock.text.tokenize.report import TokenizeReport


def finish(
    path: str | os.PathLike[str],
    *,
    parts: int | None = None,
    workers: int | None = None,
    allow_empty: bool = False,
    progress: OnProgress | None = None,
) -> "TokenizeReport | None":
    """Join the finished parts of a dataset, in the order of their numbers.

    Arguments:
        path: the directory that `Writer`s with part numbers have written to, or that all tasks of
            `penstock.tokenize(…, task=(i, n))` have; of the latter there is a report.
        parts: exactly the parts 0 to `parts - 1` must be there; left out, those that are there must
            be numbered without a gap. A tokenize job knows its number.
        workers: processes that shuffle documents, if that was asked for.
        allow_empty: of a tokenize job, also make a dataset without tokens.
        progress: is called with a `Progress` while documents are shuffled.
    """
    from penstock.text.tokenize.job_directory import JobDirectory
    from penstock.text.tokenize.report import TokenizeReport

    if not (Path(path) / PLAN).exists():
        report = TokenizeReport.find(JobDirectory(Path(path)).report)
        if report is None:
            joining.finish(path, parts=parts)
        return report
    if parts is not None:
        raise UsageError(f"{path}: has a plan, which knows its parts; leave out parts")
    from penstock.text.tokenize import job

    return job.finish(Path(path), workers=workers, allow_empty=allow_empty, progress=progress)
