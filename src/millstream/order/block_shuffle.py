"""`BlockShuffle`: an order that keeps blocks of samples together."""

from dataclasses import dataclass

from millstream.arguments import integer


@dataclass(frozen=True, slots=True)
class BlockShuffle:
    """Blocks of consecutive samples in shuffled order, for storage that is slow at random reads.

    With `inside=True` the samples inside a block are shuffled too: a rank then reads one region of
    `block_size` samples at a time, in random order. The price: samples that are stored together
    arrive together.
    """

    block_size: int
    inside: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", integer("block_size", self.block_size, 1, 1 << 64))
