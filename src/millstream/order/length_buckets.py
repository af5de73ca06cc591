"""`LengthBuckets`: an order whose steps have samples of similar length."""

from dataclasses import dataclass

from millstream.arguments import integer
from millstream.errors import UsageError

# The default size of a bucket: so many groups, unless there would be fewer buckets than that.
_MAX_GROUPS = 64
_MIN_BUCKETS = 32


@dataclass(frozen=True, slots=True)
class LengthBuckets:
    """Batches of samples of similar length, for views that are sorted by length.

    Neighbours in length make a bucket of `bucket_size` samples and are shuffled among themselves.
    The buckets are then cut into groups of `group_size`, and all groups of the epoch are shuffled.
    With a group for every step, `batch_size * ranks` at the start, the rows of a step are about
    equally long. Keep the number when ranks or batch size change: it is part of the order, which
    then continues exactly, with a little more padding.
    """

    group_size: int
    bucket_size: int | None = None
    """a multiple of the group size; by default 64 groups, but at most 1/32 of all samples"""

    def __post_init__(self) -> None:
        group = integer("group_size", self.group_size, 1, 1 << 31)
        object.__setattr__(self, "group_size", group)
        if self.bucket_size is not None:
            bucket = integer("bucket_size", self.bucket_size, group, 1 << 40)
            object.__setattr__(self, "bucket_size", bucket)
            if bucket % group:
                raise UsageError(f"bucket_size is {bucket}; it must be a multiple of {group}")

    def bucket_size_for(self, num_samples: int) -> int:
        """The bucket size, or the default for so many samples."""
        if self.bucket_size is not None:
            return self.bucket_size
        groups = min(_MAX_GROUPS, num_samples // (_MIN_BUCKETS * self.group_size))
        return max(1, groups) * self.group_size
