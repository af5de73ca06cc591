"""Renders conversations whose contents are unknown, once for each shape.

Most templates copy the contents of messages without looking at them. What they write around them
then depends only on the conversation's shape: who speaks in which order, and which contents are
empty. `ShapeTemplate` runs the template itself, in Jinja, with an `Unknown` in place of each
content. An `Unknown` can be joined with text, stripped, and written; everything else that a
template might do with it raises `LooksInsideError`, and such conversations are rendered one by one.
So the result is that of the template, for every content, or there is none.

    roles   user, assistant
    pieces  "<|user|>", content 0, "<|assistant|>", content 1, "<|end|>"
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from itertools import pairwise
from typing import Any, NamedTuple

from millstream.text.chats.template import ChatTemplate, jinja2, new_environment
from millstream.text.chats.unknown_text import (
    ChatPiece,
    ChatPieces,
    Content,
    Edge,
    LooksInsideError,
    Unknown,
    WrittenPieces,
    join,
    merged_pieces,
    pieces_of,
)


class ChatShape(NamedTuple):
    """What is known of a conversation: one entry for each message."""

    roles: tuple[str, ...]
    has_content: tuple[bool, ...]
    """False for empty contents"""
    first_keys: tuple[str, ...]
    """"role" or "content", whichever comes first"""

    def take(self, count: int) -> "ChatShape":
        """The first messages."""
        roles, has_content, first_keys = self
        return ChatShape(roles[:count], has_content[:count], first_keys[:count])


Place = tuple[int, int]
"""a piece, and a character in it"""


class RenderedShape(NamedTuple):
    """What a template writes for all conversations of a shape."""

    pieces: ChatPieces
    """texts and contents; no text stands beside another"""
    generated: list[tuple[Place, Place]]
    """what the template marks as written by the model"""

    @property
    def end(self) -> Place:
        """Where the text ends."""
        return len(self.pieces), 0

    def end_of(self, prefix: "RenderedShape") -> Place | None:
        """Where a prefix of the text ends; None if it is not one."""
        whole, k = self.pieces, len(prefix.pieces) - 1
        if prefix.pieces == whole[: k + 1]:
            return k + 1, 0
        if k >= len(whole) or prefix.pieces[:k] != whole[:k]:
            return None
        last, other = prefix.pieces[k], whole[k]
        is_start = isinstance(last, str) and isinstance(other, str) and other.startswith(last)
        return (k, len(last)) if is_start else None

    def cut(self, places: Iterable[Place]) -> tuple[ChatPieces, dict[Place, int]]:
        """The pieces with texts cut at some places, and how many pieces come before each."""
        cuts = sorted({*places, self.end, *((k, 0) for k in range(len(self.pieces)))})
        pieces = list[ChatPiece]()
        for (k, start), (next_piece, stop) in pairwise(cuts):
            piece = self.pieces[k]
            if isinstance(piece, str):
                piece = piece[start : stop if next_piece == k else None]
            pieces.append(piece)
        return tuple(pieces), {place: number for number, place in enumerate(cuts)}


class ShapeTemplate:
    """The same template for unknown contents."""

    def __init__(self, template: ChatTemplate) -> None:
        self._variables = template.variables
        environment = _new_environment()
        tree = environment.parse(template.source)
        self._escapes = tree.find(jinja2().nodes.EvalContextModifier) is not None
        self._template = environment.from_string(_without_concatenation(tree))

    def render(self, shape: ChatShape, *, add_generation_prompt: bool = False) -> RenderedShape:
        """What the template writes for conversations of a shape; raises `LooksInsideError`."""
        messages = list[dict[str, Any]]()
        for k, (role, has_content, first_key) in enumerate(zip(*shape, strict=True)):
            message = {"role": role, "content": Unknown((Content(k),), not has_content)}
            others = {key: value for key, value in message.items() if key != first_key}
            messages.append({first_key: message[first_key], **others})
        inputs: Mapping[str, Any] = self._variables | {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        if self._escapes:
            raise LooksInsideError
        try:
            return _without_edges(pieces_of(self._template.generate(**inputs)))
        except Exception:  # it looks inside, or refuses: rendering one by one will tell
            raise LooksInsideError from None


def _without_edges(pieces: Iterable[ChatPiece]) -> RenderedShape:
    """The texts and contents, and where generation blocks begin and end among them."""
    seen, begun = list[ChatPiece](), list[Place]()
    generated = list[tuple[Place, Place]]()
    for piece in pieces:
        if not isinstance(piece, Edge):
            seen = list(merged_pieces([*seen, piece]))
            continue
        is_text = bool(seen) and isinstance(seen[-1], str)
        place = (len(seen) - 1, len(seen[-1])) if is_text else (len(seen), 0)
        if piece.begins:
            begun.append(place)
        else:
            generated.append((begun.pop(), place))
    whole = tuple(seen)
    settled = [(_settle(whole, start), _settle(whole, stop)) for start, stop in generated]
    return RenderedShape(whole, settled)


def _settle(pieces: ChatPieces, place: Place) -> Place:
    """The same place; the end of a piece is the beginning of the next."""
    k, at = place
    is_end = k < len(pieces) and at == len(pieces[k]) and at > 0
    return (k + 1, 0) if is_end else place


def _new_environment() -> Any:
    environment = new_environment(_mark_generation)
    environment.finalize = _written
    environment.concat = join
    environment.filters |= {"trim": _trim, "string": _as_text}
    environment.filters = {
        name: each if name in _BLIND_FILTERS else _blind(each)
        for name, each in environment.filters.items()
    }
    environment.tests = {name: _of_texts(name, test) for name, test in environment.tests.items()}
    environment.call_binop = _blind(environment.call_binop)  # a % content takes it for a mapping
    environment.getattr = _blind_lookup(environment.getattr)
    environment.getitem = _blind_lookup(environment.getitem)
    environment.extend(join_texts=_join_texts)
    return environment


def _written(value: Any) -> Any:
    return WrittenPieces.of(value.pieces) if isinstance(value, Unknown) else value


def _mark_generation(text: Any) -> Any:
    inside = text.pieces if isinstance(text, Unknown) else (text,)
    return WrittenPieces.of((Edge(begins=True), *inside, Edge(begins=False)))


def _join_texts(*parts: Any) -> Any:
    return join(part if isinstance(part, Unknown) else str(part) for part in parts)


def _as_text(value: Any) -> Any:
    return value if isinstance(value, str | Unknown) else str(value)


def _trim(value: Any, chars: str | None = None) -> Any:
    return _as_text(value).strip(chars)


_BLIND_FILTERS = ("d", "default", "string", "trim")
"""filters that take contents and do not look inside"""


def _blind(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Jinja that is not given contents: many ask for the type of their arguments."""

    @wraps(function)  # keeps what Jinja notes about its arguments
    def checked(*args: Any, **named: Any) -> Any:
        if any(isinstance(each, Unknown) for each in (*args, *named.values())):
            raise LooksInsideError
        return function(*args, **named)

    return checked


