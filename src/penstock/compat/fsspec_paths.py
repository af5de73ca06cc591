"""Converts what datatrove accepts as a file or folder to a path on this machine.

    "tokens", "file:///tokens"          a path
    ("tokens", {"auto_mkdir": True})    a path and file system options, ignored for local files
    ("000.ds", file_system)             a path in an fsspec file system
    DataFolder("tokens")                itself a file system, rooted at that folder

File systems are recognized by their attributes: neither datatrove nor fsspec needs to be installed.
"""

import os
from typing import Any, Protocol

from penstock.errors import UsageError

_SCHEMES = ("file://", "local://")


class FileSystem(Protocol):
    """The part of an fsspec file system that is used here."""

    protocol: Any


FileLike = str | os.PathLike[str] | tuple[str, dict[str, Any]] | tuple[str, FileSystem] | FileSystem


def local_path(name: str, value: Any) -> str:
    """Return the absolute path that an argument names; raise if it is not on this machine."""
    path = _path_in_file_system(value)
    if path is None:
        raise UsageError(
            f"{name} is {value!r:.80}; it must be on this machine: a path, (path, options), (path, "
            "local file system) or a local DataFolder; copy remote files to this machine first"
        )
    return path


def shown_path(value: Any, path: str) -> str:
    """Return the path as datatrove stores it: relative within a DataFolder, else absolute."""
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
    """Return a path within a folder; raise if it leads outside."""
    root = _path_in_file_system((folder.path, folder.fs))
    if root is None:
        return None
    whole = os.path.normpath(f"{root}/{path}")
    if whole != root and not whole.startswith(os.path.join(root, "")):  # noqa: PTH118
        raise UsageError(f"{path!r} is outside of {root}; pass a path inside it")
    return whole


def _strip(path: str | os.PathLike[str]) -> str | None:
    """Return the absolute path of a path or local URL, as fsspec does; None for other URLs."""
    text = os.fspath(path)
    for scheme in _SCHEMES:
        text = text.removeprefix(scheme)
    if not text or "://" in text or "::" in text:
        return None
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111


def _protocols(value: Any) -> tuple[str, ...]:
    """Return the protocols of an fsspec file system; () for any other object."""
    protocol = getattr(value, "protocol", ())
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
