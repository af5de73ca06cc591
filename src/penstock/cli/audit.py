"""Prove that every sample is served exactly once per epoch, on any ranks, through any changes.

  penstock audit data --batch-size 32 --ranks 8 --epochs 2
  penstock audit data --view packed --seq-len 4096
  penstock audit data --batch-size 32 --ranks 8 --change 1000:ranks=4 --change 1500:ranks=6,batch=20

A change takes effect before the global step it names, as if the run had been killed and resumed
there. Of the dataset only the manifest is read: the proof is about which samples would be read. For
packed rows and documents it goes on to the tokens: the stored rows are read, all of them, and
compared with the documents.
"""

import argparse
import re
from typing import TYPE_CHECKING

from penstock.cli import options
from penstock.cli.progress_line import ProgressLine
from penstock.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from penstock.auditing import RunShape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, the view, the order, and how the run goes."""
    options.add_dataset(parser)
    options.add_view(parser)
    options.add_order(parser)
    options.add_batch_size(parser)
    parser.add_argument("--ranks", type=options.positive, default=1, help="(1)")
    parser.add_argument("--epochs", type=options.positive, default=1, help="(1)")
    parser.add_argument("--tail", choices=["drop", "keep", "wrap"], default="drop", help="(drop)")
    parser.add_argument(
        "--change",
        action="append",
        default=[],
        metavar="STEP:ranks=R,batch=B",
        help="other ranks or rows from a step on (repeatable)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Walk the plan and report per epoch."""
    from penstock.auditing import audit, audit_tokens
    from penstock.load.loader import order_of

    view = options.view(options.open_data(arguments), arguments)
    order = order_of(view, options.shuffle(arguments), arguments.seed)
    changes = _changes(arguments)
    with ProgressLine() as line:
        try:
            report = audit(
                order, changes, epochs=arguments.epochs, tail=arguments.tail, progress=line
            )
            tokens = audit_tokens(view)
        except VerificationError as error:
            print(f"FAILED: {error}")
            return 1
    print(f"order       {order.fingerprint}, seed {order.seed}")
    for change in changes:
        reached = "" if change.step < report.num_steps else "  (the run ended before)"
        print(
            f"from step   {change.step:,}: {change.ranks} ranks x {change.batch_size} rows{reached}"
        )
    print(f"steps       {report.num_steps:,} on every rank")
    for epoch in report.epochs:
        dropped = f", {epoch.dropped:,} dropped at the end" if epoch.dropped else ""
        print(
            f"epoch {epoch.epoch:<5} {epoch.served:,} of {report.num_samples:,} samples served "
            f"exactly once, none twice{dropped}"
        )
    once = "exactly once" if tokens.is_lossless else "once, the others never"
    print(
        f"tokens      {tokens.num_inputs:,} of {tokens.num_records:,} are inputs of all samples "
        f"together {once}"
    )
    return 0


def _changes(arguments: argparse.Namespace) -> "list[RunShape]":
    from penstock.auditing import RunShape

    ranks, batch_size = arguments.ranks, arguments.batch_size
    changes = [RunShape(step=0, ranks=ranks, batch_size=batch_size)]
    for text in arguments.change:
        if not re.fullmatch(r"[1-9]\d*:(ranks=\d+|batch=\d+|ranks=\d+,batch=\d+)", text):
            raise UsageError(
                f"--change {text}: write it as 1000:ranks=4,batch=64, for a step after the first"
            )
        step, _, settings = text.partition(":")
        for setting in settings.split(","):
            name, _, value = setting.partition("=")
            if name == "ranks":
                ranks = int(value)
            else:
                batch_size = int(value)
        changes.append(RunShape(step=int(step), ranks=ranks, batch_size=batch_size))
    return changes
