"""`Mirror`: a directory of the cache that stands for a store, and paths in it for URLs.

    mirror.json       the store, and how to reach it; without secrets
    files/KEY         a sparse file for an object, of its size
    maps/KEY.blocks   which blocks it has

Other code sees files: it can list and open them, and read their sizes. `MirroredFile.provide`
fetches bytes before they are read.
"""

import contextlib
import glob
import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from millstream import paths
from millstream.atomic import TEMPORARY, publish
from millstream.cache import cache_directory
from millstream.error_texts import rewording_errors
from millstream.errors import MissingDataError, ReadError
from millstream.remote.block_file import disk_error
from millstream.remote.mirrored_file import MirroredFile
from millstream.remote.options import ACCESS, Remote
from millstream.remote.refusals import DeniedError
from millstream.remote.store import ObjectFacts, ObjectStore, find_store
from millstream.remote.urls import RemoteUrl, is_remote, parse_url

KIND = "remote"
"""of the user's cache"""
FILES = "files"
"""of the directory with the files of a mirror"""
_DESCRIPTION, _MAPS, _SUFFIX = "mirror.json", "maps", ".blocks"
_MIRROR_END = re.compile(rf"/millstream/{KIND}/[^/]+(?=/{FILES}/.)", re.DOTALL)
"""of the root of a mirror, in the path of a file; keys, and the user's directories, may look so"""
_MOST_REMOVALS = 10
"""of the cache, by others, while a description is written"""
_MAX_DIRECTORY_BYTES = 255
_MAX_NAME_BYTES = _MAX_DIRECTORY_BYTES - len(f"{_SUFFIX}.{'0' * 16}.tmp")  # 227
_DATA_NAME = re.compile(r"\.[A-Za-z0-9]{1,8}$")


class Mirror:
    """The local files of a store."""

    def __init__(self, root: Path, store: ObjectStore, access: dict[str, Any]) -> None:
        """`access` is what its description says, without the bounds."""
        self.root, self.store, self._access = root, store, access
        self._files = dict[str, MirroredFile]()
        self._lock = threading.Lock()

    @property
    def files(self) -> Path:
        """The directory with the files of all objects."""
        return self.root / FILES

    def describe(self, *, anew: bool = False) -> None:
        """Write how the store is reached, for processes that get only paths, such as workers.

        What others wrote stays, unless it is to be written `anew`.
        """
        try:
            for _ in range(_MOST_REMOVALS):
                with contextlib.suppress(FileNotFoundError):
                    return self._describe(anew=anew)
            self._describe(anew=anew)
        except OSError as error:
            raise disk_error(self.root, error) from None

    def _describe(self, *, anew: bool) -> None:
        """Fails if others remove the directory meanwhile."""
        path, options = self.root / _DESCRIPTION, self.store.options
        if not anew and path.exists():
            return
        bounds = {name: each for name, each in asdict(options).items() if name not in ACCESS}
        text = json.dumps({**self._access, "bounds": bounds}) + "\n"
        self.root.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            publish(path, text, lasting=False)

    def path(self, key: str) -> Path:
        """The local path of an object, or of a prefix."""
        return self.files / key

    def map_path(self, key: str) -> Path:
        """The path of the map of an object's blocks."""
        return self.root / _MAPS / f"{key}{_SUFFIX}"

    def file(self, key: str) -> MirroredFile:
        """A mirrored file, which may not be known to exist."""
        with self._lock:
            if key not in self._files:
                self._check_names(key)
                self._files[key] = MirroredFile(
                    self.store,
                    key,
                    self.path(key),
                    self.map_path(key),
                    self.root,
                    describe=self.describe,
                    on_removal=partial(self._forget, key),
                    make_way=partial(self._make_way, key),
                )
            return self._files[key]

    def _check_names(self, key: str) -> None:
        """Refuse names that a file system cannot hold, with the ends that temporary files add."""
        plain = re.sub(rf"{TEMPORARY}$", "", key)  # left by a process that was killed
        *parents, name = (len(os.fsencode(each)) for each in plain.split("/"))
        if name > _MAX_NAME_BYTES or max(parents, default=0) > _MAX_DIRECTORY_BYTES:
            raise ReadError(
                f"{self.store.name(key)}: the cache cannot hold names longer than "
                f"{_MAX_NAME_BYTES} bytes; rename the object, or download it first: millstream "
                "fetch URL --out DIRECTORY"
            )

    def note(self, facts: Sequence[ObjectFacts]) -> None:
        """Make files for objects that were found, as large as they are."""
        for each in facts:
            self.file(each.key).note(each)

    def list_below(self, prefix: str) -> bool:
        """Make files for all objects below a prefix, and for no others; False if there are none."""
        found = self.store.list_objects(prefix)
        self.note(found)
        keys = {facts.key for facts in found}
        for path in list(self.path(prefix).rglob("*")):
            key = str(path.relative_to(self.files))
            if key not in keys and path.is_file():
                self.file(key).remove()
        return bool(found)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._files.pop(key, None)

    def _make_way(self, key: str) -> bool:
        """Remove local files of a time when `key` was a prefix, or one of its parents an object.

        False if the store still has those, or a process reads them: a directory cannot hold both.
        """
        parents = [*itertools.accumulate(key.split("/")[:-1], lambda one, name: f"{one}/{name}")]
        for parent in parents:
            if self.path(parent).is_file() and (
                self._is_object(parent) or not self.file(parent).remove_unless_held()
            ):
                return False
        directory = self.path(key)
        if not directory.is_dir():
            return True
        if self.store.can_list and self.store.list_objects(key):
            return False
        # In this order, directories are empty when their turn comes.
        for path in sorted(directory.rglob("*"), reverse=True):
            key_of_path = str(path.relative_to(self.files))
            if not path.is_dir() and not self.file(key_of_path).remove_unless_held():
                return False
            with contextlib.suppress(OSError):  # another process was faster, or uses it again
                path.rmdir()
        with contextlib.suppress(OSError):
            directory.rmdir()
        return True

    def _is_object(self, key: str) -> bool:
        """Whether the store has an object that is not the mark of a directory."""
        if not self.store.can_list:
            return False  # an HTTP server may show a page for a directory
        try:
            return self.store.head(key).size_bytes > 0
        except MissingDataError:
            return False

    def find_all(self, keys: Iterable[str]) -> list[bool]:
        """Look for several objects at once, which may exist."""
        return _find_some(MirroredFile.find, map(self.file, keys))


