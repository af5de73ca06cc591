"""The shard that is being written."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from millstream.atomic import NewFile, sync_directory
from millstream.formats.checksums import CHECKSUMS, finish_files
from millstream.formats.shard import DOCUMENTS, INDEX, METADATA, OFFSET, STREAM, Shard, StoredFile

SUFFIXES = (STREAM, DOCUMENTS, INDEX, METADATA)


class OpenShard:
    """The files of a shard, under temporary names, and their contents so far."""

    def __init__(self, directory: Path, name: str, with_metadata: bool) -> None:
        self.num_records = 0
        self.num_documents = 0
        self.num_spans = 0
        self._directory, self._name = directory, name
        self._metadata_bytes = 0
        self._files: dict[str, NewFile] = {}
        try:
            for suffix in SUFFIXES if with_metadata else SUFFIXES[:2]:
                self._files[suffix] = NewFile(directory / f"{name}{suffix}")
                if suffix in (DOCUMENTS, INDEX):
                    self._files[suffix].write(bytes(8))
        except BaseException:
            self.discard()
            raise

    def extend(
        self,
        records: NDArray[np.void],
        lengths: NDArray[np.int64],
        blobs: list[bytes],
        *,
        continues: bool = False,
    ) -> None:
        """Write consecutive documents, and the metadata of their spans.

        If the last document continues, its end is written with its last piece.
        """
        self._files[STREAM].write(records)
        ends = self.num_records + np.cumsum(lengths)
        self._files[DOCUMENTS].write(ends[: len(ends) - continues].astype(OFFSET))
        self.num_records += len(records)
        self.num_documents += len(lengths) - continues
        if blobs:
            self._files[METADATA].write(b"".join(blobs))
            sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
            self._files[INDEX].write((self._metadata_bytes + np.cumsum(sizes)).astype(OFFSET))
            self._metadata_bytes += int(sizes.sum())
            self.num_spans += len(blobs)

    def finish(self) -> Shard:
        """Sync the files and give them and their checksums their final names."""
        named = {f"{self._name}{suffix}": file for suffix, file in self._files.items()}
        written = finish_files(self._directory / f"{self._name}{CHECKSUMS}", named)
        files = {
            suffix: StoredFile(*each)
            for suffix, each in zip(self._files, written.values(), strict=True)
        }
        sync_directory(self._directory)
        return Shard(
            self._directory,
            self._name,
            self.num_records,
            self.num_documents,
            self.num_spans,
            files,
        )

    def discard(self) -> None:
        """Remove the files."""
        for file in self._files.values():
            file.discard()
