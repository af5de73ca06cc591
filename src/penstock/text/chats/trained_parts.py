"""Which parts of a rendered conversation are trained on.

What the assistant writes is known from the template's generation blocks. A template without them
is asked for prefixes of the conversation: what it writes before the assistant's turn, with the
header of that turn, and what it writes up to the turn's end. Both must be prefixes of the whole;
the turn lies between their ends.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from penstock.text.chats.chat import LossOn
from penstock.text.chats.conversations import BadConversationError

_ASSISTANT = "assistant"


class RenderedText(Protocol):
    """What `Rendered` and `RenderedShape` share."""

    @property
    def generated(self) -> list[tuple[Any, Any]]:
        """What the template marks as written by the model."""

    def end_of(self, prefix: Any) -> Any:
        """Where a prefix of the text ends; None if it is not one."""


AnyText = TypeVar("AnyText", bound=RenderedText)
RenderPrefix = Callable[[int, bool], AnyText]
"""renders the first messages, and if wanted the header of the assistant's next turn"""


def find_trained(
    whole: AnyText,
    render: RenderPrefix[AnyText],
    roles: Sequence[str],
    num_given: int,
    loss_on: LossOn,
    *,
    marks_generation: bool,
) -> list[tuple[Any, Any]]:
    """Return the ranges of a conversation to train on, of its turns after `num_given`."""
    if marks_generation:
        trained = whole.generated
        if num_given:
            prompt_end = _end(whole, render(num_given, False), num_given)
            trained = [(start, stop) for start, stop in trained if start >= prompt_end]
        return trained[-1:] if loss_on == "last" else trained
    turns = [k for k in range(num_given, len(roles)) if roles[k] == _ASSISTANT]
    return [
        (_end(whole, render(k, True), k), _end(whole, render(k + 1, False), k + 1))
        for k in (turns[-1:] if loss_on == "last" else turns)
    ]


def _end(whole: AnyText, prefix: AnyText, num_messages: int) -> Any:
    end = whole.end_of(prefix)
    if end is None:
        raise BadConversationError(
            f"the template writes messages 0 to {num_messages - 1:,} differently if others follow, "
            "so the turns of the assistant cannot be told apart; mark them in the template with "
            "{% generation %} and {% endgeneration %}, or train on everything with loss_on='all' "
            "(--loss-on all)"
        )
    return end
