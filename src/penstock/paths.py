"""Paths as users give them: local ones, also as `file://` URLs."""

import os
import re

from penstock.errors import UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # a Path makes one slash of two
_COPY = {
    "s3": "aws s3 sync",
    "gs": "gcloud storage rsync --recursive",
    "gcs": "gcloud storage rsync --recursive",
    "hf": "hf download",
    "az": "azcopy copy",
    "abfs": "azcopy copy",
    "abfss": "azcopy copy",
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
    found = _URL.match(path)
    if found is None or os.path.lexists(path):
        return os.path.expanduser(path)  # noqa: PTH111 (a pattern is not a path)
    scheme = found[1].lower()
    if scheme == "file":
        return _path_of(path)
    path = f"{found[1]}://{path[found.end() :].lstrip('/')}"
    if scheme in ("http", "https"):
        how = f"download it first: penstock fetch '{path}' --out DIRECTORY"
    elif scheme in _COPY:
        how = f"copy it to this machine first, for example with {_COPY[scheme]}"
    else:
        how = "copy it to this machine first"
    raise UsageError(f"{path}: is remote, which is not supported yet; {how}")


def _path_of(url: str) -> str:
    """The path in `file:///path`; urlsplit would take the `?` of a pattern for a query."""
    host, _, path = url[5:].removeprefix("//").partition("/")
    if host not in ("", "localhost"):
        raise UsageError(f"{url}: {host!r} would be a host name; write file:/// with three slashes")
    from urllib.parse import unquote  # 3 ms that other paths do without

    return "/" + unquote(path)
