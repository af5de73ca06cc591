"""Options of `tokenize` for conversations, and the `Chat` they describe."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import UsageError

if TYPE_CHECKING:
    from millstream.text.chats.chat import Chat

_COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected")


def add_chat(parser: argparse.ArgumentParser) -> None:
    """Add the columns of conversations, the template, and what to train on."""
    group = parser.add_argument_group(
        "chats", "conversations instead of text, with a loss mask; see docs/chats.md"
    )
    for name, meaning in (
        ("messages", "Column of conversations: messages with role and content, or from and value"),
        ("prompt", "Column of prompts, with --completion, or with --chosen and --rejected"),
        ("completion", "Column of completions, which alone are trained on"),
        ("chosen", "Column of the better answers, for preference training"),
        ("rejected", "Column of the worse answers"),
    ):
        group.add_argument(f"--{name}", metavar="COL", help=meaning)
    group.add_argument(
        "--tools", metavar="COL", help="Column of tools, if there is one (default: tools)"
    )
    group.add_argument(
        "--chat-template",
        metavar="PATH",
        help="Directory of a tokenizer, or a Jinja file; none joins prompt and completion as they "
        "are (default: the template of --tokenizer)",
    )
    group.add_argument(
        "--loss-on",
        choices=["assistant", "last", "all"],
        help="What to train on: the turns of the assistant, its last one, or everything "
        "(default: assistant)",
    )
    group.add_argument(
        "--chat-date",
        metavar="YYYY-MM-DD",
        help="What templates that write today's date take for it",
    )
    group.add_argument(
        "--chat-variable",
        action="append",
        default=[],
        type=_variable,
        metavar="NAME=VALUE",
        help="Variable for the template, such as enable_thinking=false (repeatable)",
    )


def chat_of(arguments: argparse.Namespace) -> "Chat | None":
    """Return the chat that the options describe; None if there is none."""
    from millstream.text.chats.chat import Chat

    columns = {name: getattr(arguments, name) for name in _COLUMNS}
    columns = {name: column for name, column in columns.items() if column is not None}
    others: dict[str, Any] = {
        "tools": arguments.tools,
        "template": arguments.chat_template,
        "loss_on": arguments.loss_on,
        "date": arguments.chat_date,
    }
    others = {name: value for name, value in others.items() if value is not None}
    if arguments.chat_variable:
        others["variables"] = dict(arguments.chat_variable)
    if not columns and others:
        raise UsageError(
            "these options are for conversations; name their column, as in --messages messages"
        )
    return Chat(**columns, **others) if columns else None


def tokenizer_of(arguments: argparse.Namespace) -> str:
    """Return the tokenizer, which may come with the chat template."""
    tokenizer: str | None = arguments.tokenizer
    template: str | None = arguments.chat_template
    if tokenizer is not None:
        return tokenizer
    if template is not None and Path(template).is_dir():
        return template
    found = "" if template is None else f" ({template!r} is not a directory with one)"
    raise UsageError(f"name a tokenizer: --tokenizer FILE{found}")


def _variable(text: str) -> tuple[str, Any]:
    name, is_there, value = text.partition("=")
    if not is_there or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not like NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
