"""Converts what datatrove accepts as a file or folder to a path: local, or of a mirror.

    "tokens", "file:///tokens"          a path
    "s3://bucket/tokens"                a URL; "simplecache::s3://…" means the same
    ("tokens", {"auto_mkdir": True})    a path and file system options, ignored for local files
    ("s3://…", {"anon": True})          a URL and how to reach it (`Remote`)
    ("000.ds", file_system)             a path in an fsspec file system
    DataFolder("tokens")                itself a file system, rooted at that folder

File systems are recognized by their attributes: neither datatrove nor fsspec needs to be installed.
"""

import os
from collections.abc import Sequence
from typing import Any, Protocol

from millstream.errors import UsageError
from millstream.remote.mirror import local_path as mirror_path
from millstream.remote.mirror import naming_urls, shown
from millstream.remote.options import Remote
from millstream.remote.urls import is_remote

_SCHEMES = ("file://", "local://")
_CACHES = ("simplecache::", "filecache::", "blockcache::")
_NAMES = {
    "anon": "anonymous",
    "endpoint_url": "endpoint",
    "region_name": "region",
    "profile": "profile",
}
_SECRETS = ("key", "secret", "token", "account_key", "sas_token", "connection_string", "credential")
_IGNORED = {
    "asynchronous",
    "auto_mkdir",
    "cache_regions",
    "default_block_size",
    "default_cache_type",
    "default_fill_cache",
    "project",
    "skip_instance_cache",
    "use_listings_cache",
    "use_ssl",
}
"""options that do not decide what is read"""


class FileSystem(Protocol):
    """The part of an fsspec file system that is used here."""

    protocol: Any


FileLike = str | os.PathLike[str] | tuple[str, dict[str, Any]] | tuple[str, FileSystem] | FileSystem


def local_path(name: str, value: Any) -> str:
    """Return the absolute path that an argument names; of remote data, that of its mirror."""
    path = _path_in_file_system(value)
    if path is None:
        raise UsageError(
            f"{name} is {value!r:.80}; it must be a path or a URL (s3://, gs://, az://, https://), "
            "(path, options), (path, file system) or a DataFolder; copy other files to this "
            "machine first"
        )
    return path


def shown_path(value: Any, path: str) -> str:
    """Return the path as datatrove stores it: relative within a DataFolder, else absolute."""
    is_relative = isinstance(value, tuple) and _protocols(value[1]) == ("dir",)
    return str(value[0]) if is_relative else shown(path)


def _path_in_file_system(value: Any) -> str | None:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str | os.PathLike):
        path, place = value
        if isinstance(place, dict):
            return _strip(path, place)
        if "file" in _protocols(place):
            return _strip(path)
        if _protocols(place) == ("dir",):
            return _below(place, os.fspath(path))
        return _remote_path(os.fspath(path), place)
    if _protocols(value) == ("dir",):
        return _path_in_file_system((value.path, value.fs))
    return _strip(value) if isinstance(value, str | os.PathLike) else None


def _remote_path(path: str, file_system: Any) -> str | None:
    """Return the path of a mirror for a path in a file system of fsspec; None if it is not one."""
    for protocol in _protocols(file_system):
        url = path if "://" in path else f"{protocol}://{path}"
        if is_remote(url):
            return _strip(url, getattr(file_system, "storage_options", None))
    return None


def _below(folder: Any, path: str) -> str | None:
    """Return a path within a folder; raise if it leads outside."""
    root = _path_in_file_system((folder.path, folder.fs))
    if root is None:
        return None
    whole = os.path.normpath(f"{root}/{path}")
    if whole != root and not whole.startswith(os.path.join(root, "")):  # noqa: PTH118
        raise UsageError(f"{path!r} is outside of {root}; pass a path inside it")
    return whole


def _strip(path: str | os.PathLike[str], options: dict[str, Any] | None = None) -> str | None:
    """Return the absolute path of a path or URL, as fsspec does; None for unknown URLs."""
    text = os.fspath(path)
    for cache in _CACHES:
        text = text.removeprefix(cache)
    if is_remote(text):
        with naming_urls():
            return mirror_path(text, remote_options(text, options or {}), _index, manifests=False)
    for scheme in _SCHEMES:
        text = text.removeprefix(scheme)
    if not text or "://" in text or "::" in text:
        return None
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111


def _index(key: str) -> Sequence[str]:
    return (f"{key}.index",)


def remote_options(url: str, options: dict[str, Any]) -> Remote:
    """Translate the options of s3fs, gcsfs and adlfs; refuse those that would be lost.

    >>> remote_options("s3://bucket/data", {"anon": True, "endpoint_url": "http://host:9000"}).access
    {'endpoint': 'http://host:9000', 'anonymous': True}
    """
    scheme = url.partition("://")[0]
    given = {name: value for name, value in options.items() if value is not None}
    for nested in (scheme, "client_kwargs"):  # of chained URLs, and of s3fs
        given |= given.pop(nested, {})
    for cache in _CACHES:
        given.pop(cache.removesuffix("::"), None)
    if given.get("token") == "anon":  # gcsfs spells it so
        given["anon"] = given.pop("token") == "anon"
    if secret := next((name for name in _SECRETS if name in given), None):
        raise UsageError(
            f"{url}: the option {secret!r} is a secret, which would be written to states and "
            "plans; set it in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY)"
        )
    unknown = sorted(set(given) - set(_NAMES) - _IGNORED)
    if unknown:
        raise UsageError(
            f"{url}: the option {unknown[0]!r} of fsspec is not known here; known are "
            f"{', '.join(_NAMES)}"
        )
    return Remote(**{_NAMES[name]: value for name, value in given.items() if name in _NAMES})


def _protocols(value: Any) -> tuple[str, ...]:
    """Return the protocols of an fsspec file system; () for any other object."""
    protocol = getattr(value, "protocol", ())
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
