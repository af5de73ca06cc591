"""`FileSender`: sends single files to a target, compared with their checksums on the way."""

from collections.abc import Iterator
from typing import Any

import xxhash

from millstream.copying.listing import CopiedFile
from millstream.copying.place import CopyPlace
from millstream.copying.record import CopyRecord
from millstream.errors import FormatError, ReadError
from millstream.progress import ProgressMeter
from millstream.remote.attempts import stopping_with
from millstream.system.background_thread import StopSignal


class FileSender:
    """Sends files from one place to another. Threads may share it."""

    def __init__(
        self,
        source: CopyPlace,
        target: CopyPlace,
        record: CopyRecord,
        stop: StopSignal,
        meter: ProgressMeter,
    ) -> None:
        self._source, self._target, self._record = source, target, record
        self._stop, self._meter = stop, meter

    def send(self, file: CopiedFile) -> None:
        """Send a file, and note that it has arrived."""
        self._stop.check()
        self._record.begin(file)
        with stopping_with(self._stop):
            identity = self._target.write(
                file.name, file.facts.size_bytes, lambda: self._checked_chunks(file)
            )
        self._record.add(file, identity)

    def _checked_chunks(self, file: CopiedFile) -> Iterator[Any]:
        """Read a file; at its end, raise if it is not what the dataset's checksums say.

        The target shows a file only after its end, so it never shows a damaged one.
        """
        place, hasher, sent, is_sound = self._source, xxhash.xxh3_64(), 0, False
        try:
            for chunk in place.chunks(file.name, file.facts):
                if self._stop.is_set:
                    raise ReadError(f"{place.show(file.name)}: stopped; run the command again")
                hasher.update(chunk)
                sent += len(chunk)
                self._meter.advance(len(chunk))
                yield chunk
            if sent != file.facts.size_bytes:
                raise FormatError(
                    f"{place.show(file.name)}: {sent:,} bytes, expected "
                    f"{file.facts.size_bytes:,}; it has changed: run the command again"
                )
            check_xxh3(place.show(file.name), hasher.hexdigest(), file)
            is_sound = True
        finally:
            if not is_sound:  # read once more, if the target asks again
                self._meter.advance(-sent)


def check_xxh3(name: str, found: str, file: CopiedFile) -> None:
    """Refuse content that is not what the dataset's checksums say."""
    if file.xxh3 not in (None, found):
        raise FormatError(
            f"{name}: xxh3 is {found}, expected {file.xxh3}; the source is damaged: find where "
            "with millstream verify, and write or copy it again"
        )
