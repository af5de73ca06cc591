"""When a job may write to a directory: it is empty, or what was begun there is the same job.

Every resumable job (`tokenize`, `convert`, `repack`) writes down what it wants before it begins, in
a mark that keeps the directory from being opened as data, and beside its result when it is done.
Whoever comes next compares what it wants with that: the same job continues or is done already, any
other is refused with the differences.
"""

from collections.abc import Iterable
from pathlib import Path

from penstock.errors import DatasetExistsError

_MOST_DIFFERENCES = 5


def refuse_files(directory: Path, others: Iterable[str]) -> None:
    """Refuse to begin a job in a directory that has `others`: files that are not the job's."""
    for name in sorted(others):
        raise DatasetExistsError(
            f"{directory}: is not empty ({name} is there); choose another path, or an empty "
            "directory"
        )


def refuse_to_continue(mark: Path, differences: Iterable[str]) -> None:
    """Refuse a directory where a job that differs was begun."""
    _refuse(f"{mark}: another job was begun here", differences, f"remove {mark.parent}")


def refuse_to_replace(directory: Path, differences: Iterable[str]) -> None:
    """Refuse a directory where a job that differs was finished."""
    _refuse(f"{directory}: holds the result of another job", differences, "remove this one")


def _refuse(what: str, differences: Iterable[str], remedy: str) -> None:
    found = list(differences)
    if found:
        more = "; …" if len(found) > _MOST_DIFFERENCES else ""
        shown = "; ".join(found[:_MOST_DIFFERENCES])
        raise DatasetExistsError(f"{what}: {shown}{more}; choose another path, or {remedy}")
