"""States of the real nanochat, with an additional key for an exact resume.

{"pq_idx": file, "rg_idx": row group, "epoch": from 1, "millstream": the state of a TextLoader}
"""

from collections.abc import Sequence
from typing import Any

from millstream.compat.nanochat.loaders import RowGroupLoader
from millstream.errors import StateError
from millstream.text.live.loader import TextLoader

STATE_KEY = "millstream"

NanochatState = dict[str, Any]


def resume(loader: RowGroupLoader, state: NanochatState | None) -> None:
    """Resume a loader where a state was saved; near it, if the state is nanochat's own."""
    if state is None:
        return
    if not isinstance(state, dict) or not {"pq_idx", "rg_idx"} <= set(state):
        raise StateError(f"resume_state_dict needs pq_idx and rg_idx, but is {state!r:.100}")
    if STATE_KEY not in state:
        _start_near(loader, state["pq_idx"], state["rg_idx"], state.get("epoch", 1))
        return
    try:
        loader.load_state_dict(state[STATE_KEY])
    except StateError as error:
        raise StateError(
            f"{error}. Use {__package__}.join_states to join the states of nanochat's loaders; "
            f"without the key {STATE_KEY!r}, a state resumes near its place, at the next row group"
        ) from None


def _start_near(loader: RowGroupLoader, pq_idx: Any, rg_idx: Any, epoch: Any) -> None:
    for name, value, least in (("pq_idx", pq_idx, 0), ("rg_idx", rg_idx, 0), ("epoch", epoch, 1)):
        if type(value) is not int or value < least:
            raise StateError(
                f"{name} in resume_state_dict is {value!r:.60}, not an integer >= {least}"
            )
    num_files = len(loader.source.files)
    if pq_idx >= num_files:
        raise StateError(
            f"resume_state_dict has pq_idx={pq_idx}, but there are {num_files:,} files (from 0); "
            "the state belongs to different data, or to the other split"
        )
    loader.start_after(pq_idx, rg_idx, epoch)


def join_states(states: Sequence[NanochatState]) -> NanochatState:
    """Join the states of all ranks into one that every rank can resume from."""
    theirs = [
        rank
        for rank, state in enumerate(states)
        if not isinstance(state, dict) or STATE_KEY not in state
    ]
    if theirs:
        raise StateError(
            f"states {theirs} have no key {STATE_KEY!r}; nanochat's own states cannot be joined. "
            "Pass the list of states that all ranks got with the same batch"
        )
    joined = TextLoader.join_states([state[STATE_KEY] for state in states])
    return {**states[0], STATE_KEY: joined}
