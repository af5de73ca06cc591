"""Join what several processes have written: shares of penstock tokenize, or parts of Writers.

  penstock finish data/fineweb

All tasks must have run; those that have not are named. Documents are shuffled here, if tokenize was
asked for that. If all is done, it says so.
"""

import argparse
from pathlib import Path

from penstock.cli import options
from penstock.cli.progress_line import ProgressLine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The directory."""
    parser.add_argument("out", metavar="DIR", help="what they wrote to")
    parser.add_argument(
        "--workers", type=options.positive, help="processes that shuffle (one for each processor)"
    )
    options.add_allow_empty(parser)


def run(arguments: argparse.Namespace) -> int:
    """Finish, and report."""
    from penstock.cli.tokenize_report import print_report
    from penstock.finishing import finish
    from penstock.write.joining import is_joined

    out = Path(arguments.out)
    if is_joined(out) and not (out / "report.json").exists():  # which says more
        print(f"{arguments.out}: all of it was done before; nothing was written")
        return 0
    with ProgressLine() as line:
        report = finish(
            arguments.out,
            workers=arguments.workers,
            allow_empty=arguments.allow_empty,
            progress=line,
        )
    if report is None:
        print(f"{arguments.out}: the parts are joined")
    else:
        print_report(report, arguments.out)
    return 0
