"""Remote data: rates, first batches, requests, bytes and memory, with 20 ms per request.

SeaweedFS (S3) and Caddy (HTTP) run on loopback behind proxies that wait 20 ms before each request
(`remote_servers`). Every run is a new process with an empty cache: rows of 2,048 + 1 uint16 tokens,
batches of 32, int64 torch tensors, every page touched. A paced consumer sleeps 20 or 100 ms after
each batch; the same consumer on local files shows what the sleep and the machine leave of the pace.
Targets:

- A consumer of 50 steps/s gets 45 with a two-level order; one of 10 gets 9 with a global shuffle,
  both without a cache. With all data in the cache, loading is as fast as from local files.
- In the first epoch, 5x litdata and MosaicML streaming (`remote_peers`).
- Without a cache, a global shuffle fetches at most 1.1x the bytes of its rows; so it does with a
  cache of a quarter of the data.
- The first batch of 1.1 T tokens in 1,000 shards takes at most 1 s.
- Requests in flight stay within `max_requests`, and memory within `ahead_bytes` and 64 MB for
  threads, connections, answers that are arriving, and the loader's own batches; with and without a
  cache.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import corpora, remote_orders, remote_peers
from benchmarks.remote_runs import BATCH_SIZE, SEQ_LEN, Run, compare_cached, run_millstream
from benchmarks.remote_servers import BUCKET, Servers
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread, in_turn, ratio

_NUM_TOKENS, _NUM_TOKENS_QUICK = 1 << 26, 1 << 24
_PEER_TOKENS = 1 << 29
"""17 chunks of the peers: with two or three, they have all data when they give their first batch"""
_NUM_SHARDS, _SHARD_RECORDS = 1000, 1_100_000_000
_ROW_BYTES = 2 * SEQ_LEN
_SLACK_BYTES = 64_000_000
_UNCACHED = {"cache_bytes": 0}


@dataclass(frozen=True, slots=True)
class _Scene:
    """The servers and the data of one run."""

    servers: Servers
    dense: Path
    sparse: Path
    quick: bool

    @property
    def url(self) -> str:
        """The dense corpus on S3."""
        return f"s3://{BUCKET}/ours"

    @property
    def sparse_url(self) -> str:
        """The sparse corpus on the HTTP server."""
        return f"{self.servers.http_proxy.endpoint}/{self.sparse.name}"


def measure(quick: bool) -> Section:
    """Run all parts against the same servers."""
    num_tokens = _NUM_TOKENS_QUICK if quick else _NUM_TOKENS
    dense = corpora.dense(num_tokens)
    sparse = corpora.sparse(_NUM_SHARDS, _SHARD_RECORDS)
    pythons, directories, notes = dict[str, Path](), dict[str, Path](), list[str]()
    if quick:
        notes.append("The peers are left out of quick runs.")
    else:
        pythons, directories, notes = remote_peers.prepare(_PEER_TOKENS)
        directories |= {remote_peers.OURS: corpora.dense(_PEER_TOKENS)}
    with Servers({"ours": dense, **directories}) as servers:
        scene = _Scene(servers, dense, sparse, quick)
        stored = corpora.stream_file(dense)
        limits = servers.limits(
            stored, f"ours/{stored.name}", sparse / "00000.stream", 0.2 if quick else 1.5
        )
        num_samples = _NUM_SHARDS * _SHARD_RECORDS // SEQ_LEN
        parts = [
            Section(topic="", text="", tables=[limits]),
            _paced(scene),
            _cached(scene),
            *(
                remote_peers.measure(servers, pythons, 2, is_limited=is_limited)
                for is_limited in ([] if quick else [False, True])
            ),
            _bytes_fetched(scene),
            _first_batch(scene),
            _bounds(scene),
            remote_orders.measure(servers, scene.sparse_url, num_samples, quick),
        ]
    return Section(
        topic="remote",
        text=(
            f"{num_tokens:,} uint16 tokens on S3 ({_PEER_TOKENS:,} for the peers), 1.1 T in 1,000 "
            "sparse shards on HTTP, 20 ms before each request, all on this machine. Every run is a "
            "new process with an empty cache; medians of interleaved rounds (minimum to maximum)."
            + "".join(f" {note}" for note in notes)
        ),
        tables=[table for part in parts for table in part.tables],
        targets=[target for part in parts for target in part.targets],
        raw={part.topic: part.raw for part in parts if part.raw},
    )


def _paced(scene: _Scene) -> Section:
    """Consumers that take 20 or 100 ms per step."""
    two_level: dict[str, Any] = {"block": 4096, "step_seconds": 0.02, "num_steps": 200}
    shuffled: dict[str, Any] = {"step_seconds": 0.1, "num_steps": 60}
    if scene.quick:
        two_level["num_steps"], shuffled["num_steps"] = 90, 24
    local = str(scene.dense.absolute())
    kinds: dict[str, tuple[str, dict[str, Any], float]] = {
        "50 steps/s, two-level order, no cache": (scene.url, two_level | {"remote": _UNCACHED}, 45),
        "50 steps/s, two-level order, cold cache": (scene.url, two_level, 45),
        "50 steps/s, two-level order, local files": (local, two_level | {"remote": None}, 0),
        "10 steps/s, global shuffle, no cache": (scene.url, shuffled | {"remote": _UNCACHED}, 9),
        "10 steps/s, global shuffle, local files": (local, shuffled | {"remote": None}, 0),
    }
    jobs: dict[str, Callable[[], Run]] = {
        name: partial(run_millstream, scene.servers, url, **options)
        for name, (url, options, _) in kinds.items()
    }
    runs = in_turn(jobs, 1 if scene.quick else 2)
    rates = {
        name: Spread.of([run.rate(len(run.times) // 3) for run in each])
        for name, each in runs.items()
    }
    rows = [
        [
            name,
            with_range(rates[name], digits=1),
            with_range(Spread.of([1e3 * _longest_wait(run) for run in each]), digits=0),
            str(max(run.counts["max_in_flight"] for run in each)),
        ]
        for name, each in runs.items()
    ]
    return Section(
        topic="paced consumers",
        text="",
        tables=[
            Table(
                "Consumers that sleep 20 or 100 ms after each batch",
                ["", "steps/s after warm-up", "longest step, ms", "requests in flight"],
                rows,
                "The first third of the steps is warm-up.",
            )
        ],
        targets=[
            Target(
                what=f"consumer of {name}",
                measured=rates[name].median,
                limit=limit,
                relation="at least",
                unit="steps/s",
            )
            for name, (_, _, limit) in kinds.items()
            if limit
        ],
        raw={name: [run.summary() for run in each] for name, each in runs.items()},
    )


def _longest_wait(run: Run) -> float:
    times = run.times[len(run.times) // 3 :]
    return max(after - before for before, after in pairwise(times))


def _cached(scene: _Scene) -> Section:
    """All data is in the cache already."""
    measured = compare_cached(
        scene.servers,
        "ours",
        scene.dense,
        num_steps=300 if scene.quick else 1000,
        num_rounds=5 if scene.quick else 11,
    )
    share = ratio(measured["cached"], measured["local"])
    return Section(
        topic="warm cache",
        text="",
        tables=[
            Table(
                "All data cached, global shuffle, unthrottled",
                ["", "steps/s"],
                [
                    *(
                        [name, with_range(Spread.of(each), digits=0)]
                        for name, each in measured.items()
                    ),
                    ["cached / local", with_range(share)],
                ],
            )
        ],
        targets=[
            Target(
                what="warm cache / local files",
                measured=share.median,
                limit=0.95,
                relation="at least",
            )
        ],
        raw=measured,
    )


def _bytes_fetched(scene: _Scene) -> Section:
    """A whole epoch that ends, without a cache, and with one that is too small for the data."""
    rows, targets, raw = [], [], {}
    quarter = {"cache_bytes": corpora.stream_file(scene.dense).stat().st_size // 4}
    for name, block, remote in (
        ("global shuffle, no cache", 0, _UNCACHED),
        ("global shuffle, a cache of a quarter of the data", 0, quarter),
        ("two-level order, no cache", 4096, _UNCACHED),
        ("two-level order, a cache of a quarter of the data", 4096, quarter),
    ):
        run = run_millstream(scene.servers, scene.url, remote=remote, block=block)
        used = len(run.times) * BATCH_SIZE * _ROW_BYTES
        fetched = run.counts_at_exit["body_bytes"]
        num_requests = sum(run.counts_at_exit["requests"].values())
        rows.append(
            [
                name,
                f"{used / 1e6:,.1f}",
                f"{fetched / 1e6:,.1f}",
                f"{fetched / used:.3f}",
                f"{num_requests / len(run.times):.1f}",
                f"{run.rate():.0f}",
            ]
        )
        if not block:
            targets.append(
                Target(
                    what=f"bytes fetched / bytes used, one epoch, {name}",
                    measured=fetched / used,
                    limit=1.1,
                    relation="at most",
                )
            )
        raw[name] = run.summary()
    return Section(
        topic="bytes fetched",
        text="",
        tables=[
            Table(
                "A whole epoch",
                ["", "MB used", "MB fetched", "fetched / used", "requests/step", "steps/s"],
                rows,
                "Used are 4,096 bytes per row; labels need two more. Fetched is all that was "
                "fetched until the process ended: with the two-level order, also the first block "
                "of the next epoch.",
            )
        ],
        targets=targets,
        raw=raw,
    )


def _first_batch(scene: _Scene) -> Section:
    """The first batch of 1.1 T tokens in 1,000 shards."""
    jobs: dict[str, Callable[[], Run]] = {
        f"{output}, {kind}": partial(
            run_millstream, scene.servers, scene.sparse_url, output=output, num_steps=1, **options
        )
        for output in ("torch", "numpy")
        for kind, options in {
            "default cache": dict[str, Any](),
            "no cache": {"remote": _UNCACHED},
        }.items()
        if not scene.quick or kind == "default cache"
    }
    runs = in_turn(jobs, 1 if scene.quick else 3)
    rows = [
        [
            name,
            with_range(Spread.of([run.opened - run.imported for run in each]), digits=3),
            with_range(Spread.of([run.first_after_imports for run in each]), digits=3),
            with_range(Spread.of([run.first_from_start for run in each]), digits=3),
            f"{statistics.median(sum(run.counts['requests'].values()) for run in each):.0f}",
        ]
        for name, each in runs.items()
    ]
    return Section(
        topic="first batch",
        text="",
        tables=[
            Table(
                "First batch of 1.1 T tokens, 1,000 shards on HTTP, global shuffle, empty cache",
                [
                    "",
                    "millstream.open, s",
                    "open to first batch, s",
                    "process start to first batch, s",
                    "requests by then",
                ],
                rows,
            )
        ],
        targets=[
            Target(
                what=f"first batch of 1.1 T tokens, {name}, from {since}",
                measured=statistics.median(value(run) for run in runs[name]),
                limit=1,
                relation="at most",
                unit="s",
            )
            for name in ("torch, default cache", "numpy, default cache")
            for since, value in _SINCE.items()
        ],
        raw={name: [run.summary() for run in each] for name, each in runs.items()},
    )


_SINCE: dict[str, Callable[[Run], float]] = {
    "millstream.open": lambda run: run.first_after_imports,
    "process start": lambda run: run.first_from_start,
}


def _bounds(scene: _Scene) -> Section:
    """Requests in flight and memory, unthrottled."""
    rows, targets, raw = [], [], {}
    cached_url = scene.url if scene.quick else f"s3://{BUCKET}/{remote_peers.OURS}"
    for name, url, cache, max_requests, ahead_bytes, block, num_steps in (
        ("global shuffle, no cache", scene.sparse_url, _UNCACHED, 64, 64 << 20, 0, 250),
        ("global shuffle, no cache", scene.sparse_url, _UNCACHED, 16, 8 << 20, 0, 100),
        ("two-level order, no cache", scene.sparse_url, _UNCACHED, 64, 64 << 20, 4096, 1500),
        ("two-level order, no cache", scene.sparse_url, _UNCACHED, 16, 32 << 20, 4096, 1500),
        ("global shuffle, empty cache", cached_url, {}, 64, 64 << 20, 0, 4000),
        ("global shuffle, empty cache", cached_url, {}, 16, 32 << 20, 0, 4000),
        ("two-level order, empty cache", cached_url, {}, 64, 64 << 20, 4096, 4000),
    ):
        if scene.quick and max_requests < 64:
            continue
        remote = cache | {"max_requests": max_requests, "ahead_bytes": ahead_bytes}
        run = run_millstream(
            scene.servers,
            url,
            remote=remote,
            block=block,
            num_steps=num_steps // 4 if scene.quick else num_steps,
        )
        in_flight = run.counts["max_in_flight"]
        title = f"{name}, max_requests={max_requests}, ahead_bytes={ahead_bytes >> 20} MiB"
        rows.append([title, str(in_flight), f"{run.growth_bytes / 1e6:.0f}", f"{run.rate():.0f}"])
        targets += [
            Target(
                what=f"requests in flight / max_requests: {title}",
                measured=in_flight / max_requests,
                limit=1,
                relation="at most",
            ),
            Target(
                what=f"memory growth: {title}",
                measured=run.growth_bytes / 1e6,
                limit=round((ahead_bytes + _SLACK_BYTES) / 1e6),
                relation="at most",
                unit="MB",
            ),
        ]
        raw[title] = run.summary()
    return Section(
        topic="bounds",
        text="",
        tables=[
            Table(
                "Bounds, unthrottled; 1.1 T tokens on HTTP without a cache, those on S3 with one",
                ["", "most requests in flight", "growth of resident memory, MB", "steps/s"],
                rows,
                "Growth is the peak since the imports. It may be ahead_bytes and "
                f"{_SLACK_BYTES / 1e6:.0f} MB.",
            )
        ],
        targets=targets,
        raw=raw,
    )
