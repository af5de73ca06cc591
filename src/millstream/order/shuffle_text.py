"""Shuffles as text, for the command line and for files."""

from millstream.errors import UsageError
from millstream.order.bands import Bands
from millstream.order.block_shuffle import BlockShuffle
from millstream.order.length_buckets import LengthBuckets
from millstream.order.order import Shuffle


def parse_shuffle(text: str) -> Shuffle:
    """Return the shuffle that a text describes.

    >>> parse_shuffle("global"), parse_shuffle("inside-blocks:256")
    (True, BlockShuffle(block_size=256, inside=True))
    """
    kind, _, size = text.partition(":")
    if kind in ("global", "none") and not size:
        return kind == "global"
    if kind in ("blocks", "inside-blocks") and size.isdigit():
        return BlockShuffle(int(size), inside=kind == "inside-blocks")
    if kind == "lengths" and size.isdigit():
        return LengthBuckets(int(size))
    if kind == "bands" and size.isdigit():
        return Bands(int(size))
    raise UsageError(
        f"shuffle is {text!r}; use global, none, blocks:256, inside-blocks:256, lengths:256 or "
        "bands:10"
    )
