"""`JoinedOutput`: the shares of several machines, in a staging directory where they are joined.

Small files are fetched. Shards are not: in their places are holes of the same size, and receipts
tell the record of copies which objects they stand for.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.atomic import publish, temporary_path
from millstream.copying.listing import CopiedFile
from millstream.copying.local_place import LocalPlace
from millstream.copying.place import FileFacts, describe
from millstream.copying.record import CopyRecord, is_about
from millstream.copying.shared_output import RECEIPT, SHARES, fetch, is_small
from millstream.copying.staging import StagedOutput, token_path
from millstream.error_texts import rewording_errors
from millstream.errors import DatasetExistsError, MissingDataError
from millstream.formats.checksums import CHECKSUMS
from millstream.formats.job_marks import UNFINISHED
from millstream.formats.stream import PART_SUFFIX, read_manifest
from millstream.remote.options import Remote


class JoinedOutput(StagedOutput):
    """The staging directory where shares are joined."""

    def __init__(self, url: str, remote: Remote | None) -> None:
        super().__init__(url, "finish", remote)

    def prepare(self) -> None:
        """Fetch the shares, unless an earlier run has joined them."""
        there = self._target.list_files()
        if UNFINISHED not in there:
            if self.is_finished:  # killed at its very end
                return
            if not there:
                raise MissingDataError(f"{self.url}: nothing is there to finish")
            raise DatasetExistsError(f"{self.url}: is finished already")
        self._mark(SHARES).refuse_others(self._target)
        if self.is_finished:
            return
        self.discard()  # there may be more shares by now
        with CopyRecord(self._target) as record:
            fetched = temporary_path(self.directory)
            fetch(self._target, filter(is_small, there), fetched)
            try:
                self._stand_in(there, fetched, record)
                publish(token_path(self.directory), SHARES)
                fetched.rename(self.directory)
            except BaseException:
                shutil.rmtree(fetched, ignore_errors=True)
                raise

    def discard(self) -> None:
        """Remove what was fetched."""
        shutil.rmtree(self.directory, ignore_errors=True)
        token_path(self.directory).unlink(missing_ok=True)

    @contextlib.contextmanager
    def joining(self) -> Iterator[Path]:
        """The directory, to join the shares in. An error names the target, and nothing is kept."""
        try:
            with rewording_errors(lambda text: text.replace(str(self.directory), self.url)):
                yield self.directory
        except BaseException:
            self.discard()
            raise

    def _stand_in(self, there: dict[str, FileFacts], directory: Path, record: CopyRecord) -> None:
        """Put holes in the places of shards, and note which objects they stand for."""
        receipts = dict[str, list[list[Any]]]()
        for receipt in [name for name in there if name.endswith(RECEIPT)]:
            for name, *entry in json.loads(self._target.read(receipt)):
                receipts.setdefault(name, []).append(entry)
        place = LocalPlace(directory)
        for name in _listed_by_parts(directory):
            found = there.get(name)
            entries = receipts.get(name, [])
            entry = next((each for each in entries if found and is_about(each, found)), None)
            if found is None or entry is None:
                raise self._lost(name, found)
            with (directory / name).open("wb") as file:
                file.truncate(found.size_bytes)
            facts = place.find(name)
            assert facts is not None
            xxh3 = None if name.endswith(CHECKSUMS) else entry[1]
            record.add(CopiedFile(name, facts, xxh3), found.identity)
        for name in there:  # to be removed when the dataset is complete
            if is_small(name) or name.endswith(RECEIPT):
                record.add(CopiedFile(name, there[name], None), there[name].identity)
        record.sync()

    def _lost(self, name: str, found: FileFacts | None) -> MissingDataError:
        directory, _, last = name.rpartition("/")
        part = f"{last[:5]}{PART_SUFFIX}"
        where = self._target.show(f"{directory}/{part}" if directory else part)
        return MissingDataError(
            f"{self._target.show(name)}: {describe(found)}; it was uploaded, then removed or "
            f"replaced. Remove {where}, run the share that wrote it again, then finish"
        )


def _listed_by_parts(directory: Path) -> Iterator[str]:
    """The files of all shards."""
    for part in sorted(directory.rglob(f"*{PART_SUFFIX}")):
        where = part.parent.relative_to(directory)
        for shard in read_manifest(part.parent, part.name).shards:
            for suffix in (*shard.files, CHECKSUMS):
                yield str(where / f"{shard.name}{suffix}")
