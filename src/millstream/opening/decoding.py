"""Decode files that cannot be read in place, once, into the user's cache."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np

from millstream.cache import cached
from millstream.errors import FormatError
from millstream.formats.shard import TOKEN, Manifest
from millstream.formats.undecoded import COPIES, Described, Undecoded, copy_name, find_copy


def decoded(described: Described) -> Manifest:
    """The manifest of files that can be read: the files themselves, or their decoded copy."""
    if isinstance(described, Manifest):
        return described
    files = described

    def write(directory: Path) -> None:
        _write_copy(files, directory)

    manifest = cached(COPIES, copy_name(files.format, files.identity), find_copy, write)
    return replace(
        manifest,
        format=files.format,
        unread=files.unread,
        ignorable=files.ignorable,
        decoded_from=str(files.source),
    )


def _write_copy(files: Undecoded, directory: Path) -> None:
    from shutil import rmtree

    from millstream.write.writer import Writer  # most datasets open without it

    rmtree(directory, ignore_errors=True)  # damaged, or left by a process that died
    runs, record = files.decode(), files.record
    if record is None:
        first = next(runs, None)
        token = np.dtype("<u4") if first is None else first.tokens.dtype
        record = np.dtype([(TOKEN, token)])
        runs = itertools.chain([first] if first else [], runs)
    metadata = bytes if files.has_metadata else None
    with Writer(directory, fields=record, metadata=metadata) as writer:
        for run in runs:
            if run.tokens.dtype != record[TOKEN]:
                raise FormatError(
                    f"{files.source}: the first tokens are {record[TOKEN]}, later ones "
                    f"{run.tokens.dtype}; write the files again with one type"
                )
            writer.extend(run.records, run.lengths, run.metadata)
