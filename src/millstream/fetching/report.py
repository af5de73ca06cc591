"""`FetchReport`. The module imports nothing of ours, so that `errors` can refer to it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchReport:
    """What a call of `fetch` did."""

    files: tuple[Path, ...]
    """files that are complete, in the order of the URLs"""
    num_fetched: int
    num_skipped: int
    """files that already existed"""
    received_bytes: int
    """bytes received over the network"""
    failed: tuple[str, ...]
    """one sentence for each file that could not be fetched"""
