"""Paths as users give them: local ones, also as `file://` URLs; and patterns of names."""

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from millstream.errors import UsageError
from millstream.remote.urls import is_remote

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # a Path makes one slash of two
_COPY = {
    "hf": "hf download",
    "r2": "rclone copy",
    "oci": "rclone copy",
    "hdfs": "hdfs dfs -get",
    "ftp": "curl -O",
    "sftp": "scp -r",
    "ssh": "scp -r",
}


def local_path(source: str | os.PathLike[str]) -> str:
    """The local path, with `~` expanded; for remote data, the error says how to copy it.

    >>> local_path("file:///data/my%20corpus")
    '/data/my corpus'
    """
    path = os.fspath(source)
    refuse_empty(path)
    found = _URL.match(path)
    if found is None or os.path.lexists(path):
        return os.path.expanduser(path)  # noqa: PTH111 (a pattern is not a path)
    scheme = found[1].lower()
    if scheme == "file":
        return _path_of(path)
    path = _url_of(found)
    _refuse_remote(
        path, source, f"copy it to this machine first: millstream fetch {path} --out DIRECTORY"
    )
    how = f", for example with {_COPY[scheme]}" if scheme in _COPY else ""
    raise UsageError(
        f"{path}: {scheme}:// is not read in place, unlike s3://, gs://, az:// and https://; copy "
        f"it to this machine first{how}"
    )


def output_path(target: str | os.PathLike[str]) -> Path:
    """The absolute local path to write to; refuses URLs, which would become directories.

    >>> output_path("file:///data/out")
    PosixPath('/data/out')
    """
    path = os.fspath(target)
    refuse_empty(path)
    found = _URL.match(path)
    if found is None:
        return Path(path).absolute()
    if found[1].lower() == "file":
        return Path(_path_of(path))
    url = _url_of(found)
    _refuse_remote(url, target, f"write to a directory, then run millstream copy DIRECTORY {url}")
    raise UsageError(
        f"{url}: {found[1]}:// cannot be written to; write to a local directory, and copy it from "
        "there"
    )


def refuse_empty(path: str) -> None:
    """Refuse what an unset variable gives; it would be the current directory."""
    if not path:
        raise UsageError("the path is empty; use '.' for the current directory")


def _url_of(found: re.Match[str]) -> str:
    """A URL with its two slashes."""
    return f"{found[1]}://{found.string[found.end() :].lstrip('/')}"


def _refuse_remote(url: str, given: str | os.PathLike[str], remedy: str) -> None:
    """Raise if a URL is that of remote data; `remedy` is for one that was given as a string."""
    if is_remote(url):
        if isinstance(given, os.PathLike):
            remedy = "give the URL as a string, not as a Path"
        raise UsageError(f"{url}: is remote, and a local path is needed here; {remedy}")


def names_match(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether the names of a path match the parts of a pattern; `**` is any number of names.

    >>> names_match(["web", "2024", "05", "a.txt"], ["web", "**", "*.txt"])
    True
    """
    if not parts:
        return not names
    if parts[0] == "**":
        return any(names_match(names[skipped:], parts[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and names_match(names[1:], parts[1:])


def _path_of(url: str) -> str:
    """The path in `file:///path`; urlsplit would take the `?` of a pattern for a query."""
    host, _, path = url[5:].removeprefix("//").partition("/")
    if host not in ("", "localhost"):
        raise UsageError(f"{url}: {host!r} would be a host name; write file:/// with three slashes")
    from urllib.parse import unquote  # 3 ms that other paths do without

    return "/" + unquote(path)
