"""Reads documents from a Python iterable: texts, or dicts with a text in them."""

from collections.abc import Iterable, Iterator
from typing import Any

from millstream.text.batch import TextBatch
from millstream.text.sources.batch_builder import BatchBuilder
from millstream.text.sources.read_options import BadRow, ReadOptions
from millstream.text.sources.row_values import BadValueError


def read_iterable(documents: Iterable[Any], reading: ReadOptions) -> Iterator[TextBatch]:
    """Yield the documents of the iterable, in batches."""
    builder = BatchBuilder(reading)
    for row, document in enumerate(documents):
        try:
            builder.add(row, document)
        except BadValueError as error:
            place = f"document {row:,}"
            reading.report(BadRow(file="", row=row, place=place, reason=str(error)))
        if builder.is_full and (batch := builder.take()):
            yield batch
    if batch := builder.take():
        yield batch
