"""What loaders have in common: how they are closed."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closable(ABC):
    """A loader that can be closed, and used as a context."""

    @abstractmethod
    def close(self) -> None:
        """End all threads; iterating again starts them again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
