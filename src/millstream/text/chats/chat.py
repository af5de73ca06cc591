"""`Chat`: how rows become conversations, and conversations text."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from millstream.arguments import one_of
from millstream.errors import UsageError

LossOn = Literal["assistant", "last", "all"]

NO_TEMPLATE = "none"


def _is_day(date: Any) -> bool:
    try:
        datetime.strptime(date, "%Y-%m-%d")
    except (ValueError, TypeError):
        return False
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """Conversations in the rows of a source, for `tokenize` and `TextLoader`.

    A row has one of these:

        messages                    a list of messages with `role` and `content`, or ShareGPT's
                                    names for them, `from` and `value`
        prompt, completion          texts, or lists of messages; only the completion is trained on
        chosen, rejected (prompt)   a pair for preference training: two documents, of the prompt and
                                    one of the answers, that views keep together in a row

    >>> Chat(loss_on="last").columns
    ('messages',)
    """

    messages: str | None = None
    """the column of conversations; "messages", unless other columns are named"""
    prompt: str | None = None
    """the column of prompts"""
    completion: str | None = None
    """the column of their completions"""
    chosen: str | None = None
    """the column of better answers"""
    rejected: str | None = None
    """the column of worse answers"""
    tools: str = "tools"
    """the column of the tools that a conversation may use, if there is one"""
    template: str | os.PathLike[str] | None = None
    """a directory of a tokenizer, a file, or the template itself; None for the tokenizer's own.
    "none" joins prompt and completion, which must be texts, without a template"""
    loss_on: LossOn = "assistant"
    """the tokens to train on: what the assistant writes, its last turn, or everything"""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """more variables for the template, such as enable_thinking=False"""
    date: str | None = None
    """what a template takes for today's date, such as 2026-01-31"""
    columns: tuple[str, ...] = field(init=False)
    """those that every row must have"""

    def __post_init__(self) -> None:
        one_of("loss_on", self.loss_on, get_args(LossOn))
        given = {
            name: getattr(self, name)
            for name in ("messages", "prompt", "completion", "chosen", "rejected")
        }
        for name, column in (*given.items(), ("tools", self.tools)):
            if column is not None and (not isinstance(column, str) or not column):
                raise UsageError(f"{name} is {column!r:.60}; it must be the name of a column")
        named = {name for name, column in given.items() if column is not None}
        if not named:
            object.__setattr__(self, "messages", "messages")
        elif named not in (
            {"messages"},
            {"prompt", "completion"},
            {"chosen", "rejected"},
            {"prompt", "chosen", "rejected"},
        ):
            raise UsageError(
                f"a Chat cannot have {', '.join(sorted(named))} alone: name messages; or prompt "
                "and completion; or chosen and rejected, and prompt if it is not part of them"
            )
        columns = tuple(getattr(self, name) for name in given if getattr(self, name) is not None)
        object.__setattr__(self, "columns", columns)
        if self.template is not None and not isinstance(self.template, str | os.PathLike):
            raise UsageError(
                f"template is {self.template!r:.60}; it must be a path, or the text of a template"
            )
        if not self.uses_template and self.makes_pairs and self.prompt is None:
            raise UsageError(
                "without a template, the prompt of chosen and rejected cannot be told from them; "
                "name its column: prompt=… (--prompt)"
            )
        if self.date is not None and not _is_day(self.date):
            raise UsageError(f"date is {self.date!r:.40}; expected a day such as '2026-01-31'")
        try:
            variables = json.loads(json.dumps(dict(self.variables)))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"variables is {self.variables!r:.60}; it must be a dict of JSON values ({error})"
            ) from None
        object.__setattr__(self, "variables", variables)

    def option_for(self, column: str) -> str:
        """The option that names a column, for messages."""
        names = ("messages", "prompt", "completion", "chosen", "rejected")
        name = next((name for name in names if getattr(self, name) == column), "messages")
        return f"Chat({name}=…), --{name}"

    @property
    def makes_pairs(self) -> bool:
        """Whether a row becomes two documents that belong together."""
        return self.chosen is not None

    @property
    def uses_template(self) -> bool:
        """Whether texts come from a template."""
        return self.template != NO_TEMPLATE

    @property
    def default_add(self) -> Literal["none"] | None:
        """The marks of documents if the user names none: a template writes its own."""
        return "none" if self.uses_template else None
