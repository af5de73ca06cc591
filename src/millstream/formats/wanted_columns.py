"""The columns that the user of `millstream.open` names."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Columns by name; others have the meaning of their names (`formats.token_columns`)."""

    fields: tuple[str, ...] = ()
    """one number per token; they become fields of the records"""
    metadata: tuple[str, ...] = ()
    """one value per document; they become its metadata"""
    ignore: tuple[str, ...] = ()
    """left out, whatever their names mean"""

    @property
    def names(self) -> tuple[str, ...]:
        """All named columns."""
        return (*self.fields, *self.metadata, *self.ignore)
