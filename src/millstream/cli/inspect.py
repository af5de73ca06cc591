"""Summarize a dataset and show some samples, document by document.

  millstream inspect data --seq-len 2048
  millstream inspect data --view packed --sample 12345
  millstream inspect s3://bucket/data --endpoint https://minio:9000
  millstream inspect mixture.toml --steps 10000 --step-size 256 --plot shares.svg

Tokens are shown as text if the tokenizer is stored with the dataset, as millstream tokenize does,
or given by --tokenizer; otherwise as numbers. Special tokens are coloured, tokens that are not
trained on are dim.
"""

import argparse
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from millstream.cli import options
from millstream.errors import MillstreamError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from millstream.dataset import Dataset
    from millstream.text.tokenizers.tokenizer import Tokenizer
    from millstream.views.view import View

_EXTRAS = ("position_ids", "document_ids", "cu_seqlens")
_MOST_LINES, _MOST_CHARACTERS, _MOST_TEXT = 12, 100, 240


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, the view, and which samples to show."""
    options.add_dataset(parser, takes_mixtures=True)
    options.add_view(parser)
    parser.add_argument(
        "--samples",
        type=options.positive,
        default=3,
        metavar="N",
        help="Number of samples to show (default: 3)",
    )
    parser.add_argument(
        "--sample",
        type=int,
        action="append",
        metavar="INDEX",
        help="Show this sample, or of a mixture this position (repeatable)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="Tokenizer to show text with (default: the one stored with the dataset)",
    )

    run = parser.add_argument_group("mixtures")
    run.add_argument(
        "--steps", type=options.positive, metavar="N", help="Steps to describe (default: an epoch)"
    )
    run.add_argument(
        "--step-size",
        type=options.positive,
        default=1,
        metavar="ROWS",
        help="Rows in a step on all ranks (default: 1)",
    )
    run.add_argument("--plot", metavar="FILE.svg", help="Draw the shares of the sources over steps")


def run(arguments: argparse.Namespace) -> int:
    """Print the summary and the samples of every split, or of a mixture."""
    mixture = options.mixture(arguments, extras=_EXTRAS)
    if mixture is None:
        if (arguments.steps, arguments.step_size, arguments.plot) != (None, 1, None):
            raise UsageError("--steps, --step-size and --plot are for a mixture file")
        return options.for_each_split(arguments, _inspect)
    from millstream.cli.inspect_mixture import inspect_mixture
    from millstream.text.tokenizers.loading import load_tokenizer

    given = load_tokenizer(arguments.tokenizer) if arguments.tokenizer else None
    console = _new_console()

    def show(title: str, view: "View", index: int) -> None:
        data: Any = view.dataset
        _show(console, title, view, index, _with_note(given, data)[0])

    inspect_mixture(mixture, arguments, console, show)
    return 0


def _new_console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def _inspect(arguments: argparse.Namespace) -> int:
    from millstream.text.tokenizers.loading import load_tokenizer

    data = options.open_data(arguments)
    if data.holds_objects:
        return _inspect_objects(data, arguments)
    view = options.view(
        data,
        arguments,
        extras=_EXTRAS,
        metadata=bytes if data.has_metadata else None,
    )
    given = load_tokenizer(arguments.tokenizer) if arguments.tokenizer else None
    console = _new_console()
    console.print(_summary(data))
    console.print(_describe(view))
    tokenizer, note = _with_note(given, data)
    if note:
        console.print(note, style="dim", markup=False)
    console.print()
    for index in _chosen(arguments, len(view)):
        _show(console, f"sample {index:,}", view, index, tokenizer)
    return 0


def _inspect_objects(data: "Dataset", arguments: argparse.Namespace) -> int:
    from millstream.cli.inspect_objects import describe_objects, show_objects

    options.view(data, arguments)  # raises if another view is asked for
    console = _new_console()
    console.print(_summary(data))
    console.print(describe_objects(data.objects(by_size=True)))
    console.print()
    view = data.objects(metadata=bytes if data.has_metadata else None)
    show_objects(console, view, _chosen(arguments, len(view)))
    return 0


def _chosen(arguments: argparse.Namespace, num_samples: int) -> list[int]:
    """The samples to show: those that are named, or some at equal distances."""
    if arguments.sample is None:
        count = min(arguments.samples, num_samples)
        return [num_samples * i // count for i in range(count)]
    for index in arguments.sample:
        if not 0 <= index < num_samples:
            raise UsageError(
                f"--sample {index:,}: out of range; there are {num_samples:,} samples, from 0"
            )
    return list(arguments.sample)


def _with_note(given: "Tokenizer | None", data: "Dataset") -> "tuple[Tokenizer | None, str | None]":
    """Return the tokenizer, and a note if there is none or if it may be the wrong one."""
    noted = data.manifests[0].tokenizer
    if given is not None:
        if noted.get("fingerprint", given.fingerprint) == given.fingerprint:
            return given, None
        return given, f"the dataset was made with another tokenizer, {noted.get('name', '')}"
    try:
        own = data.tokenizer
    except MillstreamError as error:
        return None, f"tokens are shown as ids: {error}"
    if own is not None or "token" not in (data.fields.names or ()):
        return own, None
    return None, "tokens are shown as ids; --tokenizer FILE shows their text"


def _describe(view: "View") -> str:
    from millstream.views.documents import Documents
    from millstream.views.packed import Packed
    from millstream.views.windows import Windows

    if isinstance(view, Windows):
        if not len(view):
            count = view.dataset.num_records
            shorter = f"; --seq-len {count - 1} shows all of them" if count > 1 else ""
            return f"windows of {view.seq_len:,} tokens: none, there are {count:,} records{shorter}"
        left = view.dataset.num_records - (len(view) * view.stride + view.seq_len + 1 - view.stride)
        return (
            f"windows of {view.seq_len:,} tokens: {len(view):,} samples, {left:,} records left "
            "over at the end"
        )
    assert isinstance(view, Packed | Documents)
    report = view.report
    kind = "documents, one a row of" if isinstance(view, Documents) else "packed rows of"
    dropped = ""
    if report.num_dropped:
        dropped = f", {report.num_dropped:,} documents with {report.dropped:,} tokens dropped"
    return (
        f"{kind} {view.seq_len:,} ({report.policy}): {report.num_rows:,} samples, padding "
        f"{report.padding_share:.3%}, {report.num_split:,} of {report.num_documents:,} documents "
        f"split, {report.cropped:,} tokens cropped, {report.lost:,} lost{dropped}"
    )


def _show(
    console: "Console", title: str, view: "View", index: int, tokenizer: "Tokenizer | None"
) -> None:
    """Print a sample document by document, then its fields and its metadata."""
    from millstream.batches.outputs import IGNORED

    sample, data = view[index], view.dataset
    console.print(title, style="bold", markup=False)
    pieces = list(pairwise(sample["cu_seqlens"].tolist()))
    for start, stop in pieces[:_MOST_LINES]:
        document = int(sample["document_ids"][start])
        console.print(f"  columns {start:>7,} to {stop - 1:>7,}  ", end="")
        if document < 0:
            console.print("padding", style="dim")
            continue
        positions = sample["position_ids"][start:stop]
        line = f"document {document:>9,}  positions {positions[0]:,} to {positions[-1]:>5,}"
        if "labels" in sample:
            line += f"  labels {(sample['labels'][start:stop] != IGNORED).sum():,}"
        console.print(line)
        if "input_ids" in sample:
            ids = sample["input_ids"][start:stop]
            labels = sample["labels"][start:stop] if "labels" in sample else ids
            text = _text(ids, labels, tokenizer) if tokenizer else _readable(ids)
            console.print("    ", text, sep="", markup=False)
    _say_more(console, len(pieces))
    for name in data.fields.names or ():
        if name in sample:
            console.print(f"  {name}: ", end="")
            console.print(_readable(sample[name]), markup=False)
    if "metadata_ids" in sample:
        _show_metadata(console, sample)
    console.print()


def _show_metadata(console: "Console", sample: dict[str, Any]) -> None:
    import numpy as np

    ids = sample["metadata_ids"]
    edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    spans = [(start, stop) for start, stop in pairwise(edges) if ids[start] >= 0]
    for start, stop in spans[:_MOST_LINES]:
        content = sample["metadata"][ids[start]]
        text = content.decode(errors="replace")
        if not text.isprintable() or "\ufffd" in text:
            text = repr(content)
        shown = text[:_MOST_CHARACTERS] + (" …" if len(text) > _MOST_CHARACTERS else "")
        console.print(f"  metadata of columns {start:,} to {stop - 1:,}: ", end="")
        console.print(shown, markup=False)
    _say_more(console, len(spans))


def _say_more(console: "Console", count: int) -> None:
    if count > _MOST_LINES:
        console.print(f"  … and {count - _MOST_LINES:,} more", style="dim")


def _summary(data: "Dataset") -> Any:
    from rich.table import Table
    from rich.text import Text

    manifest = data.manifests[0]
    table = Table(show_header=False, box=None, pad_edge=False)
    fields = ", ".join(f"{name} {data.fields[name]}" for name in data.fields.names or ())
    spans = sum(shard.num_spans for shard in data.shards)
    vocabulary = "not stated" if data.vocab_size is None else f"{data.vocab_size:,} ids"
    kinds = dict.fromkeys(each.format for each in data.manifests)
    left_out = dict.fromkeys(what for each in data.manifests for what in each.unread)
    rows = {
        "format": ", ".join(kinds),
        "records": f"{data.num_records:,}",
        "documents": f"{data.num_documents:,}",
        "groups": f"of {data.group_size:,} documents each" if data.group_size > 1 else "",
        "metadata spans": f"{spans:,}" if spans else "",
        "fields": f"{fields} ({data.fields.itemsize} bytes a record)",
    }
    if data.holds_objects:
        with_metadata = f", {spans:,} with metadata" if data.has_metadata else ""
        rows = {
            "format": ", ".join(kinds),
            "objects": f"{data.num_documents:,}{with_metadata}",
            "bytes of objects": f"{data.num_records:,}",
        }
    rows |= {
        "left out": "; ".join(left_out),
        "vocabulary": "" if data.holds_objects else vocabulary,
        "tokenizer": ", ".join(f"{k} {v}" for k, v in manifest.tokenizer.items()),
        "bos, eos": "" if data.holds_objects else f"{manifest.bos_id}, {manifest.eos_id}",
        "split": ", ".join(f"{k} {v}" for k, v in manifest.split.items()),
        "manifests": f"{len(data.manifests):,}" if len(data.manifests) > 1 else "",
        "shards": f"{len(data.shards):,}",
        "size": f"{data.size_bytes:,} bytes",
        "fingerprint": data.fingerprint,
    }
    for name, value in rows.items():
        if value:
            table.add_row(Text(name, "bold"), Text(value))
    return table


def _text(ids: Any, labels: Any, tokenizer: "Tokenizer") -> "Text":
    """Return the first characters; the label before a token tells whether it is trained on."""
    from rich.text import Text

    from millstream.batches.outputs import IGNORED

    most = 4 * _MOST_TEXT  # a character has at most four tokens
    specials = set(tokenizer.specials.values())
    targets = [True, *(labels[: most - 1] != IGNORED).tolist()]
    styles = [
        "bold cyan" if number in specials else "" if is_target else "dim"
        for number, is_target in zip(ids[:most].tolist(), targets, strict=False)
    ]
    pairs = zip(styles, ids.tolist(), strict=False)
    shown = Text()
    for style, run in groupby(pairs, key=lambda pair: pair[0]):
        shown.append(_escaped(tokenizer.decode(number for _, number in run)), style)
    is_cut = len(ids) > most or len(shown) > _MOST_TEXT
    return shown[:_MOST_TEXT] + Text(" …" if is_cut else "")


def _escaped(text: str) -> str:
    """Escape control characters and whatever else could disturb a terminal."""
    return "".join(
        each if each.isprintable() and each != "\\" else each.encode("unicode_escape").decode()
        for each in text
    )


def _readable(values: Any) -> str:
    flat = values.reshape(len(values), -1).tolist()[:32]
    shown = str([value[0] if len(value) == 1 else value for value in flat])
    is_cut = len(values) > 32 or len(shown) > _MOST_CHARACTERS
    return shown[:_MOST_CHARACTERS] + (" …" if is_cut else "")
