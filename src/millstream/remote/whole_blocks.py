"""`WholeBlocks`: cuts what arrives of an object into whole blocks, as only those can be stored."""

from collections.abc import Callable
from typing import Any

from millstream.system.checksums import BLOCK_BYTES


class WholeBlocks:
    """Passes the bytes of a range on in whole blocks; the object's last may be shorter."""

    def __init__(self, stop: int, pass_on: Callable[[int, Any, bytes], None]) -> None:
        """`stop` is where the range ends; `pass_on` takes a start, bytes, and those before them."""
        self._stop, self._pass_on = stop, pass_on
        self._at, self._head = -1, b""

    def __call__(self, at: int, chunk: Any) -> None:
        """Take the bytes that follow the last ones, or the first ones again."""
        # From the start once more, if an answer was cut.
        head = self._head if at == self._at else b""
        self._at, num_bytes = at + len(chunk), len(head) + len(chunk)
        num_left = 0 if self._at == self._stop else num_bytes % BLOCK_BYTES
        if num_left == num_bytes:
            self._head = head + bytes(chunk)
            return
        # Not joined: every thread would keep the memory of the longest.
        stop = len(chunk) - num_left
        self._head = bytes(memoryview(chunk)[stop:])
        self._pass_on(at - len(head), memoryview(chunk)[:stop], head)
