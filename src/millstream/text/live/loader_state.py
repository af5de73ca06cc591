"""Saved states of a `TextLoader`: their keys, checks, and joining those of all ranks.

position, epoch, lanes             where it stands; an endless loader leaves `epoch` at 0
text, tokenizer, packing, endless  what decides the rows: the same where the state is loaded
lane_states                        by lane, those of the rank that saved it, or of all ranks
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from millstream.errors import StateError
from millstream.load.state import State, check_keys

_COMMON = ("position", "epoch", "lanes", "text", "tokenizer", "packing", "endless")
STATE_KEYS = (*_COMMON, "lane_states")
_MAX_EPOCH = 1 << 40  # times the number of blocks it still is a position
_MAX_COUNT = 1 << 62


def join_states(states: Sequence[State]) -> State:
    """Join the states of all ranks into one."""
    if not states or isinstance(states, dict):
        raise StateError("join_states takes a list of what state_dict returned on all ranks")
    for state in states:
        check_keys(state, STATE_KEYS, "TextLoader")
        check_types(state)
    first, lane_states = dict(states[0]), dict[str, Any]()
    for state in states:
        for key in ("version", *_COMMON):
            if state[key] != first[key]:
                raise StateError(
                    f"these states are not from one step: {key} is {first[key]!r} in one and "
                    f"{state[key]!r} in another"
                )
        lane_states |= state["lane_states"]
    missing = (lane for lane in range(first["lanes"]) if str(lane) not in lane_states)
    named = list(islice(missing, 20))  # a damaged state may claim to have any number of lanes
    if named and first["position"]:
        raise StateError(f"lanes {named!s:.100} are missing: join the states of all ranks")
    return {**first, "lane_states": lane_states}


def argument_for(key: str, saved: Any, here: Any) -> str:
    """The argument that gives `key` of a state its saved value; empty if another argument must.

    >>> argument_for("text", "1f stride sequential", "1f stride shuffle-0")
    'shuffle=False'
    >>> argument_for("tokenizer", "2e bos 1 eos -1", "2e bos -1 eos 2")
    "packing=Packing(add='bos')"
    """
    if key == "endless":
        return f"endless={saved!r:.40}"
    if not isinstance(saved, str):
        return ""
    if key == "text":
        *text, order = saved.split(" ")
        if text != here.split(" ")[:-1]:
            return ""
        seed = order.removeprefix("shuffle-")
        return "shuffle=False" if order == "sequential" else f"shuffle=True, seed={seed}"
    if key == "tokenizer":
        fingerprint, _, marks = saved.rpartition(" bos ")
        if fingerprint != here.rpartition(" bos ")[0]:
            return ""
        bos_id, _, eos_id = marks.partition(" eos ")
        add = {(True, True): "both", (True, False): "bos", (False, True): "eos"}
        return f"packing=Packing(add={add.get((bos_id != '-1', eos_id != '-1'), 'none')!r})"
    return ""


def check_types(state: State) -> None:
    """Refuse values that cannot have been saved."""
    limits = ("position", 0, _MAX_COUNT), ("epoch", 0, _MAX_EPOCH), ("lanes", 1, _MAX_COUNT)
    for key, least, end in limits:
        if type(state[key]) is not int or not least <= state[key] < end:
            raise StateError(f"{key} is {state[key]!r}, not a count")
    if not isinstance(state["lane_states"], dict):
        raise StateError(f"lane_states is {state['lane_states']!r:.40}; it must be a dict")
