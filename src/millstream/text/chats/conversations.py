"""Conversations in a row: messages in the forms that people keep them in."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from millstream.text.chats.chat import Chat

Message = dict[str, Any]

_SHAREGPT_ROLES = {
    "assistant": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "function_response": "tool",
    "gpt": "assistant",
    "human": "user",
    "model": "assistant",
    "observation": "tool",
    "system": "system",
    "tool": "tool",
    "user": "user",
}


_SAYING = ("content", "tool_calls", "function_call", "reasoning_content", "thinking", "reasoning")
"""a message says something in one of these"""
_KEPT = (*_SAYING[1:], "name", "tool_call_id", "weight")
"""what else templates look at; messages of ShareGPT have other keys too"""


class BadConversationError(Exception):
    """Why a row is not a conversation; never leaves the reading of sources."""


class Conversation(NamedTuple):
    """One conversation."""

    messages: list[Message]
    tools: list[Any] | None = None
    num_given: int = 0
    """the first messages, of which nothing is trained: the prompt"""


class PromptText(NamedTuple):
    """A prompt and a completion that no template changes."""

    prompt: str
    completion: str


def conversations_in(row: Mapping[str, Any], chat: Chat) -> list[Conversation] | list[PromptText]:
    """Return the conversations of a row: one, or the two of a pair."""
    for name in chat.columns:
        if row.get(name) is None:
            found = "is null" if name in row else f"is missing; found {list(row)!s:.100}"
            raise BadConversationError(f"{name!r} {found}")
    if not chat.uses_template:
        return _texts_in(row, chat)
    tools = _tools_in(row, chat)
    if chat.messages is not None:
        return [Conversation(_as_messages(row[chat.messages], chat.messages), tools)]
    answers = [name for name in (chat.completion, chat.chosen, chat.rejected) if name is not None]
    ends = [_as_messages(row[name], name, "assistant") for name in answers]
    if chat.prompt is not None:
        start = _as_messages(row[chat.prompt], chat.prompt, "user")
        ends = [_after(start, end, name) for end, name in zip(ends, answers, strict=True)]
    else:
        start = _common_start(*ends)
        ends = [end[len(start) :] for end in ends]
    return [Conversation([*start, *end], tools, len(start)) for end in ends]


def _after(start: list[Message], end: list[Message], name: str) -> list[Message]:
    """The messages of an answer without the prompt, which some datasets repeat in it."""
    rest = end[len(start) :] if end[: len(start)] == start else end
    if not rest or start[-1] in rest:
        raise BadConversationError(
            f"{name!r} contains the prompt, "
            + ("and nothing else" if not rest else "not at its start; leave out the prompt column")
        )
    return rest


def _texts_in(row: Mapping[str, Any], chat: Chat) -> list[PromptText]:
    for name in chat.columns:
        if not isinstance(row[name], str):
            raise BadConversationError(
                f"{name!r} is {type(row[name]).__name__}; without a template it must be a text"
            )
    prompt = "" if chat.prompt is None else row[chat.prompt]
    answers = (chat.completion, chat.chosen, chat.rejected)
    return [PromptText(prompt, row[name]) for name in answers if name is not None]


def _as_messages(value: Any, name: str, role: str | None = None) -> list[Message]:
    """The messages of a column: a list, the same as JSON, or if `role` may say it, one text."""
    if isinstance(value, str):
        parsed = _parsed(value)
        # Texts may be lists in JSON too, such as answers to a request for one.
        if role is not None and not (parsed and all(map(_is_message, parsed))):
            return [{"role": role, "content": value}]
        value = value if parsed is None else parsed
    if not isinstance(value, list) or not value:
        found = f"{value!r:.40}" if isinstance(value, str) else type(value).__name__
        found = "an empty list" if value == [] else found
        raise BadConversationError(f"{name!r} is {found}; expected a list of messages")
    return [
        each
        if type(each) is dict
        and len(each) == 2
        and type(each.get("role")) is type(each.get("content")) is str  # nearly all are
        else _as_message(each, f"{name!r}, message {k}")
        for k, each in enumerate(value)
    ]


def _is_message(value: Any) -> bool:
    return "role" in value or ("from" in value and "value" in value)


def _as_message(value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise BadConversationError(f"{where}: {type(value).__name__}; expected an object")
    message: Message = value if "role" in value else _from_sharegpt(value, where)
    role, weight = message["role"], message.get("weight")
    if not isinstance(role, str):
        raise BadConversationError(f"{where}: its role is {role!r:.40}; expected a text")
    if all(message.get(name) is None for name in _SAYING):
        raise BadConversationError(
            f"{where}: says nothing; found {list(message)!s:.80}, expected role and content"
        )
    if weight is None:
        return message
    if weight != 1:
        raise BadConversationError(
            f"{where}: its weight is {weight!r:.20}; weights of messages are not supported"
        )
    return {name: value for name, value in message.items() if name != "weight"}


def _from_sharegpt(value: Message, where: str) -> Message:
    if "from" not in value or "value" not in value:
        raise BadConversationError(
            f"{where}: found {list(value)!s:.80}; expected role and content, or from and value"
        )
    said_by = value["from"]
    if not isinstance(said_by, str) or said_by not in _SHAREGPT_ROLES:
        raise BadConversationError(
            f"{where}: from {said_by!r:.40}; expected one of {', '.join(_SHAREGPT_ROLES)}"
        )
    others = {name: value[name] for name in _KEPT if name in value}
    return {"role": _SHAREGPT_ROLES[said_by], "content": value["value"], **others}


def _tools_in(row: Mapping[str, Any], chat: Chat) -> list[Any] | None:
    found = row.get(chat.tools)
    if isinstance(found, str) and found.strip() in ("", "null"):
        return None
    tools = _parsed(found) if isinstance(found, str) else found
    if found is not None and not isinstance(tools, list):
        raise BadConversationError(f"{chat.tools!r} is {found!r:.60}; expected a list of tools")
    for tool in tools or ():
        if not isinstance(tool, dict):
            raise BadConversationError(
                f"{chat.tools!r} has {tool!r:.60}; expected objects, as of a JSON schema"
            )
    return tools or None


def _parsed(text: str) -> list[Any] | None:
    """A list that a text holds as JSON, as tables of text columns do."""
    if not text.lstrip().startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and all(isinstance(k, dict) for k in found) else None


def _common_start(one: list[Message], other: list[Message]) -> list[Message]:
    """The messages that both answers begin with, for pairs that have no prompt."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    if length in (0, len(one), len(other)):
        raise BadConversationError(
            "the chosen and the rejected conversation "
            + ("begin differently; name their prompt" if not length else "do not differ")
        )
    return one[:length]
