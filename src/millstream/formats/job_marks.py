"""Marks of jobs: files in a directory that say whether Millstream is still writing there."""

import contextlib
import json
import os
from pathlib import Path

from millstream.errors import MissingDataError
from millstream.formats.files import read_head, read_whole
from millstream.remote.mirror import look_for

UNFINISHED = "unfinished.json"
"""a directory with this is still being written"""
FINISHED = ".finished.json"
"""what `convert` and `repack` made in a directory; hidden, and never data"""
REPORT = "report.json"
"""what `millstream tokenize` made"""
PLAN, PLAN_FORMAT = "plan.json", "millstream-plan"
"""of `millstream tokenize`: a directory with this, and those in it, are still being written"""
TASKS, UNSHUFFLED = "tasks", "unshuffled"
"""directories of unfinished jobs: what tasks have done, and documents before they are shuffled"""
UPLOADING = ".uploading"
"""`NAME.uploading` beside a directory: its files are uploaded and freed, so it cannot be read"""
_MAX_MARK_BYTES = 1 << 28  # JSON takes some ten times its size in memory


def refuse_unfinished(directory: Path) -> None:
    """Refuse a directory that is still being written."""
    marks = (directory / UNFINISHED, directory / PLAN, directory.parent / PLAN)
    # The job may have finished since this machine listed a remote directory.
    look_for(filter(os.path.lexists, marks))
    if os.path.lexists(directory / UNFINISHED):
        raise MissingDataError(
            f"{directory}: is unfinished ({UNFINISHED} exists); "
            f"{_remedy(directory, _command_of(directory / UNFINISHED))}"
        )
    outer = directory if directory.name == UNSHUFFLED else directory.parent  # that one is whole
    for each in (directory, outer):
        if os.path.lexists(f"{each}{UPLOADING}"):
            raise MissingDataError(
                f"{directory}: is being uploaded, and some of its files are at the target only; "
                "open the target when the job is finished"
            )
    planned = planned_in(directory)
    if planned is not None:
        raise MissingDataError(
            f"{directory}: is unfinished ({planned / PLAN} exists); run the same millstream "
            f"tokenize again to continue, or millstream finish {planned} if all tasks have run"
        )


def _command_of(mark: Path) -> str | None:
    """The command that writes there, according to its mark; None if a program does."""
    try:
        command = json.loads(read_whole(mark, _MAX_MARK_BYTES)).get("command")
    except (OSError, ValueError, AttributeError, RecursionError):
        command = None
    return command if command in ("convert", "copy", "finish", "repack", "tokenize") else None


def _remedy(directory: Path, command: str | None) -> str:
    """What to do about a directory that a command still writes."""
    if command == "finish":  # several machines write there
        return f"when all shares are done, run millstream finish {directory}"
    return f"run {f'millstream {command}' if command else 'the same command'} again to continue"


def planned_in(directory: Path) -> Path | None:
    """The directory with an unfinished `millstream tokenize`: this one, its parent, or None."""
    for place in (directory, directory.parent):
        path = place / PLAN
        with contextlib.suppress(OSError):  # missing, or just removed
            if path.is_file() and PLAN_FORMAT.encode() in read_head(path, 64).start:
                return place
    return None
