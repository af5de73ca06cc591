"""`Bands`: an order that goes from the first samples to the last, shuffled in bands."""

from dataclasses import dataclass

from millstream.arguments import integer


@dataclass(frozen=True, slots=True)
class Bands:
    """A curriculum: bands of consecutive samples come in their order, each shuffled inside.

    Use it with a view whose samples are sorted, such as `view.sorted_by(scores)` or
    `data.documents(…, by_length=True)`. The sizes of bands differ by at most one sample, and every
    epoch shuffles each band anew. One band is a shuffle of all samples; a band for every sample is
    the stored order.

    >>> order = millstream.make_order(Bands(3), num_samples=10, seed=0)
    >>> order.samples_at(range(20)).tolist()
    [3, 2, 1, 0, 6, 5, 4, 9, 7, 8, 2, 3, 1, 0, 4, 6, 5, 8, 9, 7]
    """

    num_bands: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_bands", integer("num_bands", self.num_bands, 1, 1 << 63))
