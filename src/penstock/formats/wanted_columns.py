"""What the user of `penstock.open` says about the columns of a table."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Columns by name; all others are what their names mean (`formats.token_columns`)."""

    fields: tuple[str, ...] = ()
    """a number for each token, which becomes a field of the records"""
    metadata: tuple[str, ...] = ()
    """a value for each document, which becomes its metadata"""
    ignore: tuple[str, ...] = ()
    """left out, whatever its name means"""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are named."""
        return (*self.fields, *self.metadata, *self.ignore)
