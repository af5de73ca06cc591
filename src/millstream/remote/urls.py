"""URLs of remote data: which store they lead to, and the key of the object there."""

import os
import re
from typing import NamedTuple
from urllib.parse import unquote

from millstream.errors import UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")  # a Path makes one slash of two
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# The spellings of fsspec, Hadoop and others, and ours.
_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "adl": "az",
    "abfs": "az",
    "abfss": "az",
    "http": "http",
    "https": "https",
}


class RemoteUrl(NamedTuple):
    """A URL, cut at the root of its store."""

    scheme: str
    root: str
    """the bucket, the container, or the host with its port"""
    key: str
    """the object in the store, or a prefix, or a pattern"""

    def __str__(self) -> str:
        return f"{self.store}/{self.key}" if self.key else self.store

    @property
    def is_http(self) -> bool:
        """Whether it leads to an HTTP server, not to an object store."""
        return self.scheme in ("http", "https")

    @property
    def store(self) -> str:
        """The URL of the store."""
        return f"{self.scheme}://{self.root}"


def is_remote(source: str | os.PathLike[str]) -> bool:
    """Whether a source is the URL of remote data, in any known spelling."""
    return not isinstance(source, os.PathLike) and _scheme(source) is not None


def _scheme(source: str) -> str | None:
    found = _URL.match(source)
    return None if found is None else _SCHEMES.get(found[1].lower())


def parse_url(source: str) -> RemoteUrl:
    """Cut a URL at the root of its store; refuse what cannot be one.

    Paths of HTTP URLs are decoded, as browsers encode them; keys of object stores are literal.

    >>> parse_url("s3a://bucket/web/train")
    RemoteUrl(scheme='s3', root='bucket', key='web/train')
    >>> parse_url("https://host/my%20file.bin").key
    'my file.bin'
    """
    found, scheme = _URL.match(source), _scheme(source)
    assert found is not None, source
    assert scheme is not None, source
    root, _, key = source[found.end() :].partition("/")
    if "///" in found[0]:  # as of s3://$BUCKET/path, where the variable is empty
        root = ""
    container, at, host = root.rpartition("@")
    is_http = scheme in ("http", "https")
    if at and scheme != "az":
        raise UsageError(
            f"{scheme}://…@{host}/…: a password in a URL would be written to logs and states; "
            "use a URL without one"
        )
    if scheme == "az" and at:  # abfss://container@account.dfs.core.windows.net/key
        account, _, cloud = host.partition(".")
        # Other clouds (China, US government, Fabric's OneLake) have accounts of the same name.
        is_public = cloud in ("", "dfs.core.windows.net", "blob.core.windows.net")
        root = f"{container}@{account if is_public else host}"
    if not root:
        kind = "host" if is_http else "container" if scheme == "az" else "bucket"
        raise UsageError(f"{source}: no {kind} in the URL; write {scheme}://{kind.upper()}/PATH")
    if is_http:
        key = unquote(key)
        if "?" in key:  # it may hold a signature, which errors must not repeat
            raise UsageError(
                f"{scheme}://{root}/{key.partition('?')[0]}?…: URLs with a query cannot be read in "
                "place; download it first: millstream fetch 'URL' --out DIRECTORY"
            )
    return RemoteUrl(scheme, root, _checked_key(source, key, is_http))


def _checked_key(source: str, key: str, is_http: bool) -> str:
    """The key without empty names; refuse names that no store, or not the mirror, can hold."""
    parts = key.split("/")
    if any(part in (".", "..") for part in parts):
        raise UsageError(f"{source}: contains '.' or '..', which object stores do not resolve")
    if _CONTROL.search(key):
        raise UsageError(
            f"{source!r}: contains a control character, such as a line break; rename the object"
        )
    if is_http and unquote(key) != key:
        # Decoded once more, for example from a state, it would name another file.
        raise UsageError(
            f"{source}: names with an encoded percent sign cannot be read in place; download it "
            "first: millstream fetch URL --out DIRECTORY"
        )
    return "/".join(part for part in parts if part)
