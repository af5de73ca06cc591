"""Detects ranks that disagree, before the first batch, if torch.distributed is initialized.

Every rank computes its batches alone. A rank with a different seed, dataset or position would train
on wrong rows without any error. So each loader, when it starts, compares its configuration with the
one that the first rank to arrive put into the store of torch.distributed. This is not a collective:
a loader that only some ranks use cannot hang, and no device needs to be selected yet. It takes two
short requests per rank, regardless of the number of ranks.
"""

import itertools
import json
import os
from typing import Any

from millstream.errors import UsageError
from millstream.load.parallel import Parallel
from millstream.load.ranks import find_process_group

_numbers = itertools.count()  # the n-th loader to start on a rank is compared with the others' n-th
_has_parents_group = False


def _note_fork() -> None:
    global _has_parents_group
    _has_parents_group = find_process_group() is not None


os.register_at_fork(after_in_child=_note_fork)  # the child shares the parent's store connection


def check_agreement(facts: dict[str, Any], parallel: Parallel, *, is_found: bool) -> None:
    """Raise if facts or sizes differ from another rank's, or too many processes have this share.

    `is_found` is True if the rank was detected, not passed by the user.
    """
    group = find_process_group()
    if group is None or _has_parents_group:
        return
    world_size = group.get_world_size()
    if is_found and parallel.ranks != world_size:
        raise UsageError(
            f"this loader was created for {parallel}, before torch.distributed was "
            f"initialized with {world_size} processes; create it afterwards, or pass rank= and "
            "ranks="
        )
    facts = facts | {
        "ranks": parallel.ranks,
        "context_ranks": parallel.context_ranks,
        "context_layout": parallel.context_layout if parallel.context_ranks > 1 else None,
    }
    store = group.distributed_c10d._get_default_store()
    key = f"millstream/{next(_numbers)}"
    try:
        first = json.loads(store.compare_set(key, "", json.dumps(facts)))
        num_processes = store.add(f"{key}/{parallel.rank}/{parallel.context_rank}", 1)
    except RuntimeError:  # the store is gone: its host may exit first when all ranks end
        return
    differences = "; ".join(
        f"{name} is {value!r:.300} here and {first.get(name)!r:.300} on another rank"
        for name, value in facts.items()
        if first.get(name) != value
    )
    num_shares = parallel.ranks * parallel.context_ranks
    if not differences and num_processes > max(1, world_size // num_shares):
        differences = (
            f"{num_processes} of the {world_size} processes have {parallel}, and would train on "
            "the same rows"
        )
    if differences:
        raise UsageError(
            f"ranks disagree ({parallel}): {differences}. Create the same loaders on "
            "all ranks, and start them in the same order; pass check_ranks=False to a loader that "
            "should differ, or that only some ranks use"
        )
