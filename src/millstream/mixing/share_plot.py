"""A picture of the shares of a mixture over the positions of a run, as SVG."""

from html import escape
from itertools import accumulate, pairwise

from millstream.arguments import integer
from millstream.mixing.mixture import Mixture

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 260, 52, 14, 150, 36
_COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#bbbbbb",
    "#997700",
)
_MOST_POINTS = 160


def plot_shares(mixture: Mixture, positions: int, step_size: int = 1) -> str:
    """Draw what share of the samples each source has, from position 0 to `positions`.

    The areas show what is read, counted over short stretches, not what was asked for. They end
    where the mixture does.
    """
    positions = integer("positions", positions, 1, 1 << 60)
    step_size = integer("step_size", step_size, 1)
    if mixture.order.end is not None:
        positions = min(positions, mixture.order.end)
    num_points = min(_MOST_POINTS, positions)
    edges = [positions * k // num_points for k in range(num_points + 1)]
    counts = [mixture.order.counts_at(edge).tolist() for edge in edges]
    stacks = []
    for (start, stop), (before, after) in zip(pairwise(edges), pairwise(counts), strict=True):
        taken = [late - early for early, late in zip(before, after, strict=True)]
        stacks.append([total / (stop - start) for total in accumulate(taken, initial=0)])
    plot_width, plot_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(edge: int) -> float:
        return _LEFT + plot_width * edge / positions

    def y(share: float) -> float:
        return _TOP + plot_height * (1 - share)

    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect {size} fill="white"/>',
    ]
    columns = [(x(a), x(b), stack) for (a, b), stack in zip(pairwise(edges), stacks, strict=True)]
    for source, name in enumerate(mixture.names):
        colour = _COLOURS[source % len(_COLOURS)]
        upper = [(edge, y(s[source + 1])) for a, b, s in columns for edge in (a, b)]
        lower = [(edge, y(s[source])) for a, b, s in reversed(columns) for edge in (b, a)]
        points = " ".join(f"{across:.1f},{down:.1f}" for across, down in upper + lower)
        parts.append(f'<polygon points="{points}" fill="{colour}"/>')
        if source < len(_COLOURS):
            left, top = _WIDTH - _RIGHT + 14, _TOP + 18 * source
            parts += [
                f'<rect x="{left}" y="{top}" width="11" height="11" fill="{colour}"/>',
                f'<text x="{left + 17}" y="{top + 10}">{escape(name[:20])}</text>',
            ]
    parts += [
        f'<text x="{_LEFT - 6}" y="{y(share / 100) + 4:.1f}" text-anchor="end">{share} %</text>'
        for share in (0, 50, 100)
    ]
    for edge in (positions * quarter // 4 for quarter in range(5)):
        place = f'x="{x(edge):.1f}" y="{_HEIGHT - 18}" text-anchor="middle"'
        parts.append(f"<text {place}>{edge // step_size:,}</text>")
    place = f'x="{_LEFT + plot_width / 2:.1f}" y="{_HEIGHT - 3}" text-anchor="middle"'
    parts.append(f"<text {place}>{'positions' if step_size == 1 else 'steps'}</text></svg>")
    return "\n".join(parts) + "\n"
