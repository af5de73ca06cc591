"""`TargetMark`: says at a target, in `unfinished.json`, what is being written there.

It is written first and removed last. Nothing opens a directory that has it.
"""

import json
import socket
from collections.abc import Collection
from dataclasses import dataclass, field

from millstream.copying.place import CopyPlace
from millstream.errors import DatasetExistsError, MissingDataError
from millstream.formats.job_marks import UNFINISHED
from millstream.formats.stream import MANIFEST_NAME

_MAX_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetMark:
    """What is written to a target."""

    command: str
    """the one of `millstream` that continues it"""
    source: str
    digest: str | None = None
    """of the dataset, once all of it is known"""
    token: str | None = None
    """of the staging directory that files come from while a job goes on"""
    host: str = field(default_factory=socket.gethostname)
    """where that directory is; empty if it is on several machines"""

    def begin(self, target: CopyPlace, there: Collection[str]) -> None:
        """Write the mark; if there is one already, refuse the target unless it is of this."""
        if UNFINISHED in there:
            self.refuse_others(target)
            return
        self._refuse_written(target, there)
        target.publish(UNFINISHED, self.content)
        # It may have taken minutes to arrive.
        now = set(target.list_files()) - {UNFINISHED}
        try:
            self._refuse_written(target, now & {MANIFEST_NAME} if self._is_shared else now)
        except DatasetExistsError:
            target.remove(UNFINISHED)
            raise

    @property
    def content(self) -> bytes:
        """What `unfinished.json` says."""
        known = {"command": self.command, "source": self.source, "host": self.host}
        named = {"digest": self.digest, "token": self.token}
        known |= {name: value for name, value in named.items() if value is not None}
        return json.dumps(known).encode()

    @property
    def _is_shared(self) -> bool:
        """Whether other machines write to the target, too."""
        return not self.host

    def _refuse_written(self, target: CopyPlace, there: Collection[str]) -> None:
        """Refuse what a job has written that began since this one listed the target."""
        if there:
            name = MANIFEST_NAME if MANIFEST_NAME in there else min(there)
            raise DatasetExistsError(
                f"{target.show(name)}: another job has written to this target meanwhile; choose "
                "another target"
            )

    def refuse_others(self, target: CopyPlace) -> None:
        """Refuse a target with the mark of something else."""
        try:
            begun = dict(json.loads(target.read(UNFINISHED, _MAX_BYTES)))
        except MissingDataError:
            raise DatasetExistsError(
                f"{target.show()}: another job has just finished there, or given up; run the "
                "command again"
            ) from None
        except (ValueError, TypeError):
            begun = {}
        if self.token is not None and begun.get("token") == self.token:
            return
        if self.digest is not None and begun.get("digest") == self.digest:
            return
        source, host = begun.get("source", "an unknown source"), begun.get("host")
        if "token" not in begun and source == self.source:
            what = f"a copy of {source} was begun here, which has changed since"
        elif "token" not in begun:
            what = (
                f"a copy of {source} was begun here, which is not the same dataset as "
                f"{self.source} now; continue that one"
            )
        elif host:
            what = f"a job on {host} was begun here, staged in {source}; continue it there"
        else:
            what = "a job of several machines was begun here; continue that one"
        raise DatasetExistsError(
            f"{target.show(UNFINISHED)}: {what}, choose another target, or remove {target.show()}"
        )
