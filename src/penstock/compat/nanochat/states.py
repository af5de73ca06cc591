"""States of the real nanochat, with one more key: which row group was read last, and all the rest.

{"pq_idx": file, "rg_idx": row group, "epoch": from 1, "penstock": the state of a TextLoader}
"""

from collections.abc import Sequence
from typing import Any

from penstock.compat.nanochat.loaders import RowGroupLoader
from penstock.errors import StateError
from penstock.text.live.loader import TextLoader

STATE_KEY = "penstock"

NanochatState = dict[str, Any]


def resume(loader: RowGroupLoader, state: NanochatState | None) -> None:
    """Have a loader go on where a state was saved; near that, if it is nanochat's own."""
    if state is None:
        return
    if not isinstance(state, dict) or not {"pq_idx", "rg_idx"} <= set(state):
        raise StateError(f"resume_state_dict needs pq_idx and rg_idx, and is {state!r:.100}")
    if STATE_KEY not in state:
        _start_near(loader, state["pq_idx"], state["rg_idx"], state.get("epoch", 1))
        return
    try:
        loader.load_state_dict(state[STATE_KEY])
    except StateError as error:
        raise StateError(
            f"{error}. States of nanochat's loaders are joined by {__package__}.join_states; "
            f"without the key {STATE_KEY!r} a state goes on near its place, at the next row group"
        ) from None


def _start_near(loader: RowGroupLoader, pq_idx: Any, rg_idx: Any, epoch: Any) -> None:
    for name, value, least in (("pq_idx", pq_idx, 0), ("rg_idx", rg_idx, 0), ("epoch", epoch, 1)):
        if type(value) is not int or value < least:
            raise StateError(f"{name} in resume_state_dict is {value!r:.60}, not a count")
    num_files = len(loader.source.files)
    if pq_idx >= num_files:
        raise StateError(
            f"resume_state_dict is of file {pq_idx:,} (from 0) of {num_files:,}; it belongs to "
            "other data, or to the other split"
        )
    loader.start_after(pq_idx, rg_idx, epoch)


def join_states(states: Sequence[NanochatState]) -> NanochatState:
    """One state of those of all ranks, which every rank can resume from."""
    theirs = [
        rank
        for rank, state in enumerate(states)
        if not isinstance(state, dict) or STATE_KEY not in state
    ]
    if theirs:
        raise StateError(
            f"states {theirs} have no key {STATE_KEY!r}, as nanochat's own have none; give a list "
            "of the states that came with the same batch on all ranks"
        )
    joined = TextLoader.join_states([state[STATE_KEY] for state in states])
    return {**states[0], STATE_KEY: joined}
