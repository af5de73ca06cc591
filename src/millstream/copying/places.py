"""Which place a target is, and names for files about it."""

import os
import re
from pathlib import Path

import xxhash

from millstream.copying.local_place import LocalPlace
from millstream.copying.place import CopyPlace
from millstream.copying.remote_place import RemotePlace
from millstream.errors import UsageError
from millstream.paths import output_path
from millstream.remote.options import Remote
from millstream.remote.urls import is_remote


def find_target(target: str | os.PathLike[str], remote: Remote | None) -> CopyPlace:
    """The place that files are written to."""
    if not is_remote(target):
        if not os.fspath(target):
            raise UsageError("nowhere to copy to: the target is empty")
        return LocalPlace(output_path(Path(target).expanduser()))
    place = RemotePlace(os.fspath(target), remote)
    if not place.can_list:
        raise UsageError(
            f"{place.show()}: HTTP servers cannot be written to; use an s3://, gs:// or az:// URL, "
            "or a local directory"
        )
    return place


def place_id(place: CopyPlace) -> str:
    """A name for files about a place: readable, and of this place only."""
    service = place.service if isinstance(place, RemotePlace) else ""
    number = xxhash.xxh3_64_hexdigest(f"{place.show()} {service}".encode())
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", place.show()).strip("-")
    return f"{plain[-100:]}-{number[:8]}"
