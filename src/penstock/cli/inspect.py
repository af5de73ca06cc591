"""Print what a dataset holds, and a few samples of it.

Tokens of the built-in byte tokenizer are shown as text, others as numbers.
"""

import argparse
from typing import TYPE_CHECKING, Any

from penstock.cli import options
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.dataset import Dataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, the view, and which samples to show."""
    options.add_dataset(parser)
    options.add_view(parser)
    parser.add_argument("--samples", type=options.positive, default=3, help="how many to show (3)")
    parser.add_argument("--sample", type=int, action="append", help="show this one (repeatable)")


def run(arguments: argparse.Namespace) -> int:
    """Print the table and the samples."""
    from rich.console import Console

    data = options.open_data(arguments)
    view = options.windows(data, arguments)
    console = Console(highlight=False, soft_wrap=True)
    console.print(_summary(data))
    console.print(
        f"windows of {arguments.seq_len:,}: {len(view):,} samples, "
        f"{data.num_records - (len(view) * view.stride + view.seq_len + 1 - view.stride):,} "
        "records left over at the end\n"
        if len(view)
        else f"windows of {arguments.seq_len:,}: none, the stream is shorter than one\n"
    )
    shown = arguments.sample
    if shown is None:
        count = min(arguments.samples, len(view))
        shown = [len(view) * i // count for i in range(count)]
    for index in shown:
        if not 0 <= index < len(view):
            raise UsageError(f"--sample {index:,}: there are {len(view):,} samples, from 0 on")
        sample = view[index]
        console.print(f"[bold]sample {index:,}[/bold] (records from {index * view.stride:,})")
        for name, values in sample.items():
            if name != "labels":
                console.print(f"  {name}: ", end="")
                console.print(_readable(values, data, name), markup=False)
    return 0


def _summary(data: "Dataset") -> Any:
    from rich.table import Table
    from rich.text import Text

    manifest = data.manifests[0]
    table = Table(show_header=False, box=None, pad_edge=False)
    fields = ", ".join(f"{name} {data.fields[name]}" for name in data.fields.names or ())
    spans = sum(shard.num_spans for shard in data.shards)
    vocabulary = "not stated" if data.vocab_size is None else f"{data.vocab_size:,} ids"
    rows = {
        "records": f"{data.num_records:,}",
        "documents": f"{data.num_documents:,}",
        "metadata spans": f"{spans:,}" if spans else "",
        "fields": f"{fields} ({data.fields.itemsize} bytes a record)",
        "vocabulary": vocabulary,
        "tokenizer": ", ".join(f"{k} {v}" for k, v in manifest.tokenizer.items()),
        "bos, eos": f"{manifest.bos_id}, {manifest.eos_id}",
        "directories": f"{len(data.manifests):,}",
        "shards": f"{len(data.shards):,}",
        "size": f"{data.size_bytes:,} bytes",
        "fingerprint": data.fingerprint,
    }
    for name, value in rows.items():
        if value:
            table.add_row(Text(name, "bold"), Text(value))
    return table


def _readable(values: Any, data: "Dataset", name: str) -> str:
    if name == "input_ids" and data.manifests[0].tokenizer.get("name") == "bytes":
        text = bytes(value for value in values.tolist() if value < 256).decode(errors="replace")
        return repr(text[:300]) + (" …" if len(text) > 300 else "")
    flat = values.reshape(len(values), -1).tolist()[:32]
    shown = [value[0] if len(value) == 1 else value for value in flat]
    return str(shown)[:300] + (" …" if len(values) > 32 else "")
