"""`ShardSeries`: writes documents to one text shard after the other."""

from collections.abc import Callable, Sequence
from typing import Any

from millstream.text.repacking.shard_formats import SHARDS, TextShard
from millstream.write.shard_job import OpenNew


class ShardSeries:
    """The shards of one slice or stretch, one after the other."""

    def __init__(
        self,
        to: str,
        metadata: Sequence[str],
        most_chars: int,
        open_new: OpenNew,
        advance: Callable[[int], None],
    ) -> None:
        self.num_documents = self.num_characters = self.num_bytes = 0
        self._ending, self._begin = SHARDS[to]
        self._metadata, self._most_chars = metadata, most_chars
        self._open_new, self._advance = open_new, advance
        self._shard: TextShard | None = None
        self._num_shards = self._room = 0

    def write(self, text: bytes, metadata: dict[str, Any]) -> None:
        """Append a document."""
        if self._shard is None:
            file = self._open_new(f"-{self._num_shards:05d}{self._ending}")
            self._shard = self._begin(file, self._metadata)
            self._num_shards, self._room = self._num_shards + 1, self._most_chars
        self._shard.write(text, metadata)
        num_characters = len(text.decode())
        self.num_documents += 1
        self.num_characters += num_characters
        self.num_bytes += len(text)
        self._room -= num_characters
        if self._room <= 0:
            self.finish()
        self._advance(len(text))

    def finish(self) -> None:
        """End the shard that is open."""
        if self._shard is not None:
            self._shard.finish()
            self._shard = None

    def discard(self) -> None:
        """Stop writing the shard that is open; whoever opened its file removes it."""
        if self._shard is not None:
            self._shard.discard()
            self._shard = None
