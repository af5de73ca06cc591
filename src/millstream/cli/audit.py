"""Prove that an epoch serves every sample exactly once, on any number of ranks.

  millstream audit data --batch-size 32 --ranks 8 --epochs 2
  millstream audit data --view packed --seq-len 4096
  millstream audit data --batch-size 32 --ranks 8 --change 900:ranks=4 --change 1500:ranks=6,batch=9
  millstream audit data --batch-size 8 --ranks 8 --global-batch-size 0:256,100000:512
  millstream audit s3://bucket/data --batch-size 32 --ranks 64
  millstream audit mixture.toml --batch-size 32 --ranks 8

A change takes effect before the global step it names, as if the run had been killed there and
resumed. The proof is about which samples would be read, so only the manifest of the dataset is
read. For packed rows and documents, all stored rows are compared with the documents as well. For a
mixture, the proof is that every source serves its own samples in order, and keeps its share at
every position.
"""

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine
from millstream.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from millstream.auditing.steps import RunShape
    from millstream.mixing.mixture import Mixture


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, the view, the order, and the shape of the run."""
    options.add_dataset(parser, takes_mixtures=True)
    options.add_view(parser)
    options.add_order(parser)
    options.add_batch_size(parser)
    parser.add_argument(
        "--global-batch-size",
        type=_batch_sizes,
        metavar="ROWS",
        help="Rows in a step on all ranks, or as in 0:256,100000:512 by position (default: one "
        "batch on each rank)",
    )
    parser.add_argument(
        "--ranks",
        type=options.positive,
        default=1,
        metavar="N",
        help="Number of ranks (default: 1)",
    )
    parser.add_argument(
        "--epochs",
        type=options.positive,
        default=1,
        metavar="N",
        help="Epochs to walk (default: 1)",
    )
    parser.add_argument(
        "--tail",
        choices=["drop", "keep", "wrap"],
        default="drop",
        help="What to do with the last, incomplete step of an epoch (default: drop)",
    )
    parser.add_argument(
        "--change",
        action="append",
        default=[],
        metavar="STEP:ranks=R,batch=B,global=G",
        help="Change ranks, rows or --global-batch-size from a step on (repeatable)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Walk the plan and print what was proved."""
    mixture = options.mixture(arguments)
    changes = _changes(arguments)
    try:
        if mixture is not None:
            _audit_mixture(mixture, arguments, changes)
        else:
            _audit_view(arguments, changes)
    except VerificationError as error:
        print(f"FAILED: {error}")
        return 1
    return 0


def _audit_view(arguments: argparse.Namespace, changes: "list[RunShape]") -> None:
    """Print a line for each epoch."""
    from millstream.auditing import audit
    from millstream.auditing.tokens import audit_tokens
    from millstream.views.ordering import order_of

    view = options.view(options.open_data(arguments), arguments)
    order = order_of(view, options.shuffle(arguments), arguments.seed)
    with ProgressLine() as line:
        report = audit(order, changes, epochs=arguments.epochs, tail=arguments.tail, progress=line)
        tokens = audit_tokens(view)
    print(f"order       {order.fingerprint}, seed {order.seed}")
    _print_steps(changes, report.num_steps)
    for epoch in report.epochs:
        dropped = f", {epoch.dropped:,} dropped at the end" if epoch.dropped else ""
        print(
            f"epoch {epoch.epoch:<5} {epoch.served:,} of {report.num_samples:,} samples served "
            f"exactly once, none twice{dropped}"
        )
    once = "exactly once" if tokens.is_lossless else "exactly once, the others never"
    unit = "bytes " if view.dataset.holds_objects else "tokens"
    print(f"{unit}      {tokens.num_inputs:,} of {tokens.num_records:,} are inputs {once}")


def _audit_mixture(
    mixture: "Mixture", arguments: argparse.Namespace, changes: "list[RunShape]"
) -> None:
    """Print a line for each source."""
    from millstream.auditing.mixtures import audit_mixture

    with ProgressLine() as line:
        report = audit_mixture(
            mixture, changes, epochs=arguments.epochs, tail=arguments.tail, progress=line
        )
    print(f"order       {mixture.order.fingerprint}, seed {mixture.seed}")
    _print_steps(changes, report.num_steps)
    served = report.num_positions - report.dropped
    dropped = f", {report.dropped:,} dropped at ends of epochs" if report.dropped else ""
    count = f"{served:,} of {report.num_positions:,}"
    print(f"positions   {count} served exactly once, none twice{dropped}")
    width = max(len(source.name) for source in report.sources)
    for source in report.sources:
        print(
            f"source      {source.name:<{width}}  {source.served:,} samples, "
            f"{source.epochs:.2f} epochs; at most {source.largest_error:.2f} off its share "
            f"(bound {report.bound})"
        )


def _print_steps(changes: "list[RunShape]", num_steps: int) -> None:
    from millstream.load.batch_sizes import BatchSizes

    for change in changes:
        reached = "" if change.step < num_steps else "  (not reached)"
        sizes = change.global_batch_size
        steps = "" if sizes is None else f" in steps of {BatchSizes.of(sizes)}"
        print(
            f"from step   {change.step:,}: {change.ranks} ranks x {change.batch_size} rows{steps}"
            f"{reached}"
        )
    print(f"steps       {num_steps:,} on every rank")


def _batch_sizes(text: str) -> int | list[tuple[int, int]]:
    """An argparse type: a number of rows, or a schedule of them.

    >>> _batch_sizes("256"), _batch_sizes("0:256,100000:512")
    (256, [(0, 256), (100000, 512)])
    """
    if re.fullmatch(r"\d+", text):
        return options.positive(text)
    if not re.fullmatch(r"\d+:\d+(,\d+:\d+)*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of rows; write it as in 256 or 0:256,100000:512"
        )
    pairs = (pair.split(":") for pair in text.split(","))
    return [(int(position), int(rows)) for position, rows in pairs]


def _changes(arguments: argparse.Namespace) -> "list[RunShape]":
    from millstream.auditing.steps import RunShape

    changes = [
        RunShape(
            step=0,
            ranks=arguments.ranks,
            batch_size=arguments.batch_size,
            global_batch_size=arguments.global_batch_size,
        )
    ]
    names = {"ranks": "ranks", "batch": "batch_size", "global": "global_batch_size"}
    for text in arguments.change:
        step, _, settings = text.partition(":")
        pairs = re.findall(r"(ranks|batch|global)=(\d+)", settings)
        values = {names[name]: int(value) for name, value in pairs}
        is_all = ",".join(f"{name}={value}" for name, value in pairs) == settings
        if not re.fullmatch(r"[1-9]\d*", step) or not is_all or not 0 < len(pairs) == len(values):
            raise UsageError(
                f"--change {text}: write it as in 1000:ranks=4,batch=64, from step 1 on"
            )
        changes.append(replace(changes[-1], step=int(step), **values))
    return changes
