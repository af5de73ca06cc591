"""Datasets of objects, and what a plain list of their documents says about them."""

import contextlib
import os
import tempfile
from pathlib import Path

from hypothesis import strategies as st

import millstream

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

# Most documents are short, some are empty, some fill several shards.
documents = st.lists(
    st.one_of(st.binary(max_size=5), st.binary(max_size=300)), min_size=1, max_size=30
)


def write_objects(path, contents, *, metadata=None, **options):
    """Write bytes, with metadata if it is given, and open them."""
    access = options.pop("access", "pread")
    encode_metadata = None if metadata is None else bytes
    with millstream.Writer(path, encode=bytes, metadata=encode_metadata, **options) as writer:
        for number, content in enumerate(contents):
            if metadata is None:
                writer.append(content)
            else:
                writer.append(content, metadata[number])
    return millstream.open(path, access=access)


def metadata_of(contents):
    """A text of its own for each document; that of every third is empty."""
    return [b"" if number % 3 == 2 else b"of %d" % number for number in range(len(contents))]


@contextlib.contextmanager
def objects(contents, **options):
    """A dataset of bytes in memory."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        yield write_objects(Path(root) / "data", contents, **options)
