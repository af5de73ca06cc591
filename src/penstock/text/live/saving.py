"""States of a `TextLoader` as they are saved: what they hold, and what is believed of them.

version, position, epoch, lanes    where it stands; `epoch` counts only where it is not endless
text, tokenizer, packing, endless  what that is a place in: another loader's must be the same
lane_states                        by lane, those of the rank that saved it, or of all ranks
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from penstock.errors import StateError

STATE_VERSION = 1
IDENTITY = ("text", "tokenizer", "packing", "endless")
_COMMON = ("version", "position", "epoch", "lanes", *IDENTITY)
_MAX_COUNT = 1 << 62
_MAX_EPOCH = 1 << 40  # times the number of blocks it still is a position

State = dict[str, Any]


def join_states(states: Sequence[State]) -> State:
    """One state of those of all ranks."""
    if not states:
        raise StateError("no states to join; give those of all ranks")
    for state in states:
        if not isinstance(state, dict) or not {*_COMMON, "lane_states"} <= set(state):
            raise StateError(
                f"not a state of a TextLoader: {state!r:.100}; give a list of what state_dict "
                "returned on all ranks"
            )
        _check_types(state)
    first, lane_states = dict(states[0]), dict[str, Any]()
    for state in states:
        for key in _COMMON:
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
    if isinstance(state, dict) and state.get("version", STATE_VERSION) != STATE_VERSION:
        raise StateError(
            f"the state has version {state['version']!r}; this Penstock reads {STATE_VERSION}"
        )
    expected = sorted([*_COMMON, "lane_states"])
    if not isinstance(state, dict) or sorted(map(str, state)) != expected:
        found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise StateError(
            f"not a state of a TextLoader: expected the keys {expected}, found {found!s:.200}"
        )
    differences = [
        f"{key}: saved {state[key]!r}, here {identity[key]!r}"
        for key in IDENTITY
        if state[key] != identity[key]
    ]
    if differences:
        raise StateError("this state continues other rows; " + "; ".join(differences))
    _check_types(state)


def _check_types(state: State) -> None:
    limits = ("position", 0, _MAX_COUNT), ("epoch", 0, _MAX_EPOCH), ("lanes", 1, _MAX_COUNT)
    for key, least, end in limits:
        if type(state[key]) is not int or not least <= state[key] < end:
            raise StateError(f"{key} is {state[key]!r}, not a count")
    if not isinstance(state["lane_states"], dict):
        raise StateError(f"lane_states is {state['lane_states']!r:.40}, and has to be a dict")
