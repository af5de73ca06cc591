"""Read every byte and check sizes, checksums, offsets and ids against the manifest.

Exits with 1 and one line per problem if anything is wrong.
"""

import argparse
from pathlib import Path

from penstock.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, and whether to add what it lacks."""
    options.add_dataset(parser)
    parser.add_argument(
        "--add-checksums",
        action="store_true",
        help="write checksums by blocks (NAME.checksums) beside sound files that have none, so "
        "that damage can be told to 4 KiB",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check every split, and report what is wrong."""
    return options.for_each_split(arguments, _verify)


def _verify(arguments: argparse.Namespace) -> int:
    from penstock.formats.stream import FORMAT
    from penstock.opening import open
    from penstock.verify import verify

    if len(arguments.data) == 1 and _holds_text(Path(arguments.data[0])):
        return _verify_text(Path(arguments.data[0]))
    data = open(arguments.data, check_sizes=False, **options.format_of(arguments))
    with options.progress_bar("verifying", data.size_bytes, unit_bytes=True) as bar:
        problems = verify(data, bar.advance, add_checksums=arguments.add_checksums)
    if _report(problems):
        return 1
    with_checksum = [file.xxh3 is not None for s in data.shards for file in s.files.values()]
    is_decoded = any(not file.path for s in data.shards for file in s.files.values())
    checks = "sizes, checksums, offsets and ids"
    if not all(with_checksum):
        some = f", and checksums where there are some ({sum(with_checksum):,} files)"
        checks = f"sizes and documents{some if any(with_checksum) else ''}"
    elif any(manifest.format != FORMAT for manifest in data.manifests) and is_decoded:
        checks += " of the copy that was decoded"
    shards = f"{len(data.shards):,} shard{'' if len(data.shards) == 1 else 's'}"
    print(f"{shards}, {data.num_records:,} records, {data.size_bytes:,} bytes: {checks} are right")
    return 0


def _report(problems: list[str]) -> int:
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} problems; where a line names no remedy, copy the file again")
    return len(problems)


def _holds_text(path: Path) -> bool:
    """Whether a directory holds text shards with checksums, as `penstock repack` writes them."""
    from penstock.formats.checksums import companions_of

    shards = [*path.glob("*.parquet"), *path.glob("*.jsonl.zst")] if path.is_dir() else []
    return any(next(companions_of(shard), None) for shard in shards)


def _verify_text(path: Path) -> int:
    from penstock.verify import verify_files

    if _report(verify_files(path)):
        return 1
    print(f"{path}: the checksums of all text shards are right")
    return 0
