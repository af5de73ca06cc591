"""`PackReport`: what a policy makes of a dataset."""

from dataclasses import dataclass, fields
from typing import Any

OBJECTS = "objects"
"""the policy of rows that are whole documents of any size"""

_LATER = ("num_dropped", "dropped")


@dataclass(slots=True)
class PackReport:
    """What a policy makes of a dataset; counts are of records unless they say otherwise."""

    policy: str
    seq_len: int
    num_documents: int = 0
    num_empty: int = 0
    """documents without records, which are in no row unless rows are objects"""
    num_records: int = 0
    num_rows: int = 0
    num_pieces: int = 0
    max_pieces: int = 0
    """in one row"""
    num_split: int = 0
    """documents that no row holds in full: they are split, or their ends are cut off"""
    cropped: int = 0
    """ends of documents that are in no row"""
    lost: int = 0
    """documents at the end of the stream that do not fill a row"""
    label_only: int = 0
    """records that are a label but never an input"""
    num_dropped: int = 0
    """documents that are in no row because they, or their groups, are longer than a row"""
    dropped: int = 0
    """records of these documents"""

    @property
    def num_inputs(self) -> int:
        """The number of records that are inputs."""
        return self.num_records - self.cropped - self.lost - self.label_only - self.dropped

    @property
    def padding(self) -> int:
        """The number of input columns without a record; objects have no columns."""
        if self.policy == OBJECTS:
            return 0
        return self.num_rows * self.seq_len - self.num_inputs

    @property
    def padding_share(self) -> float:
        """The share of input columns without a record."""
        return self.padding / max(1, self.num_rows * self.seq_len)

    @property
    def is_lossless(self) -> bool:
        """Whether every record is an input."""
        return self.num_inputs == self.num_records

    def to_json(self) -> dict[str, Any]:
        """The stored form; plans that drop nothing are stored as they were before any could."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value or name not in _LATER}
