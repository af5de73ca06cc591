"""Pack documents into rows, or compare the packing policies.

  millstream pack data --report                  compare all policies, store nothing
  millstream pack data --seq-len 4096            store the rows of data.packed(4096)
  millstream pack data --policy bos_best_fit
  millstream pack data --overflow drop           without documents longer than a row
  millstream pack s3://bucket/data --seq-len 4096

Rows are stored beside the dataset, in plans/, or in the user's cache if the dataset is read-only or
remote. data.packed() does the same on first use.
"""

import argparse
from typing import TYPE_CHECKING, Any

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine

if TYPE_CHECKING:
    from rich.console import Console

    from millstream.dataset import Dataset
    from millstream.pack.report import PackReport
    from millstream.pack.survey import LengthHistogram

_BAR_WIDTH = 18
_EXPLAINED = (
    "padding   share of the input columns without a token",
    "split     share of the documents that continue in another row, or are cut",
    "cropped   share of the tokens that are cut off the ends of documents",
    "lost      tokens at the end that do not fill a row",
    "most      largest number of documents in a row",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, the policy, and whether to store rows or to compare policies."""
    options.add_dataset(parser)
    options.add_seq_len(parser)
    options.add_policy(parser)
    parser.add_argument("--report", action="store_true", help="Compare all policies, store nothing")


def run(arguments: argparse.Namespace) -> int:
    """Pack, and print what happens to the tokens."""
    data = options.open_data(arguments)
    return _report(data, arguments) if arguments.report else _store(data, arguments)


def _report(data: "Dataset", arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from millstream.pack.survey import survey

    with ProgressLine() as line:
        reports, histogram = survey(data, arguments.seq_len, arguments.buffer_size, line)
    console = Console(highlight=False)
    console.print(_lengths(data, histogram))
    console.print(_table(reports, f"rows of {arguments.seq_len:,} tokens"))
    _say_losses(console, reports)
    for explained in _EXPLAINED:
        console.print(explained, style="dim")
    return 0


def _store(data: "Dataset", arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from millstream.pack.rows_file import find_rows

    view = options.packed(data, arguments)
    with ProgressLine() as line:
        rows = find_rows(data, view.recipe, line)
    console = Console(highlight=False)
    # Not the table's title, which would be wrapped: users copy this path.
    console.print(str(rows.path or "nothing to store"), markup=False, soft_wrap=True)
    console.print(_table([rows.report]))
    _say_losses(console, [rows.report])
    return 0


def _say_losses(console: "Console", reports: "list[PackReport]") -> None:
    """Print how many documents are cut or dropped, and how many of their tokens are in no row."""
    from millstream.reprs import counted

    for report in reports:
        if report.cropped:
            cut, tokens = counted(report.num_split, "document"), counted(report.cropped, "token")
            console.print(f"{report.policy} cuts {cut}; {tokens} in no row")
        if report.num_dropped:
            dropped = counted(report.num_dropped, "document")
            console.print(
                f"{report.policy} drops {dropped} with {counted(report.dropped, 'token')}"
            )


def _table(reports: "list[PackReport]", title: str | None = None) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("policy", "rows", "padding", "split", "cropped", "lost", "most"):
        justify: Any = "left" if heading == "policy" else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for report in reports:
        table.add_row(
            report.policy,
            f"{report.num_rows:,}",
            f"{report.padding_share:.4%}",
            f"{report.num_split / max(1, report.num_documents):.2%}",
            f"{report.cropped / max(1, report.num_records):.2%}",
            f"{report.lost:,}",
            f"{report.max_pieces:,}" if report.max_pieces else "",
        )
    return table


def _lengths(data: "Dataset", histogram: "LengthHistogram") -> Any:
    from rich.table import Table

    mean = data.num_records / max(1, data.num_documents)
    title = (
        f"{data.num_documents:,} documents, {data.num_records:,} tokens: {mean:,.0f} on average, "
        f"{histogram.longest:,} at most"
    )
    if data.group_size > 1:
        title += f"; in groups of {data.group_size:,}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("length", "documents", "", "tokens", ""):
        justify: Any = "left" if not heading else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    bins = list(histogram.bins())
    most_documents = max((documents for _, _, documents, _ in bins), default=1)
    most_records = max(1, *(records for *_, records in bins)) if bins else 1
    for low, high, documents, records in bins:
        table.add_row(
            f"{low:,}" if low == high else f"{low:,} to {high:,}",
            f"{documents:,}",
            "█" * round(_BAR_WIDTH * documents / most_documents),
            f"{records / max(1, data.num_records):.1%}",
            "█" * round(_BAR_WIDTH * records / most_records),
        )
    return table
