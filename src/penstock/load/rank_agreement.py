"""Ranks that disagree are noticed before the first batch, where torch.distributed is up.

Every rank computes its batches alone. One with another seed, dataset or position would train on
wrong rows, and nothing would fail. So a loader that begins compares what it is made of with what
the first rank that came has put into the store of torch.distributed. That is not a collective: a
loader that only some ranks use cannot hang, and no device has to be chosen yet. It takes two short
requests a rank, however many ranks there are.
"""

import itertools
import json
import os
from typing import Any

from penstock.errors import UsageError
from penstock.load.ranks import find_process_group

_numbers = itertools.count()  # the n-th loader that begins on a rank is compared with the n-th
_has_parents_group = False


def _note_fork() -> None:
    global _has_parents_group
    _has_parents_group = find_process_group() is not None


os.register_at_fork(after_in_child=_note_fork)  # where the store's connection is the parent's


def check_agreement(facts: dict[str, Any], rank: int, ranks: int, *, is_found: bool) -> None:
    """Raise if `facts` are others than on another rank, or if too many processes have this rank.

    `is_found` if nobody has said which rank this is.
    """
    group = find_process_group()
    if group is None or _has_parents_group or (ranks == 1 and not is_found):
        return
    world_size = group.get_world_size()
    if is_found and ranks != world_size:
        raise UsageError(
            f"this loader was made for rank {rank} of {ranks}, before torch.distributed was "
            f"initialized with {world_size} processes; make it afterwards, or pass rank= and ranks="
        )
    store = group.distributed_c10d._get_default_store()
    key = f"penstock/{next(_numbers)}"
    try:
        first = json.loads(store.compare_set(key, "", json.dumps(facts)))
        num_processes = store.add(f"{key}/{rank}", 1)
    except RuntimeError:  # of a store that is gone, as its host may be while all ranks end
        return
    differences = "; ".join(
        f"{name} is {value!r} here and {first.get(name)!r} on another rank"
        for name, value in facts.items()
        if first.get(name) != value
    )
    if not differences and num_processes > max(1, world_size // ranks):
        differences = (
            f"{num_processes} of the {world_size} processes have rank {rank} of {ranks}, and share "
            "its rows"
        )
    if differences:
        raise UsageError(
            f"ranks disagree (rank {rank} of {ranks}): {differences}. Make loaders alike on all "
            "ranks, and begin them in the same order; pass check_ranks=False to one that is meant "
            "to differ, or that only some ranks use"
        )
