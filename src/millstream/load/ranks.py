"""The rank of this process and its share of the processors, unless the user gives them."""

import os
import sys
from typing import Any

from millstream.errors import UsageError
from millstream.system.processors import num_processors


def find_rank(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks.

    They are the arguments, else torch.distributed's if initialized, else RANK and WORLD_SIZE.
    """
    if rank is not None and ranks is not None:
        return rank, ranks
    if rank is not None or ranks is not None:
        raise UsageError(f"rank is {rank} and ranks is {ranks}; pass both or neither")
    return find_world() or (0, 1)


def find_world() -> tuple[int, int] | None:
    """Return the rank among all processes and their number, if anything tells them."""
    group = find_process_group()
    if group is not None:
        return group.get_rank(), group.get_world_size()
    values = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE")]
    if values == [None, None]:
        return None
    try:
        return int(values[0] or ""), int(values[1] or "")
    except ValueError:
        raise UsageError(
            f"environment variables RANK={values[0]!r} and WORLD_SIZE={values[1]!r} must both be "
            "numbers; set them, or pass rank= and ranks= (with Lightning, create the loader in "
            "train_dataloader(), where the ranks are known)"
        ) from None


def find_process_group() -> Any:
    """Return `torch.distributed` if it is initialized, else None; does not import torch."""
    torch = sys.modules.get("torch")
    distributed = torch.distributed if torch is not None else None
    is_up = distributed and distributed.is_available() and distributed.is_initialized()
    return distributed if is_up else None


def num_local_ranks() -> int:
    """Return how many ranks share this machine, if a launcher such as torchrun says so; else 1."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(number)) if number.isdecimal() else 1


def num_rank_processors() -> int:
    """Return the number of processors per rank on this machine, at least 1."""
    return max(1, num_processors() // num_local_ranks())