_MIRRORS = dict[Path, Mirror]()
# A thread of the parent may hold locks of these, which nobody releases in a forked child.
os.register_at_fork(after_in_child=_MIRRORS.clear)


def find_mirror(url: RemoteUrl, options: Remote | None = None) -> Mirror:
    """The mirror of a store; its directory is made if there is none."""
    store = find_store(url, options or Remote())
    access = {"store": store.url.store, **store.options.access, "endpoint": store.endpoint}
    identity = json.dumps({**access, "service": store.service}, sort_keys=True)
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{url.scheme}-{url.root}")
    root = cache_directory(KIND) / f"{plain}-{xxhash.xxh3_64_hexdigest(identity.encode())[:8]}"
    mirror = _MIRRORS.get(root)
    if mirror is None or mirror.store.options != store.options:
        mirror = Mirror(root, store, access)
        mirror.describe(anew=True)
        _MIRRORS[root] = mirror
    return mirror


def local_path(
    source: str | os.PathLike[str],
    options: Remote | None = None,
    companions: Callable[[str], Sequence[str]] = lambda _: (),
    *,
    manifests: bool = True,
) -> str:
    """The local path of a source: that of its mirror, for a URL of remote data.

    Looks for what the URL names: an object, all objects below a prefix, or those that match a
    pattern. `companions` gives the keys of other objects that may belong to an object. With
    `manifests`, a manifest below a prefix stands for all objects there.
    """
    if not is_remote(source):
        return paths.local_path(source)
    url = parse_url(os.fspath(source))
    mirror = find_mirror(url, options)
    # HTTP servers list nothing: a bracket is part of a name there, and a star is refused.
    if "*" in url.key if url.is_http else glob.has_magic(url.key):
        fixed = url.key.split("/")
        first = next(k for k, part in enumerate(fixed) if glob.has_magic(part))
        mirror.list_below("/".join(fixed[:first]))
    elif not _find_object(mirror, url.key, companions) and not _find_all(
        mirror, url.key, manifests=manifests
    ):
        beside = [f"{url.key}.bin", f"{url.key}.idx"]  # a prefix of Megatron-LM
        if not manifests or not all(mirror.find_all(beside)):
            endpoint = mirror.store.endpoint
            hint = f"; the endpoint is {endpoint}" if endpoint else ""
            if not mirror.store.can_list:
                hint = "; HTTP servers do not list files: name each file"
                if manifests:
                    hint += ", or a directory with millstream.json or files.json"
            raise MissingDataError(f"{url}: no such object, and none below it{hint}")
    return str(mirror.path(url.key))


