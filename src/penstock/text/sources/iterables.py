"""Documents that come from Python: texts, or objects with a text in them."""

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.text.batch import TextBatch
from penstock.text.sources.rows import BadRow, BadValueError, Collector, ReadOptions


def read_iterable(documents: Iterable[Any], reading: ReadOptions) -> Iterator[TextBatch]:
    """Whatever the iterable gives."""
    collector = Collector(reading)
    for row, document in enumerate(documents):
        try:
            collector.add(row, document)
        except BadValueError as error:
            place = f"document {row:,}"
            reading.report(BadRow(file="", row=row, place=place, reason=str(error)))
        if collector.is_full and (batch := collector.take()):
            yield batch
    if batch := collector.take():
        yield batch
