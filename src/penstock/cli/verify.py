"""Read every byte and check sizes, checksums, offsets and ids against the manifest.

Exits with 1 and one line per problem if anything is wrong.
"""

import argparse
from pathlib import Path

from penstock.cli import options
from penstock.cli.progress_line import ProgressLine

_MOST_NAMED = 10


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
    from penstock.formats.checksums import companions_of
    from penstock.formats.stream import FORMAT
    from penstock.opening import open
    from penstock.verifying import verify

    if len(arguments.data) == 1:
        path = Path(arguments.data[0])
        text_shards = _text_shards(path)
        if text_shards is not None:
            return _verify_text(path, text_shards, add_checksums=arguments.add_checksums)
    data = open(arguments.data, check_sizes=False, **options.format_of(arguments))
    with ProgressLine() as line:
        problems = verify(data, add_checksums=arguments.add_checksums, progress=line)
    if _report(problems):
        return 1
    with_checksum = [
        file.xxh3 is not None or any(companions_of(shard.path(suffix)))
        for shard in data.shards
        for suffix, file in shard.files.items()
    ]
    is_decoded = any(not file.path for s in data.shards for file in s.files.values())
    is_foreign = any(manifest.format != FORMAT for manifest in data.manifests)
    checks = f"sizes, checksums{' and documents' if is_foreign else ', offsets and ids'}"
    if not all(with_checksum):
        count = f"{sum(with_checksum):,} of {len(with_checksum):,} files"
        some = f", and checksums where there are some ({count})"
        checks = f"sizes and documents{some if any(with_checksum) else ''}"
    elif is_foreign and is_decoded:
        checks += " of the copy that was decoded"
    shards = f"{len(data.shards):,} shard{'' if len(data.shards) == 1 else 's'}"
    print(f"{shards}, {data.num_records:,} records, {data.size_bytes:,} bytes: {checks} are right")
    return 0


def _report(problems: list[str]) -> int:
    for problem in problems:
        print(problem)
    if problems:
        count = f"{len(problems):,} problem{'' if len(problems) == 1 else 's'}"
        print(f"{count}; where a line names no remedy, copy the file again")
    return len(problems)


def _text_shards(path: Path) -> list[Path] | None:
    """The shards of a directory that `penstock repack` wrote, by its marks; None of any other."""
    from penstock.formats.checksums import CHECKSUMS
    from penstock.formats.job_marks import FINISHED
    from penstock.text.text_shards import SHARDS

    shards = [each for ending, _ in SHARDS.values() for each in path.glob(f"shard_*{ending}")]
    has_companions = any("." not in each.stem for each in path.glob(f"shard_*{CHECKSUMS}"))
    is_ours = has_companions or (shards and (path / FINISHED).exists())
    return sorted(shards) if is_ours else None


def _verify_text(path: Path, shards: list[Path], *, add_checksums: bool) -> int:
    from penstock.verifying import verify_files

    problems, unlisted = verify_files(path, shards, add_checksums=add_checksums)
    if _report(problems):
        return 1
    count = f"{len(shards):,} text shard{'' if len(shards) == 1 else 's'}"
    if not unlisted:
        print(f"{path}: {count}: the checksums of all are right")
        return 0
    named = ", ".join(each.name for each in unlisted[:_MOST_NAMED])
    more = ", …" if unlisted[_MOST_NAMED:] else ""
    print(
        f"{path}: {count}: the checksums of {len(shards) - len(unlisted):,} are right; not "
        f"checked, since there are none: {named}{more}; penstock verify --add-checksums writes them"
    )
    return 0
