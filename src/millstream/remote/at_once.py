"""Calls for many remote files at once: each waits for a few small answers of a store.

What a parser reads of a file depends on what it has read before, so that cannot be announced. But
files do not depend on each other. The requests are those of the request pool, which bounds them.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from millstream.remote.attempts import stopping_with
from millstream.remote.block_file import ByteRange
from millstream.remote.mirror import find_mirrored, is_mirrored, local_path
from millstream.remote.options import Remote
from millstream.remote.urls import is_remote
from millstream.system.background_thread import StopSignal, call_in_background

Named = TypeVar("Named")
Called = TypeVar("Called")

_MAX_THREADS = 32
_MAX_LOCATED = 16


def at_once(
    call: Callable[[Named], Called],
    items: Sequence[Named],
    path_of: Callable[[Named], str | os.PathLike[str]],
) -> list[Called]:
    """Call for each item, in threads if their files are remote; results in the order of items."""
    remote = [path for item in items if is_mirrored(path := path_of(item))]
    first = find_mirrored(remote[0]) if len(remote) > 1 else None
    if first is None:
        return [call(item) for item in items]
    return _in_threads(call, items, min(_MAX_THREADS, first.options.max_requests))


def fetch_at_once(parts: Iterable[tuple[str | os.PathLike[str], Sequence[ByteRange]]]) -> None:
    """Fetch parts of remote files, given by their paths; nothing for local files."""

    def fetch(item: tuple[str | os.PathLike[str], Sequence[ByteRange]]) -> None:
        mirrored = find_mirrored(item[0])
        if mirrored is not None:
            mirrored.provide(item[1])

    remote = [item for item in parts if is_mirrored(item[0])]
    at_once(fetch, remote, lambda item: item[0])


def local_paths(
    sources: Sequence[str | os.PathLike[str]],
    options: Remote | None,
    companions: Callable[[str], Sequence[str]] = lambda _: (),
    *,
    manifests: bool = True,
) -> list[str]:
    """The local paths of sources, as `local_path` gives them; stores are asked at once."""
    locate = partial(local_path, options=options, companions=companions, manifests=manifests)
    if sum(map(is_remote, sources)) < 2:
        return list(map(locate, sources))
    return _in_threads(locate, sources, _MAX_LOCATED)


def _in_threads(
    call: Callable[[Named], Called], items: Iterable[Named], num_threads: int
) -> list[Called]:
    """Call for each item in threads; results in the order of items.

    The first error is raised, and calls that have not begun are left out.
    """
    stop = StopSignal()

    def call_one(item: Named) -> Called:
        stop.check()
        with stopping_with(stop):
            return call(item)

    def call_all() -> list[Called]:
        with ThreadPoolExecutor(num_threads, "millstream-at-once") as threads:
            return list(threads.map(call_one, items))

    return call_in_background(call_all, "millstream-at-once", stop)