def _find_object(mirror: Mirror, key: str, companions: Callable[[str], Sequence[str]]) -> bool:
    """Look for a file, with its companions; or a manifest below a directory."""
    if not key or not _DATA_NAME.search(key):
        return False
    if key.endswith(".json"):
        return mirror.file(key).read_whole()
    return mirror.find_all([key, *companions(key)])[0]


_MANIFESTS = ("millstream.json", "files.json", "index.json", "state.json")


def _find_all(mirror: Mirror, key: str, *, manifests: bool) -> bool:
    """Look for the files of a directory: by its manifest, or by listing it."""
    prefix = f"{key}/" if key else ""
    if manifests and any(
        _find_some(MirroredFile.read_whole, [mirror.file(f"{prefix}{_MANIFESTS[0]}")])
    ):
        return True
    others = (f"{prefix}{name}" for name in _MANIFESTS[1:])
    if not mirror.store.can_list:
        found = manifests and any(mirror.find_all(others))
    else:
        try:
            found = mirror.list_below(key)
        except DeniedError:
            if not manifests or not any(mirror.find_all(others)):
                raise
            return True
    return found or (bool(key) and mirror.file(key).find())


def is_mirrored(path: str | os.PathLike[str]) -> bool:
    """Whether a local path has the form of one that stands for a remote file."""
    text = os.fspath(path)
    return f"/millstream/{KIND}/" in text and _MIRROR_END.search(text) is not None


def find_mirrored(path: str | os.PathLike[str]) -> MirroredFile | None:
    """The remote file that a local path stands for; None for a path that is local."""
    text = os.fspath(path)
    # By its form: the path may come from a process whose cache lies elsewhere.
    for end in _MIRROR_END.finditer(text):
        root = Path(text[: end.end()])
        key = text[end.end() + len(f"/{FILES}/") :]
        mirror = _MIRRORS.get(root) or _reopen(root)
        if mirror is not None:
            return mirror.file(key)
        if (root / _MAPS / f"{key}{_SUFFIX}").exists():
            raise ReadError(
                f"{root}: {_DESCRIPTION} was removed, which says where the files come from; open "
                "the data again"
            )
    return None


def fetch_beside(directory: Path, names: Sequence[str]) -> None:
    """Fetch small files of a mirrored directory that may exist; nothing if it is local."""
    _find_some(MirroredFile.read_whole, map(find_mirrored, (directory / name for name in names)))


def mirrored_file(url: str, options: Remote | None = None) -> MirroredFile:
    """The mirrored file of a remote object, which may not be known to exist."""
    parsed = parse_url(url)
    return find_mirror(parsed, options).file(parsed.key)


def look_for(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Look for remote files that may exist, by their paths, several at once; leave others alone."""
    _find_some(MirroredFile.find, map(find_mirrored, paths))


def _find_some(
    find: Callable[[MirroredFile], bool], files: Iterable[MirroredFile | None]
) -> list[bool]:
    """Find several files at once, which may exist, leaving out None.

    False, too, for a file of which the store does not tell whether it exists (`DeniedError`).
    """

    def find_one(file: MirroredFile) -> bool:
        try:
            return find(file)
        except DeniedError:
            file.remove()
            return False

    waiting = [file.pool.submit(partial(find_one, file)) for file in files if file is not None]
    return [each.result() for each in waiting]


def _reopen(root: Path) -> Mirror | None:
    """The mirror that another process has made; None if there is none.

    Its files have holes, so they must not be read as local files.
    """
    description = root / _DESCRIPTION
    try:
        access: dict[str, Any] = json.loads(description.read_text())
        bounds = access.pop("bounds", {})
        # Not by `find_mirror`: its environment may name another service.
        options = {name: each for name, each in access.items() if name in ACCESS} | bounds
        store = find_store(parse_url(access["store"]), Remote(**options))
        return _MIRRORS.setdefault(root, Mirror(root, store, access))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReadError(
            f"{description}: cannot be read ({error}); remove {root}, and it is made again"
        ) from None


def shown(text: object) -> str:
    """A path, or a text with paths, with URLs instead of the paths of mirrors."""
    result = str(text)
    for root, mirror in list(_MIRRORS.items()):
        result = result.replace(f"{root}/{FILES}", mirror.store.url.store)
    return result


@contextlib.contextmanager
def naming_urls() -> Iterator[None]:
    """Errors that pass name URLs, not the paths of mirrors."""
    with rewording_errors(shown):
        yield
