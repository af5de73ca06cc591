"""States of a `TextLoader` as they are saved: what they hold, and what is believed of them.

position, epoch, lanes             where it stands; `epoch` counts only where it is not endless
text, tokenizer, packing, endless  what that is a place in: another loader's must be the same
lane_states                        by lane, those of the rank that saved it, or of all ranks
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from penstock.errors import StateError
from penstock.load.state import State, check_keys, list_differences

IDENTITY = ("text", "tokenizer", "packing", "endless")
_COMMON = ("position", "epoch", "lanes", *IDENTITY)
_KEYS = (*_COMMON, "lane_states")
_MAX_COUNT = 1 << 62
_MAX_EPOCH = 1 << 40  # times the number of blocks it still is a position


def join_states(states: Sequence[State]) -> State:
    """One state of those of all ranks."""
    if not states or isinstance(states, dict):
        raise StateError("join_states takes a list of what state_dict returned on all ranks")
    for state in states:
        check_keys(state, _KEYS, "TextLoader")
        _check_types(state)
    first, lane_states = dict(states[0]), dict[str, Any]()
    for state in states:
        for key in ("version", *_COMMON):
            if state[key] != first[key]:
                raise StateError(
                    f"these states are not of one step: {key} is {first[key]!r} in one and "
                    f"{state[key]!r} in another"
                )
        lane_states |= state["lane_states"]
    missing = (lane for lane in range(first["lanes"]) if str(lane) not in lane_states)
    named = list(islice(missing, 20))  # a damaged state may claim to have any number of lanes
    if named and first["position"]:
        raise StateError(f"lanes {named!s:.100} are in none of the states; join all ranks'")
    return {**first, "lane_states": lane_states}


def check_state(state: Any, identity: State) -> None:
    """Refuse what is no state, or one of other rows."""
    check_keys(state, _KEYS, "TextLoader")
    differences = list_differences(state, identity)
    if differences:
        raise StateError("this state continues other rows; " + differences)
    _check_types(state)


def _check_types(state: State) -> None:
    limits = ("position", 0, _MAX_COUNT), ("epoch", 0, _MAX_EPOCH), ("lanes", 1, _MAX_COUNT)
    for key, least, end in limits:
        if type(state[key]) is not int or not least <= state[key] < end:
            raise StateError(f"{key} is {state[key]!r}, not a count")
    if not isinstance(state["lane_states"], dict):
        raise StateError(f"lane_states is {state['lane_states']!r:.40}, and has to be a dict")
