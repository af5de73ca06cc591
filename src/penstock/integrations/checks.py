"""Checks that several adapters share. Each error says what to write instead."""

from penstock.errors import UsageError
from penstock.load.base_loader import BaseLoader
from penstock.load.frameworks import one_state_for_all


def check_loader(loader: BaseLoader, framework: str, accumulation: str) -> None:
    """Raise if the loader gives lists of batches, or a state that differs from rank to rank.

    `accumulation` is the framework's own way to accumulate gradients.
    """
    if loader.global_batch_size is not None:
        raise UsageError(
            f"{framework} takes one batch at a time, and global_batch_size makes lists of them; "
            f"leave it out, and use {accumulation}"
        )
    if not loader.has_common_state:
        raise UsageError(one_state_for_all(framework))
