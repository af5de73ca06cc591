"""Checks that several adapters share. Each error says what to write instead."""

from penstock.errors import UsageError
from penstock.load.base_loader import BaseLoader
from penstock.load.frameworks import one_state_for_all


def check_loader(loader: BaseLoader, framework: str, accumulation: str) -> None:
    """Raise unless the loader gives tensors, one batch at a time, and a state for all ranks.

    `accumulation` is the framework's own way to accumulate gradients.
    """
    if loader.output != "torch":
        raise UsageError(f"{framework} takes torch tensors; leave output={loader.output!r} out")
    if loader.global_batch_size is not None:
        raise UsageError(
            f"{framework} takes one batch at a time, and global_batch_size makes lists of them; "
            f"leave it out, and use {accumulation}"
        )
    if not loader.has_common_state:
        raise UsageError(one_state_for_all(framework))
