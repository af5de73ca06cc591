"""Show, warm or clear the cache of remote data on this machine.

  millstream cache                                    what is cached, and the limit
  millstream cache warm s3://bucket/data --seq-len 2048 --batch-size 32 --ranks 8 --steps 1000
  millstream cache warm s3://bucket/data --ranks 64 --rank 8-15 --position 1048576 --steps 500
  millstream cache warm mixture.toml --batch-size 32 --ranks 8 --steps 1000
  millstream cache clear s3://bucket/data             forget some data, or everything

Warming fetches what the next steps of these ranks will read, and nothing else. Clearing is safe
while other processes read: it keeps the files they have open.
"""

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine
from millstream.errors import UsageError
from millstream.reprs import counted

if TYPE_CHECKING:
    from millstream.remote.cache_space import CachedFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action, the data, and the steps to warm the cache for."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=["show", "warm", "clear"],
        default="show",
        help="(default: show)",
    )
    parser.add_argument(
        "data",
        nargs="*",
        metavar="URL",
        help="Data to show, clear, or warm the cache for; or a mixture file to warm it for",
    )
    options.add_format(parser)
    options.add_view(parser)
    options.add_order(parser)
    options.add_batch_size(parser)
    group = parser.add_argument_group("steps to warm the cache for")
    group.add_argument(
        "--ranks", type=options.positive, default=1, metavar="N", help="Ranks in all (default: 1)"
    )
    group.add_argument(
        "--rank",
        type=_rank_range,
        metavar="FIRST[-LAST]",
        help="Ranks of this machine (default: all)",
    )
    group.add_argument(
        "--position",
        type=int,
        default=0,
        metavar="N",
        help="Position of the checkpoint that the run continues from (default: 0)",
    )
    group.add_argument(
        "--steps", type=options.positive, default=1000, metavar="N", help="(default: 1000)"
    )


def _rank_range(text: str) -> range:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank, or ranks as in 8-15")
    return range(int(first), int(last or first) + 1)


def run(arguments: argparse.Namespace) -> int:
    """Do what the action says, and print it."""
    if arguments.action == "warm":
        return _warm(arguments)
    if arguments.action == "clear":
        return _clear(arguments)
    return _show(arguments)


def _show(arguments: argparse.Namespace) -> int:
    from millstream.cache import cache_directory
    from millstream.remote.cache_space import cached_files

    wanted, limit = _urls(arguments), options.remote(arguments).cache_limit
    sizes, counts = Counter[str](), Counter[str]()
    for file in cached_files():
        url = _url(file)
        if wanted and not _is_below(url, wanted):
            continue
        directory = url.rpartition("/")[0]
        sizes[directory] += file.num_bytes
        counts[directory] += 1
    for directory, num_bytes in sorted(sizes.items()):
        files = f"{counts[directory]:6,} {'file ' if counts[directory] == 1 else 'files'}"
        print(f"{num_bytes / 1e6:12,.1f} MB  {files}  {directory}")
    scope = "in these" if wanted else "in all"
    print(
        f"{sizes.total() / 1e6:12,.1f} MB  {scope}, of at most {limit / 1e6:,.0f} MB; in "
        f"{cache_directory('remote')}"
    )
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    from millstream.remote.cache_space import cached_files, drop_file

    wanted = _urls(arguments)
    num_bytes = num_held = num_found = 0
    for file in list(cached_files()):
        url = _url(file)
        if wanted and not _is_below(url, wanted):
            continue
        num_found += 1
        freed = drop_file(file)
        num_bytes += freed
        num_held += freed == 0 < file.num_bytes
    if wanted and not num_found:
        raise UsageError(f"{', '.join(wanted)}: not in the cache; millstream cache shows what is")
    print(f"freed {num_bytes / 1e6:,.1f} MB")
    if num_held:
        print(f"{num_held:,} files are being read and were kept; try again when that has ended")
    return 0


def _urls(arguments: argparse.Namespace) -> list[str]:
    """The URLs that were given, as the cache spells them."""
    from millstream.remote.urls import is_remote, parse_url

    return [str(parse_url(each)) if is_remote(each) else each for each in arguments.data]


def _is_below(url: str, wanted: list[str]) -> bool:
    """Whether a URL is one of those that were given, or below one."""
    return any(url == each or url.startswith(f"{each}/") for each in wanted)


def _url(file: "CachedFile") -> str:
    from millstream.remote.cache_space import find_cached

    found = find_cached(file.path)
    return found.name if found is not None else str(file.path)


def _warm(arguments: argparse.Namespace) -> int:
    from millstream.load.loader import Loader
    from millstream.load.warming import warm

    if not arguments.data:
        raise UsageError("name the data to warm the cache for, as in s3://bucket/data")
    ranks = arguments.rank or range(arguments.ranks)
    if ranks[-1] >= arguments.ranks:
        raise UsageError(f"--rank {ranks[-1]}: there are {arguments.ranks} ranks, from 0 on")
    view = options.mixture_or_view(arguments)
    loaders = [
        Loader(
            view,
            arguments.batch_size,
            seed=arguments.seed,
            shuffle=options.shuffle(arguments),
            rank=rank,
            ranks=arguments.ranks,
            endless=True,
            prefetch=0,
            output="numpy",
        )
        for rank in ranks
    ]
    for loader in loaders:
        loader.load_state_dict(loader.state_dict() | {"position": arguments.position})
    with ProgressLine() as line:
        num_bytes = warm(loaders, arguments.steps, line)
    print(
        f"fetched {num_bytes / 1e6:,.1f} MB for {counted(arguments.steps, 'step')} of "
        f"{counted(len(loaders), 'rank')} from position {arguments.position:,} on"
    )
    return 0
