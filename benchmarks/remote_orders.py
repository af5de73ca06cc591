"""What an order costs without a cache, in requests, and what it gives, in mixing.

1.1 T tokens behind HTTP, so that almost no two rows of a global shuffle are neighbours. Requests
and bytes are counted between two steps of a running loader, while it stays equally far ahead.

Mixing: of 1,000 consecutive rows of the order, how many different neighbourhoods of 256 rows (0.5 M
tokens) do they come from? With a perfect shuffle of endless data it is 1,000. The rows of a step
of all ranks together are consecutive in the order, so this does not depend on the number of ranks.
"""

import numpy as np

import millstream
from benchmarks.remote_runs import run_millstream
from benchmarks.remote_servers import Servers
from benchmarks.report import Section, Table

_BLOCKS = (256, 1024, 4096, 16384, 0)
_RANKS = (1, 8)
_NEIGHBOURS, _NUM_ROWS, _NUM_PLACES = 256, 1000, 50


def measure(servers: Servers, url: str, num_samples: int, quick: bool) -> Section:
    """Count requests, bytes and steps for all orders."""
    rows, raw = [], {}
    for ranks in _RANKS[:1] if quick else _RANKS:
        for block in (4096, 0) if quick else _BLOCKS:
            is_small = quick or not block or ranks > 1
            marks = [40, 120] if is_small else [700, 1724]
            run = run_millstream(
                servers,
                url,
                remote={"cache_bytes": 0},
                block=block,
                ranks=ranks,
                num_steps=marks[1],
                marks=marks,
            )
            num_requests, num_bytes = run.per_step()
            name = f"{'global' if not block else f'two-level, {block:,}'}, {ranks} rank"
            name += "s" if ranks > 1 else ""
            rate = run.rate(marks[0])
            rows.append(
                [
                    name,
                    f"{num_requests:.2f}",
                    f"{num_bytes / 1e3:,.0f}",
                    f"{rate:,.0f}",
                    f"{_mixing(block, num_samples):,.0f}",
                ]
            )
            raw[name] = run.summary() | {"steps/s between the marks": rate}
    return Section(
        topic="orders",
        text="",
        tables=[
            Table(
                "Orders without a cache: cost and mixing, for one rank",
                [
                    "",
                    "requests/step",
                    "kB/step",
                    "steps/s, unthrottled",
                    "neighbourhoods in 1,000 rows",
                ],
                rows,
                "A step of a rank uses 131 kB. The last column says how many different "
                f"neighbourhoods of {_NEIGHBOURS} rows {_NUM_ROWS:,} consecutive rows of the order "
                "come from, on average.",
            )
        ],
        raw=raw,
    )


def _mixing(block: int, num_samples: int) -> float:
    shuffle = millstream.BlockShuffle(block, inside=True) if block else True
    order = millstream.make_order(shuffle, num_samples, seed=0)
    starts = np.random.default_rng(0).integers(0, num_samples - _NUM_ROWS, _NUM_PLACES)
    counts = [
        np.unique(order.samples_at(np.arange(start, start + _NUM_ROWS)) // _NEIGHBOURS).size
        for start in starts.tolist()
    ]
    return float(np.mean(counts))
