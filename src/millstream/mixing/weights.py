"""Weights from the sizes of views: in proportion, flattened by a temperature, capped by epochs."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from millstream.arguments import integer
from millstream.errors import UsageError
from millstream.order.shares import exact
from millstream.views.view import View


def proportional(
    views: Mapping[str, View],
    *,
    temperature: float = 1.0,
    max_epochs: "float | Mapping[str, float] | None" = None,
    num_samples: int | None = None,
) -> dict[str, tuple[View, Any]]:
    """Give each view a weight by its number of samples, for `millstream.mix(…)` by samples.

    Arguments:
        views: by name.
        temperature: 1 reads all views equally often. A higher one brings the weights closer to
            each other: they are the numbers of samples to the power of 1 / temperature.
        max_epochs: the most passes over each view, or over those that a dict names, in a run of
            `num_samples` samples. What is too much goes to the other views, in proportion.
        num_samples: the length of the run in positions: steps * batch_size * ranks.

    >>> small, large = data.windows(4).slice(0, 4), data.windows(4)
    >>> [w for _, w in millstream.proportional({"small": small, "large": large}).values()]
    [Fraction(4, 1), Fraction(24, 1)]
    """
    if not isinstance(views, Mapping) or not views:
        raise UsageError(f"proportional takes views by name, not {views!r:.60}")
    for name, view in views.items():
        if not isinstance(view, View):
            raise UsageError(f"{name!r} is {view!r:.60}, not a view")
        if not len(view):
            raise UsageError(f"{name!r} has no samples: {view!r:.200}")
    heat = exact("temperature", temperature)
    sizes = {name: len(view) for name, view in views.items()}
    try:
        weights = {
            name: Fraction(size) if heat == 1 else Fraction(size ** (1 / float(heat)))
            for name, size in sizes.items()
        }
    except ArithmeticError:
        raise UsageError(
            f"temperature is {temperature!r:.60}, out of range for views of up to "
            f"{max(sizes.values()):,} samples"
        ) from None
    if max_epochs is None and num_samples is not None:
        raise UsageError("num_samples is for max_epochs, which is not given; leave it out")
    if max_epochs is not None:
        weights = _capped(weights, _caps(sizes, max_epochs, num_samples))
    return {name: (view, weights[name]) for name, view in views.items()}


def _caps(
    sizes: Mapping[str, int], max_epochs: Any, num_samples: int | None
) -> dict[str, Fraction]:
    """The largest share of each view in a run, if it has one."""
    if num_samples is None:
        raise UsageError("max_epochs needs num_samples: how many samples the run has in all")
    length = integer("num_samples", num_samples, 1)
    by_name = max_epochs if isinstance(max_epochs, Mapping) else dict.fromkeys(sizes, max_epochs)
    for name in by_name:
        if name not in sizes:
            raise UsageError(f"max_epochs names {name!r}; the views are {list(sizes)}")
    return {
        name: exact(f"max_epochs of {name!r}", epochs) * sizes[name] / length
        for name, epochs in by_name.items()
    }


def _capped(weights: Mapping[str, Fraction], caps: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Shares of 1 in proportion to weights, none above its cap."""
    shares: dict[str, Fraction] = {}
    free, left = dict(weights), Fraction(1)
    while free:
        total = sum(free.values())
        over = [name for name in free if name in caps and free[name] * left / total > caps[name]]
        if not over:
            return shares | {name: weight * left / total for name, weight in free.items()}
        for name in over:
            shares[name] = caps[name]
            left -= caps[name]
            del free[name]
    if left > 0:
        raise UsageError(
            f"the views have only {float(1 - left):.3g} of the samples of this run within "
            "max_epochs; allow more epochs, or make the run shorter"
        )
    return shares
