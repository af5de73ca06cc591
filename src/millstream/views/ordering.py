"""Makes the order in which the samples of a view are read."""

from millstream.errors import UsageError
from millstream.order.length_buckets import LengthBuckets
from millstream.order.order import Order, Shuffle, make_order
from millstream.views.view import View


def order_of(view: View, shuffle: Shuffle, seed: int) -> Order:
    """Make the order in which a loader reads `view`."""
    is_by_length = getattr(view, "by_length", False) and not view.is_sorted
    if isinstance(shuffle, LengthBuckets) and not is_by_length:
        raise UsageError(
            "LengthBuckets shuffles samples that are sorted by length; use "
            "data.documents(…, by_length=True), or data.objects(…, by_size=True)"
        )
    return make_order(shuffle, len(view), seed)
