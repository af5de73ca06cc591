"""Objects of any kind, encoded as documents by a function of the user's."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.formats.shard import OBJECT_FIELDS
from millstream.write.metadata import MetadataEncoder, encode_metadata

ObjectEncoder = Callable[[Any], Any]
"""from an object to bytes, or anything else that has a buffer, such as an array"""


class EncodedObjects(NamedTuple):
    """Consecutive documents, and their metadata."""

    records: NDArray[np.void]
    """the bytes of all documents, end to end"""
    lengths: NDArray[np.int64]
    blobs: list[bytes]
    """the metadata of each document; empty if documents have none"""
    num_spans: NDArray[np.int64]
    """the metadata entries of each document: 1, or 0 if documents have none"""


def check_encoder(encode: Any, of_tokens: Mapping[str, Any]) -> None:
    """Refuse what is not an encoder, and arguments of a writer that are for tokens."""
    for name, value in of_tokens.items():
        if value is not None:
            raise UsageError(f"encode=… writes objects, not tokens; leave out {name}")
    if not callable(encode):
        raise UsageError(f"encode is {encode!r:.60}; it must be a function that returns bytes")


def encode_objects(
    objects: Iterable[Any],
    metadata: Sequence[Any] | None,
    *,
    encode: ObjectEncoder,
    encode_value: MetadataEncoder | None,
    first_document: int,
) -> EncodedObjects:
    """Encode objects, and the metadata of each if the writer has an encoder for it."""
    documents = list[memoryview]()
    # One object is written before its encoder, or that of metadata, can reuse the buffer.
    is_alone = isinstance(objects, list) and len(objects) == 1 and encode_value is None
    for each in objects:
        number = first_document + len(documents)
        try:
            content = encode(each)
        except Exception as error:
            error.add_note(f"while encoding document {number:,}")
            raise
        document = _as_bytes(content, number)
        is_kept = is_alone or isinstance(document.obj, bytes)
        documents.append(document if is_kept else memoryview(bytes(document)))
    blobs = _encode_metadata(metadata, len(documents), encode_value, first_document)
    joined = documents[0] if len(documents) == 1 else b"".join(documents)
    return EncodedObjects(
        np.frombuffer(joined, OBJECT_FIELDS) if len(joined) else np.empty(0, OBJECT_FIELDS),
        np.fromiter(map(len, documents), np.int64, len(documents)),
        blobs,
        np.full(len(documents), int(encode_value is not None), np.int64),
    )


def _as_bytes(content: Any, number: int) -> memoryview:
    try:
        view = memoryview(content)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"document {number:,}: encode returned {type(content).__name__}, not bytes ({error})"
        ) from None
    # Fields may have any name: these stand between colons.
    if "O" in view.format and "O" in re.sub(":[^:]*:", "", view.format):
        raise UsageError(
            f"document {number:,}: encode returned an array of Python objects, whose addresses "
            "mean nothing in another process; return bytes, or an array of numbers"
        )
    if not view.c_contiguous:
        raise UsageError(
            f"document {number:,}: encode returned a buffer with gaps; return a contiguous one, "
            "such as that of numpy.ascontiguousarray"
        )
    return view.cast("B") if view.nbytes else memoryview(b"")


def _encode_metadata(
    metadata: Sequence[Any] | None,
    num_documents: int,
    encode_value: MetadataEncoder | None,
    first_document: int,
) -> list[bytes]:
    if encode_value is None:
        if metadata is not None and any(value is not None for value in metadata):
            raise UsageError("this writer has no metadata encoder; pass metadata=… to Writer")
        return []
    values = [None] * num_documents if metadata is None else list(metadata)
    if len(values) != num_documents:
        raise UsageError(f"{len(values):,} metadata objects for {num_documents:,} documents")
    for number, value in enumerate(values, first_document):
        if value is None:
            raise UsageError(
                f"document {number:,} has no metadata, and every object needs metadata: give a "
                "value that stands for none, or leave metadata=… out of Writer"
            )
    return encode_metadata(
        values, encode_value, range(first_document, first_document + len(values))
    )
