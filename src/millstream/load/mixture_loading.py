"""What is different in a loader of a mixture: arguments, its end, and statistics by source."""

from millstream.errors import UsageError
from millstream.load.stats import SourceStats
from millstream.load.walk import Walk
from millstream.mixing.mixture import Mixture
from millstream.order.order import Shuffle
from millstream.views.view import View


def check_mixture(
    mixture: Mixture, *, seed: int, shuffle: Shuffle, tail: str, endless: bool
) -> None:
    """Refuse arguments that a mixture has itself, or that go on after its end."""
    if seed not in (0, mixture.seed) or shuffle is not True:
        wrong, right = (
            ("shuffle", "MixtureSource(view, weight, shuffle=…)")
            if shuffle is not True
            else (f"seed={seed!r:.40}", f"millstream.mix(…, seed={seed!r:.40})")
        )
        raise UsageError(f"a mixture has its own {wrong.partition('=')[0]}: use {right}")
    if mixture.order.end is not None and (endless or tail == "wrap"):
        what = "endless=True goes" if endless else "tail='wrap' goes"
        raise UsageError(
            f"{what} on after the end of the mixture, at position {mixture.order.end:,}; leave it "
            "out, or pass when_exhausted='redistribute' to millstream.mix"
        )


def end_of(view: View | Mixture) -> int | None:
    """Where a mixture ends; None if it does not, and for views, which start over."""
    return view.order.end if isinstance(view, Mixture) else None


def source_stats(view: View | Mixture, walk: Walk) -> dict[str, SourceStats]:
    """What each source of a mixture has given; nothing for a view."""
    if not isinstance(view, Mixture) or walk.counter is None:
        return {}
    numbers = view.order.counts_at(min(walk.position, view.order.end or walk.position)).tolist()
    named = zip(view.names, view.sources, numbers, walk.counter.counts, strict=True)
    return {
        name: SourceStats(rows=rows, tokens=tokens, epoch=number / len(source))
        for name, source, number, (rows, tokens) in named
    }
