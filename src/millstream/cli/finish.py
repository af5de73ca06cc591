"""Join what several processes have written: shares of millstream tokenize, or parts by Writers.

  millstream finish data/fineweb
  millstream finish s3://bucket/fineweb

All tasks must have been run; if any are missing, they are named. If tokenize was called with
--shuffle, documents are shuffled now.
"""

import argparse
from pathlib import Path

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the directory, and how it is reached."""
    parser.add_argument("out", metavar="DIR", help="The directory or URL that they wrote to")
    parser.add_argument(
        "--workers",
        type=options.positive,
        help="Processes that shuffle (default: one for each processor)",
    )
    options.add_allow_empty(parser)
    parser.add_argument("--endpoint", metavar="URL", help="Service that is not the cloud's own")


def run(arguments: argparse.Namespace) -> int:
    """Finish, and print the report."""
    from millstream.cli.tokenize_report import print_report
    from millstream.finishing import finish
    from millstream.formats.job_marks import REPORT
    from millstream.write.joining import is_joined

    out = Path(arguments.out)
    if is_joined(out) and not (out / REPORT).exists():  # its report says more
        print(f"{arguments.out}: already complete; nothing was written")
        return 0
    with ProgressLine() as line:
        report = finish(
            arguments.out,
            workers=arguments.workers,
            allow_empty=arguments.allow_empty,
            progress=line,
            remote=options.target_remote(arguments),
        )
    if report is None:
        print(f"{arguments.out}: the parts are joined")
    else:
        print_report(report, arguments.out)
    return 0
