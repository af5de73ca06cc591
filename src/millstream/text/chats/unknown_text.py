"""`Unknown`: a text with unknown contents, which a template may write but not look at."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn, Self


class LooksInsideError(Exception):
    """The template looks inside a content; never leaves this package."""


class Content(NamedTuple):
    """The place of a message's content in a text."""

    message: int
    strip: str = ""
    """the method of `str` that is applied to it, if any"""


class Edge(NamedTuple):
    """Where a generation block begins or ends."""

    begins: bool


ChatPiece = str | Content | Edge
ChatPieces = tuple[ChatPiece, ...]


class Unknown:
    """A text with unknown contents: pieces, end to end."""

    __slots__ = ("_is_empty", "pieces")

    def __init__(self, pieces: ChatPieces, is_empty: bool | None = None) -> None:
        self.pieces, self._is_empty = pieces, is_empty

    def __add__(self, other: Any) -> Any:
        return join((self, other))

    def __radd__(self, other: Any) -> Any:
        return join((other, self))

    def __bool__(self) -> bool:
        if self._is_empty is not None:
            return not self._is_empty
        if any(isinstance(piece, str) and piece for piece in self.pieces):
            return True
        raise LooksInsideError

    def strip(self, *chars: Any) -> "Unknown":
        """As of `str`."""
        return self._stripped("strip", chars)

    def lstrip(self, *chars: Any) -> "Unknown":
        """As of `str`."""
        return self._stripped("lstrip", chars)

    def rstrip(self, *chars: Any) -> "Unknown":
        """As of `str`."""
        return self._stripped("rstrip", chars)

    def _stripped(self, method: str, chars: tuple[Any, ...]) -> "Unknown":
        match self.pieces:
            case (Content(message, strip),) if strip in ("", method) and chars in ((), (None,)):
                return Unknown((Content(message, method),), self._is_empty or None)
        raise LooksInsideError

    def _look(self, *_: Any, **__: Any) -> NoReturn:
        raise LooksInsideError

    __str__ = __repr__ = __format__ = __len__ = __iter__ = __contains__ = __getitem__ = _look
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _look
    __mul__ = __rmul__ = __mod__ = __rmod__ = __int__ = __float__ = __index__ = _look
    __call__ = __html__ = _look

    def __getattr__(self, name: str) -> NoReturn:
        raise LooksInsideError


class WrittenPieces(str):
    """What a template writes for an `Unknown`: an empty text that carries its pieces."""

    __slots__ = ("pieces",)
    pieces: ChatPieces

    @classmethod
    def of(cls, pieces: ChatPieces) -> Self:
        """What is written for these pieces."""
        written = cls()
        written.pieces = pieces
        return written

    def __str__(self) -> str:
        return self  # `str` of a subclass would be a plain, empty text


def join(parts: Iterable[Any]) -> Any:
    """Join texts and unknown texts; a text if all are known."""
    merged = merged_pieces(pieces_of(parts))
    if any(isinstance(piece, Edge) for piece in merged):
        raise LooksInsideError  # a generation block whose text is kept, and written elsewhere
    if all(isinstance(piece, str) for piece in merged):
        return "".join(merged)  # type: ignore[arg-type]
    return Unknown(merged)


def pieces_of(parts: Iterable[Any]) -> Iterator[ChatPiece]:
    """The pieces of texts, known and unknown, end to end."""
    for part in parts:
        match part:
            case Unknown() | WrittenPieces():
                yield from part.pieces
            case str() if type(part) is str:  # others, such as Markup, change what is added to them
                yield part
            case _:
                raise LooksInsideError  # templates cannot add anything else to a text either


def merged_pieces(pieces: Iterable[ChatPiece]) -> ChatPieces:
    """Neighbouring texts as one, and no empty ones."""
    merged = list[ChatPiece]()
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        elif piece != "":
            merged.append(piece)
    return tuple(merged)