def _blind_lookup(get: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A lookup of attributes that knows those of texts, and does not look for contents."""

    def checked(value: Any, name: Any) -> Any:
        is_method = name in ("strip", "lstrip", "rstrip")
        if isinstance(name, Unknown) or (isinstance(value, Unknown) and not is_method):
            raise LooksInsideError
        return get(value, name)

    return checked


def _of_texts(name: str, test: Callable[..., bool]) -> Callable[..., bool]:
    """A test of Jinja that knows what it says of any text, and otherwise does not look inside."""

    @wraps(test)  # keeps what Jinja notes about its arguments
    def checked(*args: Any) -> bool:
        if not any(isinstance(each, Unknown) for each in args):
            return test(*args)
        if name in _SAID_OF_TEXTS and len(args) == 1:
            return _SAID_OF_TEXTS[name]
        raise LooksInsideError

    return checked


_SAID_OF_TEXTS = {
    "callable": False,
    "defined": True,
    "false": False,
    "iterable": True,
    "mapping": False,
    "none": False,
    "number": False,
    "sequence": True,
    "string": True,
    "true": False,
    "undefined": False,
}


def _without_concatenation(tree: Any) -> Any:
    """The template with calls of `join_texts` for Jinja's operator ~, which would look inside."""
    nodes = jinja2().nodes

    class Replace(importlib.import_module("jinja2.visitor").NodeTransformer):  # type: ignore[misc]
        def visit_Concat(self, node: Any) -> Any:  # noqa: N802 (Jinja's name)
            join_texts = nodes.EnvironmentAttribute("join_texts")
            parts = [self.visit(part) for part in node.nodes]
            return nodes.Call(join_texts, parts, [], None, None).set_lineno(node.lineno)

    return Replace().visit(tree)
