"""Options that several commands share, and the datasets, views and orders they describe."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.arguments import size_bytes as parse_size
from millstream.errors import MillstreamError, SplitsError, UsageError

if TYPE_CHECKING:
    from millstream.dataset import Dataset
    from millstream.mixing.mixture import Mixture
    from millstream.order.order import Shuffle
    from millstream.remote.options import Remote
    from millstream.views.packed import Packed
    from millstream.views.view import View


def positive(text: str) -> int:
    """An argparse type: a positive integer."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return number


def names(text: str) -> tuple[str, ...]:
    """An argparse type: column names separated by commas."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(
            f"{text!r} contains an empty name; write names as in url,licence"
        )
    return found


def size_bytes(text: str) -> int:
    """An argparse type: a positive number of bytes, as in 1000000, 500MB or 2GiB."""
    size = size_or_zero(text)
    if not size:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; write it as in 1000000, 500MB or 2GiB"
        )
    return size


def size_or_zero(text: str) -> int:
    """An argparse type: a number of bytes, which may be 0."""
    try:
        return parse_size("size", text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("size: ")) from None


def add_allow_empty(parser: argparse._ActionsContainer) -> None:
    """Add --allow-empty."""
    parser.add_argument(
        "--allow-empty", action="store_true", help="Write the dataset even if it is empty"
    )


def add_dataset(parser: argparse.ArgumentParser, *, takes_mixtures: bool = False) -> None:
    """Add the dataset and its format."""
    mixtures = ", or a mixture file (.toml or .json)" if takes_mixtures else ""
    parser.add_argument(
        "data",
        nargs="+",
        metavar="DATA",
        help=f"Files, directories, quoted patterns or URLs{mixtures}",
    )
    add_format(parser)


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add what describes the files where they do not describe themselves."""
    group = parser.add_argument_group("dataset")
    group.add_argument(
        "--format", help="File format, if it is not detected, as in flat:uint32 for bare tokens"
    )
    group.add_argument(
        "--split", metavar="NAME", help="Split to open, such as train, if the dataset has several"
    )
    group.add_argument(
        "--allow-outside",
        action="store_true",
        help="Trust a files.json that names files outside its directory",
    )
    ends = group.add_mutually_exclusive_group()
    ends.add_argument(
        "--eos-id", type=int, metavar="ID", help="Token that ends documents, for bare tokens"
    )
    ends.add_argument(
        "--bos-id", type=int, metavar="ID", help="Token that starts documents, for bare tokens"
    )
    columns = parser.add_argument_group("columns of Arrow and Parquet files")
    for name, purpose in {
        "fields": "Columns with a number for each token, to read as fields of the records",
        "metadata": "Columns to keep as metadata of the documents",
        "ignore": "Columns to leave out although they select the tokens to train on",
    }.items():
        columns.add_argument(
            f"--{name}", type=names, default=(), metavar="COL[,COL…]", help=purpose
        )
    add_remote(parser)


def add_remote(parser: argparse.ArgumentParser, *, cache: bool = True) -> None:
    """Add how URLs are reached; with `cache`, how much of their data is kept."""
    group = parser.add_argument_group("remote data (s3://, gs://, az://, https://)")
    group.add_argument("--endpoint", metavar="URL", help="Service that is not the cloud's own")
    group.add_argument("--anonymous", action="store_true", help="Send no credentials")
    parser.set_defaults(cache_bytes=None)
    if cache:
        group.add_argument(
            "--cache-bytes",
            type=size_or_zero,
            metavar="SIZE",
            help="Limit of the cache on disk, as in 500GB; 0 caches no tokens (default: "
            "MILLSTREAM_CACHE_BYTES, or a quarter of the free space, at most 64 GiB)",
        )


def remote(options: argparse.Namespace) -> "Remote":
    """Return how URLs are reached and cached."""
    from millstream.remote.options import Remote

    return Remote(
        endpoint=options.endpoint, anonymous=options.anonymous, cache_bytes=options.cache_bytes
    )


def target_remote(options: argparse.Namespace) -> "Remote":
    """Return how a URL is written to: with credentials, also if the source is public."""
    from millstream.remote.options import Remote

    return Remote(endpoint=options.endpoint)


def format_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments for `millstream.open`."""
    said = ("format", "split", "allow_outside", "eos_id", "bos_id", "fields", "metadata", "ignore")
    return {name: getattr(options, name) for name in said} | {"remote": remote(options)}


def for_each_split(options: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Run a read-only command; on a corpus with splits, run it for each split in turn.

    Of several sources some may have splits and some not, so each source runs separately.
    """
    from millstream.opening import expand

    try:
        return run(options)
    except SplitsError as several:
        splits = several.names
        sources = expand(options.data, remote(options))
        if not splits and not sources:
            raise
    return _run_each(options, run, sources, splits)


