"""Which parts of a rendered conversation are trained on.

What the assistant writes is known from the template's generation blocks. A template without them
is asked for prefixes of the conversation: what it writes before the assistant's turn, with the
header of that turn, and what it writes up to the turn's end. Both must be prefixes of the whole;
the turn lies between their ends.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from millstream.text.chats.chat import LossOn
from millstream.text.chats.conversations import BadConversationError

_ASSISTANT = "assistant"


class RenderedText(Protocol):
    """What `Rendered` and `RenderedShape` share."""

    @property
    def generated(self) -> list[tuple[Any, Any]] | None:
        """What the template marks as written by the model; None if it is lost."""

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
    turns = [k for k in range(num_given, len(roles)) if roles[k] == _ASSISTANT]
    if loss_on == "last":
        turns = turns[-1:]
    if not marks_generation:
        return _in_order([_turn(whole, render, k) for k in turns])
    if loss_on == "last" and turns:
        num_given = turns[0]
    return _in_order(_marked(whole, render, num_given))


def _marked(whole: AnyText, render: RenderPrefix[AnyText], num_given: int) -> list[tuple[Any, Any]]:
    """The generation blocks after the first `num_given` messages."""
    trained = whole.generated
    if trained is None:
        raise BadConversationError(
            "the template has a generation block in a macro or a {% set %} block, and writes its "
            "text elsewhere, so what the model writes cannot be told; write it where the block is"
        )
    if num_given:
        given_end = whole.end_of(render(num_given, False))
        if given_end is None:
            raise BadConversationError(
                f"the template writes messages 0 to {num_given - 1:,} differently if an answer "
                "follows, so the answer cannot be told apart; train on every turn of the assistant "
                "(messages with loss_on='assistant'), or on everything (loss_on='all')"
            )
        trained = [(start, stop) for start, stop in trained if start >= given_end]
    return trained


def _turn(whole: AnyText, render: RenderPrefix[AnyText], k: int) -> tuple[Any, Any]:
    """What the assistant writes as message k."""
    start, stop = whole.end_of(render(k, True)), whole.end_of(render(k + 1, False))
    if start is not None and stop is not None:
        return start, stop
    is_header = stop is not None and whole.end_of(render(k, False)) is not None
    if is_header:
        found = (
            "the header that the template writes for a new turn of the assistant "
            "(add_generation_prompt) is not how its turns begin"
        )
    else:
        found = (
            f"the template writes messages 0 to {k - (start is None):,} differently if others "
            "follow"
        )
    raise BadConversationError(
        f"{found}, so the turns of the assistant cannot be told apart; mark them in the template "
        "with {% generation %} and {% endgeneration %}, or train on everything with loss_on='all' "
        "(--loss-on all)"
    )


def _in_order(ranges: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Ascending ranges without those that end before they start; overlapping ones as one."""
    ordered = list[tuple[Any, Any]]()
    for start, stop in sorted(ranges):
        if ordered and start < ordered[-1][1]:
            ordered[-1] = ordered[-1][0], max(stop, ordered[-1][1])
        elif start <= stop:
            ordered.append((start, stop))
    return ordered
