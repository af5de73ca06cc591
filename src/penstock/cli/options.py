"""Arguments that several commands share, and how they become views and orders."""

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, SplitsError, UsageError

if TYPE_CHECKING:
    from penstock.dataset import Dataset
    from penstock.order import Shuffle
    from penstock.views.packed import Packed
    from penstock.views.view import View


def positive(text: str) -> int:
    """An argparse type: an integer from 1 on."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1 on")
    return number


def names(text: str) -> tuple[str, ...]:
    """An argparse type: names of columns, separated by commas."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; write url,licence")
    return found


def size_bytes(text: str) -> int:
    """An argparse type: bytes, as in 1000000, 500MB or 2GiB.

    >>> size_bytes("500MB"), size_bytes("2 GiB")
    (500000000, 2147483648)
    """
    found = re.fullmatch(r"([0-9]{1,15})\s*(?:([kKMGT])(i?))?B?", text.strip())
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, as in 1000000, 500MB or 2GiB")
    thousand = 1024 if found[3] else 1000
    unit: int = thousand ** " KMGT".index((found[2] or " ").upper())
    return int(found[1]) * unit


def add_allow_empty(parser: argparse._ActionsContainer) -> None:
    """What to do where there is nothing to write."""
    parser.add_argument(
        "--allow-empty", action="store_true", help="write a dataset even if nothing is in it"
    )


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """The dataset: files, directories or patterns, and what they are."""
    parser.add_argument("data", nargs="+", help="files, directories, or patterns in quotes")
    add_format(parser)


def add_format(parser: argparse.ArgumentParser) -> None:
    """What files are, where that cannot be found out."""
    parser.add_argument("--format", help="of the files, if it is not found out, as in flat:uint32")
    parser.add_argument("--split", metavar="NAME", help="which to open of several, such as train")
    parser.add_argument(
        "--allow-outside",
        action="store_true",
        help="trust a files.json that names files outside of its directory",
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--eos-id", type=int, help="the token that ends documents, for bare tokens")
    ends.add_argument("--bos-id", type=int, help="the token that starts them")
    columns = parser.add_argument_group("columns", "of Arrow and Parquet")
    for name, purpose in {
        "fields": "those with a number for each token, as fields of the records",
        "metadata": "those that documents keep as metadata",
        "ignore": "those to leave out though they say what to train on",
    }.items():
        columns.add_argument(
            f"--{name}", type=names, default=(), metavar="COL[,COL…]", help=purpose
        )


def format_of(options: argparse.Namespace) -> dict[str, Any]:
    """What `penstock.open` is told about the files."""
    said = ("format", "split", "allow_outside", "eos_id", "bos_id", "fields", "metadata", "ignore")
    return {name: getattr(options, name) for name in said}


def for_each_split(options: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Run a command that only looks at data; on a corpus with splits, on one after the other.

    Of several sources some may have splits and some not, so each is done on its own.
    """
    from penstock.opening import expand

    try:
        return run(options)
    except SplitsError as several:
        splits = several.names
        sources = expand(options.data)
        if not splits and not sources:
            raise
    status = 0
    for number, name in enumerate(sources or splits):
        own = argparse.Namespace(**vars(options))
        print("\n" * (number > 0) + (name if sources else f"split {name}"))
        try:
            if sources:
                own.data = [name]
                status = max(status, for_each_split(own, run))
            else:
                own.split = name
                status = max(status, run(own))
        except PenstockError as error:
            print(error)
            status = 1
    return status


def add_seq_len(parser: argparse.ArgumentParser) -> None:
    """The length of rows."""
    parser.add_argument("--seq-len", type=positive, default=2048, help="tokens in a row (2048)")


def add_policy(parser: argparse.ArgumentParser) -> None:
    """How documents are packed."""
    parser.add_argument(
        "--policy",
        choices=["best_fit", "bos_best_fit", "bos_best_fit_keep"],
        default="best_fit",
        help="of packed rows (best_fit)",
    )
    parser.add_argument(
        "--buffer-size", type=positive, default=1000, help="documents bos_… chooses from (1000)"
    )


def add_view(parser: argparse.ArgumentParser) -> None:
    """The view, and what decides its rows."""
    parser.add_argument(
        "--view", choices=["windows", "documents", "packed"], default="windows", help="(windows)"
    )
    add_seq_len(parser)
    parser.add_argument(
        "--no-overlap",
        action="store_true",
        help="cut windows every seq-len + 1 tokens, as datatrove does, not every seq-len",
    )
    parser.add_argument(
        "--overflow",
        choices=["truncate", "split"],
        default="truncate",
        help="what happens to documents longer than a row (truncate)",
    )
    parser.add_argument("--by-length", action="store_true", help="sort documents by their length")
    add_policy(parser)


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """The rows of a batch."""
    parser.add_argument("--batch-size", type=positive, default=32, help="rows per rank (32)")


def add_order(parser: argparse.ArgumentParser) -> None:
    """The order: seed and kind of shuffle."""
    parser.add_argument("--seed", type=int, default=0, help="of the shuffle (0)")
    parser.add_argument(
        "--shuffle",
        default="global",
        metavar="KIND",
        help="global (default), none, blocks:N, inside-blocks:N (shuffled inside blocks too), or "
        "lengths:N (groups of similar length, for documents by length)",
    )


def open_data(options: argparse.Namespace) -> "Dataset":
    """Open what the user named."""
    from penstock.opening import open

    return open(options.data, access=getattr(options, "access", "pread"), **format_of(options))


def view(data: "Dataset", options: argparse.Namespace, **more: Any) -> "View":
    """The view that the options mean; `more` are arguments that all views take."""
    if options.view == "windows":
        return data.windows(options.seq_len, overlap=not options.no_overlap, **more)
    if options.view == "documents":
        return data.documents(
            options.seq_len, overflow=options.overflow, by_length=options.by_length, **more
        )
    return packed(data, options, **more)


def packed(data: "Dataset", options: argparse.Namespace, **more: Any) -> "Packed":
    """The packed view that the options mean."""
    return data.packed(
        options.seq_len, policy=options.policy, buffer_size=options.buffer_size, **more
    )


def shuffle(options: argparse.Namespace) -> "Shuffle":
    """The shuffle that the options mean."""
    from penstock.order import BlockShuffle, LengthBuckets

    kind, _, size = options.shuffle.partition(":")
    if kind in ("global", "none") and not size:
        return bool(kind == "global")
    if kind in ("blocks", "inside-blocks") and size.isdigit():
        return BlockShuffle(int(size), inside=kind == "inside-blocks")
    if kind == "lengths" and size.isdigit():
        return LengthBuckets(int(size))
    raise UsageError(
        f"--shuffle {options.shuffle}: use global, none, blocks:256, inside-blocks:256 or "
        "lengths:256"
    )
