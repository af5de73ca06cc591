"""Digests as text, and their sums."""

from collections.abc import Sequence


def digest_text(sums: tuple[int, int]) -> str:
    """Write two 64-bit sums as 32 hex digits."""
    return "".join(f"{word:016x}" for word in sums)


def sum_digests(parts: Sequence[str]) -> str:
    """Add up digests: those of ranks to that of the step, those of steps to that of the run.

    >>> sum_digests(["0" * 15 + "1" + "2" * 16, "f" * 32])
    '00000000000000002222222222222221'
    """
    high = sum(int(part[:16], 16) for part in parts) % (1 << 64)
    low = sum(int(part[16:], 16) for part in parts) % (1 << 64)
    return f"{high:016x}{low:016x}"
