"""Marks of jobs: files in a directory that say whether Penstock is still writing there."""

import contextlib
import json
import os
from pathlib import Path

from penstock.errors import MissingDataError
from penstock.formats.files import read_head, read_whole

UNFINISHED = "unfinished.json"
"""a directory with this is still being written"""
FINISHED = ".finished.json"
"""what `convert` and `repack` made in a directory; hidden, and never data"""
PLAN, PLAN_FORMAT = "plan.json", "penstock-plan"
"""of `penstock tokenize`: a directory with this, and those right in it, are still being written"""
TASKS, UNSHUFFLED = "tasks", "unshuffled"
"""directories of unfinished jobs: what tasks have done, and documents before they are shuffled"""
UPLOADING = ".uploading"
"""`NAME.uploading` beside a directory: its files are uploaded and freed, so it cannot be read"""
_MAX_MARK_BYTES = 1 << 28  # JSON takes some ten times its size in memory


def refuse_unfinished(directory: Path) -> None:
    """Refuse a directory that is still being written."""
    if os.path.lexists(directory / UNFINISHED):
        raise MissingDataError(
            f"{directory}: is unfinished ({UNFINISHED} exists); run "
            f"{_command_of(directory / UNFINISHED)} again to continue"
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
            f"{directory}: is unfinished ({planned / PLAN} exists); run the same penstock "
            f"tokenize again to continue, or penstock finish {planned} if all tasks have run"
        )


def _command_of(mark: Path) -> str:
    """The command that writes there, according to its mark."""
    try:
        command = json.loads(read_whole(mark, _MAX_MARK_BYTES)).get("command")
    except (OSError, ValueError, AttributeError, RecursionError):
        command = None
    known = ("convert", "copy", "finish", "repack", "tokenize")
    return f"penstock {command}" if command in known else "the same command"


def planned_in(directory: Path) -> Path | None:
    """The directory with an unfinished `penstock tokenize`: this one, its parent, or None."""
    for place in (directory, directory.parent):
        path = place / PLAN
        with contextlib.suppress(OSError):  # missing, or just removed
            if path.is_file() and PLAN_FORMAT.encode() in read_head(path, 64).start:
                return place
    return None
