"""How much memory this process may still use: on the machine, and in its control groups.

The page cache counts as free, as in the kernel's MemAvailable: it gives way to processes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class _GroupFiles(NamedTuple):
    """The files of a version of control groups."""

    limit: str
    usage: str
    cached: tuple[str, str]
    """lines of memory.stat"""


_VERSION_1 = _GroupFiles(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_VERSION_2 = _GroupFiles("memory.max", "memory.current", ("inactive_file", "active_file"))


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Free memory, including cached files; None if the system does not say."""
    try:
        on_machine = _numbers(proc / "meminfo")["MemAvailable:"] * 1024
    except (OSError, KeyError):
        return None
    return max(0, min([on_machine, *_in_groups(proc / "self" / "cgroup", cgroups)]))


def _in_groups(membership: Path, cgroups: Path) -> Iterator[int]:
    """Yield the bytes that each control group leaves to this process."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            files, top = _VERSION_2, cgroups
        elif "memory" in controllers.split(","):
            files, top = _VERSION_1, cgroups / "memory"
        else:
            continue
        # In a container the path may be the host's: then only the top exists, and it is ours.
        group = top / path.lstrip("/")
        for directory in (group, *group.parents):
            left = _left_in(directory, files)
            if left is not None:
                yield left
            if directory == top:
                break


def _left_in(group: Path, files: _GroupFiles) -> int | None:
    try:
        limit = int((group / files.limit).read_text())  # "max", no limit, is not an integer
        usage = int((group / files.usage).read_text())
        cached = _numbers(group / "memory.stat")
    except (OSError, ValueError):
        return None
    return limit - usage + sum(cached.get(name, 0) for name in files.cached)


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
