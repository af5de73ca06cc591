"""Formats: where on disk the records, documents and metadata of a dataset lie.

    manifest   what a directory says about itself, checked for consistency before it is believed
    shard      one file set; shards laid end to end make the stream of records
    record     one element of the stream, a NumPy struct of fields, `token` among them

A format reads no tokens. `describe(path)` finds out which format a path is in; there is one so
far, our own stream (`formats.stream`).
"""

from pathlib import Path

from penstock.errors import FormatError, MissingDataError, PenstockError, ReadError
from penstock.formats import stream
from penstock.formats.stream import Manifest, Shard

__all__ = ["Manifest", "Shard", "describe"]


def describe(path: Path) -> Manifest:
    """Read the manifest of the dataset at `path`."""
    try:
        return _describe(path)
    except PenstockError:
        raise
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None


def _describe(path: Path) -> Manifest:
    if path.name == stream.MANIFEST_NAME:
        path = path.parent
    if (path / stream.MANIFEST_NAME).is_file():
        return stream.read_manifest(path)
    if not path.exists():
        raise MissingDataError(f"{path}: no such file or directory")
    if path.is_file():
        raise FormatError(f"{path}: not a dataset; pass the directory with {stream.MANIFEST_NAME}")
    if any(path.glob(f"*{stream.PART_SUFFIX}")):
        raise MissingDataError(
            f"{path}: holds finished parts but no {stream.MANIFEST_NAME}; "
            f"join them with penstock.finish({str(path)!r})"
        )
    if any(path.glob(f"*{stream.STREAM}")):
        raise MissingDataError(
            f"{path}: holds shards but no {stream.MANIFEST_NAME}: the writer did not finish; "
            "write the dataset again"
        )
    raise MissingDataError(f"{path}: holds no dataset ({stream.MANIFEST_NAME} is not there)")
