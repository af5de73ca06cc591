"""Millstream loading remote data in a process of its own; run by `remote_runs`.

Its argument is JSON, and so are the lines that it prints: one at each of some steps, when its
parent looks at the proxy's counters, and one at the end with times and memory. Times are those of
the monotonic clock, which all processes share.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def load(options: dict[str, Any]) -> None:
    """Load batches; after each, sleep as long as a training step would take."""
    if options["output"] == "torch":
        import torch  # noqa: F401
    if options["remote"] is not None:
        import obstore.store  # noqa: F401

    import millstream
    from benchmarks.consumer import INPUTS_AND_LABELS, touch

    # Names of the package are imported when they are used: now, to tell imports from waiting.
    _ = (
        millstream.open,
        millstream.Loader,
        millstream.Remote,
        millstream.Windows,
        millstream.BlockShuffle,
    )
    block, remote = options["block"], options["remote"]
    shuffle = millstream.BlockShuffle(block, inside=True) if block else True
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    resident, imported = _status_bytes("VmRSS"), time.monotonic()
    view = millstream.open(
        options["url"], remote=None if remote is None else millstream.Remote(**remote)
    ).windows(options["seq_len"])
    opened, times = time.monotonic(), list[float]()
    with millstream.Loader(
        view,
        options["batch_size"],
        seed=options["seed"],
        shuffle=shuffle,
        output=options["output"],
        rank=options["rank"],
        ranks=options["ranks"],
        check_ranks=False,
    ) as loader:
        for batch in loader:
            for field in INPUTS_AND_LABELS:
                touch(batch[field])
            times.append(time.monotonic())
            if len(times) in options["marks"]:
                _print({"mark": len(times)})
            if len(times) == options["num_steps"]:
                break
            if options["step_seconds"]:  # sleeping for 0 s takes 60 us or more
                time.sleep(options["step_seconds"])
        growth = _status_bytes("VmHWM") - resident
        _print({"imported": imported, "opened": opened, "times": times, "growth_bytes": growth})


def compare(options: dict[str, Any]) -> None:
    """Load the same local files directly and through a warm cache, in turn; print steps/s."""
    import millstream
    from benchmarks.consumer import consume
    from benchmarks.rounds import Contender, rates

    num_steps, contenders, loaders = options["num_steps"], dict[str, Contender](), list[Any]()
    sources = {"local": (options["local"], None), "cached": (options["url"], millstream.Remote())}
    for name, (url, remote) in sources.items():
        view = millstream.open(url, remote=remote).windows(options["seq_len"])
        loader = millstream.Loader(view, options["batch_size"], endless=True)
        loaders.append(loader)
        batches = iter(loader)
        consume(batches, 2 * len(view) // options["batch_size"])  # fills the cache
        contenders[name] = Contender(lambda b=batches: consume(b, num_steps), num_steps)  # type: ignore[misc]
    time.sleep(1)  # the cache is found to be whole
    _print(rates(contenders, options["num_rounds"]))
    for loader in loaders:
        loader.close()


def _print(reply: Any) -> None:
    print(json.dumps(reply), flush=True)


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(name)


if __name__ == "__main__":
    {"load": load, "compare": compare}[sys.argv[1]](json.loads(sys.argv[2]))