def for_each_source(options: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Run a read-only command for each dataset, and each split, of several directories."""
    from millstream.opening import expand

    sources = expand(options.data, remote(options))
    return _run_each(options, run, sources, ()) if sources else for_each_split(options, run)


def _run_each(
    options: argparse.Namespace,
    run: Callable[[argparse.Namespace], int],
    sources: list[str],
    splits: tuple[str, ...],
) -> int:
    from millstream.remote.mirror import shown

    status = 0
    for number, name in enumerate(sources or splits):
        own = argparse.Namespace(**vars(options))
        print("\n" * (number > 0) + (shown(name) if sources else f"split {name}"))
        try:
            if sources:
                own.data = [name]
                status = max(status, for_each_split(own, run))
            else:
                own.split = name
                status = max(status, run(own))
        except MillstreamError as error:
            print(error)
            status = 1
    return status


def add_seq_len(parser: argparse.ArgumentParser) -> None:
    """Add --seq-len."""
    parser.add_argument(
        "--seq-len",
        type=positive,
        default=2048,
        metavar="TOKENS",
        help="Tokens in a row (default: 2048)",
    )


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add how documents are packed."""
    parser.add_argument(
        "--policy",
        choices=["best_fit", "bos_best_fit", "bos_best_fit_keep"],
        default="best_fit",
        help="How documents are packed into rows (default: best_fit)",
    )
    parser.add_argument(
        "--buffer-size",
        type=positive,
        default=1000,
        metavar="DOCUMENTS",
        help="Documents that the bos_… policies choose from (default: 1000)",
    )
    parser.add_argument(
        "--overflow",
        choices=["truncate", "split", "drop"],
        help="What to do with documents longer than a row (default: best_fit splits them, the view "
        "documents truncates; groups of documents are truncated)",
    )


def add_view(parser: argparse.ArgumentParser) -> None:
    """Add the view and what determines its rows."""
    parser.add_argument(
        "--view",
        choices=["windows", "documents", "packed"],
        default="windows",
        help="How the tokens become rows (default: windows)",
    )
    add_seq_len(parser)
    parser.add_argument(
        "--no-overlap",
        action="store_true",
        help="Start a window every seq-len + 1 tokens, as datatrove does, not every seq-len",
    )
    parser.add_argument("--by-length", action="store_true", help="Sort documents by length")
    add_policy(parser)


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Add --batch-size."""
    parser.add_argument(
        "--batch-size",
        type=positive,
        default=32,
        metavar="ROWS",
        help="Rows in a batch, on each rank (default: 32)",
    )


def add_order(parser: argparse.ArgumentParser) -> None:
    """Add the order: how to shuffle, and the seed."""
    parser.add_argument("--seed", type=int, default=0, help="Seed of the shuffle (default: 0)")
    parser.add_argument(
        "--shuffle",
        default="global",
        metavar="KIND",
        help="How to shuffle: global, none, blocks:N, inside-blocks:N (inside the blocks too), "
        "lengths:N (groups of similar length, with --by-length) or bands:N (N bands in stored "
        "order, each shuffled inside) (default: global)",
    )


def open_data(options: argparse.Namespace) -> "Dataset":
    """Open the dataset that the options name."""
    from millstream.opening import open

    return open(options.data, access=getattr(options, "access", "pread"), **format_of(options))


# What a mixture file says itself, and the values that mean that an option was not given.
_NOT_FOR_MIXTURES = {
    "format": None,
    "split": None,
    "eos_id": None,
    "bos_id": None,
    "fields": (),
    "metadata": (),
    "ignore": (),
    "view": "windows",
    "seq_len": 2048,
    "no_overlap": False,
    "overflow": None,
    "by_length": False,
    "policy": "best_fit",
    "buffer_size": 1000,
    "seed": 0,
    "shuffle": "global",
}


def mixture(options: argparse.Namespace, **view_options: Any) -> "Mixture | None":
    """Open the mixture whose file the options name; None if they name datasets."""
    from millstream.mixing.files import is_mixture_file, read_mixture

    files = [path for path in options.data if is_mixture_file(path)]
    if not files:
        return None
    if len(options.data) > 1:
        raise UsageError(f"{files[0]} is a mixture; name one mixture, or datasets")
    for name, default in _NOT_FOR_MIXTURES.items():
        if getattr(options, name, default) != default:
            raise UsageError(
                f"--{name.replace('_', '-')} is for datasets; write it into {files[0]}, for all "
                "sources or for one"
            )
    return read_mixture(files[0], remote=remote(options), **view_options)


def mixture_or_view(options: argparse.Namespace, **of_mixture: Any) -> "Mixture | View":
    """Open what the options name: a mixture, by its file, or datasets, as a view."""
    found = mixture(options, **of_mixture)
    return view(open_data(options), options) if found is None else found


def view(data: "Dataset", options: argparse.Namespace, **more: Any) -> "View":
    """Return the view that the options describe; `more` are arguments that all views take.

    Of a dataset of objects, that is its only one, unless another is asked for, which is an error.
    """
    if data.holds_objects and options.view == "windows":
        return data.objects(by_size=options.by_length)
    if options.view == "windows":
        return data.windows(options.seq_len, overlap=not options.no_overlap, **more)
    if options.view == "documents":
        overflow: Any = options.overflow or "truncate"
        return data.documents(
            options.seq_len, overflow=overflow, by_length=options.by_length, **more
        )
    return packed(data, options, **more)


def packed(data: "Dataset", options: argparse.Namespace, **more: Any) -> "Packed":
    """Return the packed view that the options describe."""
    return data.packed(
        options.seq_len,
        policy=options.policy,
        buffer_size=options.buffer_size,
        overflow=options.overflow,
        **more,
    )


def shuffle(options: argparse.Namespace) -> "Shuffle":
    """Return the shuffle that the options describe."""
    from millstream.order.shuffle_text import parse_shuffle

    return parse_shuffle(options.shuffle)
