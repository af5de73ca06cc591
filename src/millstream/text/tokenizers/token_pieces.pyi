from typing import Self, final

from millstream.text.merging.merge_tables import MergeTables

@final
class TokenPieces:
    def __new__(cls, tables: MergeTables) -> Self: ...
