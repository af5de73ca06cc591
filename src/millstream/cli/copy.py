"""Copy a dataset between directories and object stores, verified and resumable.

  millstream copy data/fineweb s3://bucket/fineweb
  millstream copy s3://bucket/fineweb /scratch/fineweb
  millstream copy gs://theirs/fineweb s3://ours/fineweb
  millstream copy data/fineweb s3://bucket/fineweb --target-endpoint https://minio:9000
  millstream copy text_document.bin s3://bucket/megatron

All files below a directory are copied, or a file with its companions. The target does not open
before it is whole. Run the command again to continue an interrupted copy. Credentials come from the
environment and the files of the cloud's own tools.
"""

import argparse
import time

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine, size
from millstream.reprs import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the source, the target, and how they are reached."""
    parser.add_argument("source", metavar="SRC", help="Directory, file or URL")
    parser.add_argument(
        "target", metavar="DST", help="Directory, or URL with s3://, gs:// or az://; empty or new"
    )
    parser.add_argument(
        "--workers",
        type=options.positive,
        default=8,
        metavar="N",
        help="Files to copy at once (default: 8)",
    )
    group = parser.add_argument_group("access")
    group.add_argument(
        "--anonymous", action="store_true", help="Send no credentials to the source: it is public"
    )
    for side in ("source", "target"):
        group.add_argument(
            f"--{side}-profile",
            metavar="NAME",
            help=f"AWS profile for the {side}, with keys, region and endpoint (default: "
            "AWS_PROFILE)",
        )
        group.add_argument(
            f"--{side}-endpoint",
            metavar="URL",
            help=f"Service of the {side} that is not the cloud's own",
        )


def run(arguments: argparse.Namespace) -> int:
    """Copy, and print what was copied."""
    from millstream.copying import copy
    from millstream.remote.options import Remote

    started = time.monotonic()
    with ProgressLine() as line:
        report = copy(
            arguments.source,
            arguments.target,
            remote=Remote(
                endpoint=arguments.source_endpoint,
                profile=arguments.source_profile,
                anonymous=arguments.anonymous,
            ),
            target_remote=Remote(
                endpoint=arguments.target_endpoint, profile=arguments.target_profile
            ),
            workers=arguments.workers,
            progress=line,
        )
    if report.was_finished:
        print(f"{arguments.target}: already complete; nothing was copied")
        return 0
    seconds = time.monotonic() - started
    resumed = f", {report.num_resumed:,} of them in an earlier run" if report.num_resumed else ""
    print(
        f"{counted(report.num_files, 'file')}, {size(report.size_bytes)}, copied in {seconds:.1f} s"
        f"{resumed}; {report.num_checked:,} checked against the dataset's own checksums"
    )
    return 0
