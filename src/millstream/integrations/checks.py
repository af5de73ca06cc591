"""Checks that several adapters share. Each error says what to write instead."""

from typing import Any

from millstream.errors import UsageError
from millstream.load.base_loader import BaseLoader
from millstream.load.frameworks import one_state_for_all
from millstream.load.loader import Loader


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


def check_columns(loader: BaseLoader, framework: str) -> None:
    """Raise if batches are lists of objects."""
    if not isinstance(loader, Loader) or loader.view.transform is not None:
        return
    for source in loader.view.sources:
        if source.coding is not None and source.coding.collate is None:
            raise UsageError(
                f"{framework} takes dicts of tensors, and batches of objects are lists; return a "
                "dict of tensors from data.objects(…, collate=…)"
            )


def check_batch(batch: Any, framework: str) -> None:
    """Raise if a batch is not a dict."""
    if not isinstance(batch, dict):
        raise UsageError(
            f"{framework} takes dicts of tensors, and the view's transform or collate returned "
            f"{type(batch).__name__}"
        )
