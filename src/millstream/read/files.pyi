from enum import IntEnum
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

GEOMETRY: np.dtype[np.void]
FILE_SPAN: np.dtype[np.void]

class FileKind(IntEnum):
    RECORDS = 0
    DOCUMENT_OFFSETS = 1
    METADATA_OFFSETS = 2
    METADATA_BYTES = 3
    FIELD_APART = 4

class FaultCode(IntEnum):
    FINE = 0
    CANNOT_OPEN = 1
    WRONG_SIZE = 2
    CANNOT_READ = 3
    SHORT_READ = 4
    CANNOT_MAP = 5
    WRONG_CONTENT = 6
    WRONG_ROWS = 7
    DAMAGED_ROWS = 8
    NOT_HERE = 9
    OTHER_OBJECT = 10

class FaultReport(NamedTuple):
    code: FaultCode
    kind: FileKind
    shard: int
    offset: int
    detail: int

class ShardFiles:
    @property
    def kind(self) -> FileKind: ...
    def __new__(
        cls,
        kind: FileKind,
        item_bytes: int,
        first_item: NDArray[np.int64],
        geometry: NDArray[np.void],
        names: bytes,
    ) -> Self: ...

def num_reserved_places() -> int: ...

class OpenFiles:
    @property
    def num_places(self) -> int: ...
    def __new__(cls, num_places: int) -> Self: ...
    def close(self) -> None: ...

class Files:
    @property
    def shards(self) -> ShardFiles: ...
    def __new__(cls, shards: ShardFiles, open_files: OpenFiles, *, use_mmap: bool) -> Self: ...
    def close(self) -> None: ...
    def use_fetched(self, ranges: NDArray[np.int64], data: list[Any]) -> None: ...
