"""What datatrove takes for a file or a folder, as a path on this machine.

    "tokens", "file:///tokens"          a path
    ("tokens", {"auto_mkdir": True})    with options for the file system, which local files ignore
    ("000.ds", file_system)             in a file system of fsspec
    DataFolder("tokens")                itself a file system, whose root is that folder

File systems are known by their attributes: neither datatrove nor fsspec has to be installed.
"""

import os
from typing import Any, Protocol

from penstock.errors import UsageError

_SCHEMES = ("file://", "local://")


class FileSystem(Protocol):
    """A file system of fsspec, as far as it is used."""

    protocol: Any


FileLike = str | os.PathLike[str] | tuple[str, dict[str, Any]] | tuple[str, FileSystem] | FileSystem


def local_path(name: str, value: Any) -> str:
    """The absolute path that an argument means; an error if that is not on this machine."""
    path = _path_in_file_system(value)
    if path is None:
        raise UsageError(
            f"{name} is {value!r:.80}; it must be on this machine: a path, (path, options), (path, "
            "local file system) or a DataFolder of one; copy remote files here first"
        )
    return path


def shown_path(value: Any, path: str) -> str:
    """The path as datatrove keeps it: relative within a folder, absolute otherwise."""
    is_relative = isinstance(value, tuple) and _protocols(value[1]) == ("dir",)
    return str(value[0]) if is_relative else path


def _path_in_file_system(value: Any) -> str | None:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str | os.PathLike):
        path, place = value
        if isinstance(place, dict) or "file" in _protocols(place):
            return _strip(path)
        return _below(place, os.fspath(path)) if _protocols(place) == ("dir",) else None
    if _protocols(value) == ("dir",):
        return _path_in_file_system((value.path, value.fs))
    return _strip(value) if isinstance(value, str | os.PathLike) else None


def _below(folder: Any, path: str) -> str | None:
    """A path in a folder, which must not lead out of it."""
    root = _path_in_file_system((folder.path, folder.fs))
    if root is None:
        return None
    whole = os.path.normpath(f"{root}/{path}")
    if whole != root and not whole.startswith(os.path.join(root, "")):  # noqa: PTH118
        raise UsageError(f"{path!r} leads out of {root}; give a path inside of it")
    return whole


def _strip(path: str | os.PathLike[str]) -> str | None:
    """An absolute path, as fsspec makes it of a path or a local URL; None for other URLs."""
    text = os.fspath(path)
    for scheme in _SCHEMES:
        text = text.removeprefix(scheme)
    if not text or "://" in text or "::" in text:
        return None
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111


def _protocols(value: Any) -> tuple[str, ...]:
    """What a file system of fsspec says that it is; () for what is none."""
    protocol = getattr(value, "protocol", ())
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
