"""Ready-made callbacks for `loader.watch`, which calls them with a step and its `Metrics`."""

import logging
from collections.abc import Callable
from typing import Any

from millstream.errors import UsageError

Metrics = dict[str, float]
OnSteps = Callable[[int, Metrics], object]

_SOURCES = "sources/"
_MOST_SOURCES = 8
"""that a line names"""


def log_to(logger: logging.Logger | None = None, level: int = logging.INFO) -> OnSteps:
    """Return a callback that logs a line, to the logger "millstream" if none is given."""
    target = logging.getLogger("millstream") if logger is None else logger
    if not hasattr(target, "log"):
        raise UsageError(f"logger is {logger!r:.60}; pass logging.getLogger(…)")

    def log(step: int, metrics: Metrics) -> None:
        target.log(
            level,
            "step %s: epoch %d, %s tokens, %s tokens/s, waited %.1f %%, %.1f %% padding%s",
            f"{step:,}",
            metrics["epoch"],
            _short(metrics["tokens"]),
            _short(metrics["tokens_per_second"]),
            metrics["waited_share"] * 100,
            metrics["padded_share"] * 100,
            _by_source(metrics),
        )

    return log


def log_to_tensorboard(writer: Any, prefix: str = "data/") -> OnSteps:
    """Return a callback that writes each metric with `writer.add_scalar(name, value, step)`."""
    if not hasattr(writer, "add_scalar"):
        raise UsageError(f"writer is {writer!r:.60}; pass a SummaryWriter")

    def log(step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            writer.add_scalar(prefix + name, value, step)

    return log


def log_to_wandb(run: Any = None, prefix: str = "data/") -> OnSteps:
    """Return a callback that adds the metrics to what a run of Weights & Biases logs next.

    Your own `run.log` writes them, together with your loss: the step stays yours. None for the
    current run, `wandb.run`.
    """
    if run is None:
        try:
            import wandb
        except ImportError:
            raise UsageError("log_to_wandb needs wandb: pip install wandb") from None
        run = wandb.run
        if run is None:
            raise UsageError(
                "there is no run: call wandb.init(…) before log_to_wandb(), or pass one"
            )

    def log(step: int, metrics: Metrics) -> None:
        named = {prefix + name: value for name, value in metrics.items()}
        run.log(named | {prefix + "step": step}, commit=False)

    return log


def _by_source(metrics: Metrics) -> str:
    """Return the shares of tokens by source of a mixture, the largest first, as the end of a line.

    >>> _by_source({"sources/web/tokens": 30.0, "sources/code/tokens": 10.0, "tokens": 40.0})
    '; web 75.0 %, code 25.0 %'
    """
    ends = "/tokens"
    tokens = {
        name.removeprefix(_SOURCES).removesuffix(ends): count
        for name, count in metrics.items()
        if name.startswith(_SOURCES) and name.endswith(ends)
    }
    total = sum(tokens.values())
    if not total:
        return ""
    largest = sorted(tokens.items(), key=lambda item: -item[1])[:_MOST_SOURCES]
    return "; " + ", ".join(
        f"{name} {count / total:.1%}".replace("%", " %") for name, count in largest
    )


def _short(number: float) -> str:
    """Return a count with three or more digits and a unit, such as "78.6 M"."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"
