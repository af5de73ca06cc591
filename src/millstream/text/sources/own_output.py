"""Recognises directories that Millstream wrote, so that a source does not read its text twice."""

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from millstream.formats.checksums import CHECKSUMS
from millstream.formats.job_marks import FINISHED, PLAN, REPORT, UNFINISHED, planned_in
from millstream.formats.stream import MANIFEST_NAME

_MARKS = {
    MANIFEST_NAME,
    UNFINISHED,
    FINISHED,
    f"shard_00000{CHECKSUMS}",  # of repack, copied without hidden files
    "token_bytes.npy",  # of train-tokenizer
}
"""a directory that holds any of these was written by Millstream"""
_MOST_NAMED = 5


def is_own_output(directory: str, names: Sequence[str]) -> bool:
    """Return whether Millstream wrote, or is writing, a directory that holds these names."""
    return (
        not _MARKS.isdisjoint(names)
        or (PLAN in names and planned_in(Path(directory)) == Path(directory))
        or ("tasks" in names and Path(directory, "tasks/.plan.lock").exists())  # before the plan
        or (REPORT in names and Path(directory, "train", MANIFEST_NAME).exists())
    )


def without_own_output(root: str, files: Iterable[str], skipped: list[str]) -> Iterator[str]:
    """Yield the files that are not in Millstream's output below `root`; add that to `skipped`."""

    @functools.cache
    def find_output(directory: Path) -> str:
        if directory in (Path(root), directory.parent):
            return ""
        is_output = is_own_output(str(directory), os.listdir(directory))  # noqa: PTH208
        return find_output(directory.parent) or (str(directory) if is_output else "")

    for file in files:
        found = find_output(Path(file).parent)
        if not found:
            yield file
        elif found not in skipped:
            skipped.append(found)


def named(directories: list[str]) -> str:
    """Return the first few directories as a list in words."""
    more = f" and {len(directories) - _MOST_NAMED:,} more" if directories[_MOST_NAMED:] else ""
    return f"{', '.join(directories[:_MOST_NAMED])}{more}"


def hint_at_skipped(skipped: list[str]) -> str:
    """Return a hint for errors if only Millstream's own output was found; "" if none was."""
    if not skipped:
        return ""
    return (
        f"; skipped Millstream's own output, which is read only if named itself: {named(skipped)}"
    )
