"""`ChatRenderer`: rows to texts, with the bytes of each text to train on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any, NamedTuple

from millstream.text.chats.chat import Chat
from millstream.text.chats.conversations import (
    BadConversationError,
    Conversation,
    PromptText,
    conversations_in,
)
from millstream.text.chats.shapes import ChatShape, Place, RenderedShape, ShapeTemplate
from millstream.text.chats.template import ChatTemplate, Rendered, TemplateRefusalError
from millstream.text.chats.template_files import TemplateSource
from millstream.text.chats.trained_parts import find_trained
from millstream.text.chats.unknown_text import Content, LooksInsideError

_MAX_SHAPES = 1 << 12
_MAX_SHAPE_MESSAGES = 64


class ChatText(NamedTuple):
    """A conversation as text."""

    text: bytes
    trained: list[tuple[int, int]]
    """ranges of bytes, ascending"""


class _ShapePlan(NamedTuple):
    """How to make the text of any conversation of one shape."""

    pieces: list[bytes]
    """empty where contents go"""
    contents: list[tuple[int, int, str]]
    """the piece, the message whose content goes there, and how it is stripped"""
    trained: list[tuple[int, int]]
    """ranges of pieces"""


class ChatRenderer:
    """Renders the rows of a source; can be pickled, and any number of threads may call it."""

    def __init__(self, chat: Chat, source: TemplateSource | None) -> None:
        """`source` is None only if the chat uses no template."""
        self.chat, self._source = chat, source
        self._plans: dict[tuple[ChatShape, int], _ShapePlan | None] = {}
        if source is not None:
            self._template = self._compile(source, source.default)
            self._with_tools = (
                self._template
                if source.with_tools is None
                else self._compile(source, source.with_tools)
            )
            self._shape_template = ShapeTemplate(self._template)

    def __reduce__(self) -> tuple[Any, ...]:
        return ChatRenderer, (self.chat, self._source)

    def _compile(self, source: TemplateSource, text: str) -> ChatTemplate:
        variables = {**source.variables, **self.chat.variables}
        return ChatTemplate(text, variables, source.where, self.chat.date)

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides the texts, for JSON."""
        chat = asdict(self.chat) | {"template": None}
        source = None if self._source is None else asdict(self._source) | {"where": None}
        return chat | {"source": source}

    @property
    def group_size(self) -> int:
        """How many documents a row becomes, which belong together."""
        return 2 if self.chat.makes_pairs else 1

    def render(self, row: Mapping[str, Any]) -> list[ChatText]:
        """Return the texts of a row; raises `BadConversationError`."""
        try:
            return [
                self._render_texts(each)
                if isinstance(each, PromptText)
                else self._render_turns(each)
                for each in conversations_in(row, self.chat)
            ]
        except TemplateRefusalError as refusal:
            raise BadConversationError(f"the chat template refuses it: {refusal}") from None
        except UnicodeEncodeError as error:
            raise BadConversationError(
                f"a message has an unpaired surrogate at character {error.start:,}"
            ) from None

    def _render_texts(self, texts: PromptText) -> ChatText:
        prompt, completion = texts.prompt.encode(), texts.completion.encode()
        start = 0 if self.chat.loss_on == "all" else len(prompt)
        return ChatText(prompt + completion, [(start, len(prompt) + len(completion))])

    def _render_turns(self, turns: Conversation) -> ChatText:
        shape = _shape_of(turns)
        if shape is None:
            return self._render_alone(turns)
        key = shape, turns.num_given
        try:
            plan = self._plans[key]
        except KeyError:
            plan = self._plan(*key)
            if len(self._plans) >= _MAX_SHAPES:
                self._plans.clear()
            self._plans[key] = plan
        return self._render_alone(turns) if plan is None else _fill(plan, turns)

    def _plan(self, shape: ChatShape, num_given: int) -> _ShapePlan | None:
        """Return how to render a shape; None if each conversation must be rendered alone."""
        try:
            return self._render_shape(shape, num_given)
        except (
            LooksInsideError,
            BadConversationError,
        ):  # rendered alone, each gives its own reason
            return None

    def _render_shape(self, shape: ChatShape, num_given: int) -> _ShapePlan:
        def render(count: int, add_generation_prompt: bool) -> RenderedShape:
            return self._shape_template.render(
                shape.take(count), add_generation_prompt=add_generation_prompt
            )

        whole = render(len(shape.roles), False)
        trained: list[tuple[Place, Place]] = [((0, 0), whole.end)]
        if self.chat.loss_on != "all":
            trained = self._trained(whole, render, shape.roles, num_given, self._template)
        pieces, numbers = whole.cut([place for each in trained for place in each])
        return _ShapePlan(
            [piece.encode() if isinstance(piece, str) else b"" for piece in pieces],
            [(k, *piece) for k, piece in enumerate(pieces) if isinstance(piece, Content)],
            [(numbers[start], numbers[stop]) for start, stop in trained],
        )

    def _render_alone(self, turns: Conversation) -> ChatText:
        messages, tools = turns.messages, turns.tools
        template = self._template if tools is None else self._with_tools

        def render(count: int, add_generation_prompt: bool) -> Rendered:
            return template.render(
                messages[:count], tools, add_generation_prompt=add_generation_prompt
            )

        whole = render(len(messages), False)
        trained = [(0, len(whole.text))]
        if self.chat.loss_on != "all":
            roles = [message["role"] for message in messages]
            trained = self._trained(whole, render, roles, turns.num_given, template)
        text = whole.text.encode()
        if len(text) != len(whole.text):
            trained = [
                (len(whole.text[:start].encode()), len(whole.text[:stop].encode()))
                for start, stop in trained
            ]
        return ChatText(text, trained)

    def _trained(
        self,
        whole: Any,
        render: Callable[[int, bool], Any],
        roles: Sequence[str],
        num_given: int,
        template: ChatTemplate,
    ) -> list[tuple[Any, Any]]:
        return find_trained(
            whole,
            render,
            roles,
            num_given,
            self.chat.loss_on,
            marks_generation=template.marks_generation,
        )


def _shape_of(turns: Conversation) -> ChatShape | None:
    """The shape of a conversation; None if its messages have more than a role and a text."""
    messages = turns.messages
    if turns.tools is not None or len(messages) > _MAX_SHAPE_MESSAGES:
        return None
    contents = [message.get("content") for message in messages]
    if set(map(type, contents)) != {str} or set(map(len, messages)) != {2}:
        return None
    roles = tuple([message["role"] for message in messages])
    return ChatShape(roles, tuple(map(bool, contents)), tuple(map(next, map(iter, messages))))


def _fill(plan: _ShapePlan, turns: Conversation) -> ChatText:
    pieces = plan.pieces.copy()
    for k, message, strip in plan.contents:
        content = turns.messages[message]["content"]
        pieces[k] = (getattr(content, strip)() if strip else content).encode()
    ends = list(accumulate(map(len, pieces), initial=0))
    return ChatText(b"".join(pieces), [(ends[start], ends[stop]) for start, stop in plan.trained])
