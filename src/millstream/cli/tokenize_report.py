"""What `millstream tokenize` and `millstream finish` print when they are done."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.text.tokenize.report import TokenizeReport

_BAR_WIDTH = 30
_LEAST_SECONDS = 0.1
"""shorter work says nothing about its speed"""
_NO_DOCUMENT = {
    "train": "  train: no document; choose a smaller --val-fraction, or --val-count",
    "val": "  val: no document; choose a larger --val-fraction, or --val-count",
}


def print_report(report: "TokenizeReport", out: str) -> None:
    """Print the report and a histogram of document lengths."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in _lines(report, out):
        console.print(line, markup=False)
    most = max(report.histogram, default=0)
    if most:
        console.print(f"{'tokens':>24}  {'documents':>13}", style="dim")
    for k, count in enumerate(report.histogram):
        low, high = (1 << k) // 2, max(0, (1 << k) - 1)
        lengths = f"{low:,}" if low >= high else f"{low:,} to {high:,}"
        if count or any(report.histogram[:k]):
            bar = _blocks(count / most)
            console.print(f"{lengths:>24}  {count:>13,}  {bar}", markup=False)


def _lines(report: "TokenizeReport", out: str) -> list[str]:
    working_s = report.wall_seconds - report.start_seconds
    counts = f"{report.documents:,} documents, {report.tokens:,} tokens"
    text = f"{report.text_bytes:,} bytes of text, {report.bytes_per_token:.3f} bytes a token"
    done = [f"{out}: already complete; nothing was written"] if report.was_finished else []
    lines = [*done, f"{out}: {counts}, {text}"]
    lines += [
        f"  {side}: {documents:,} documents, {tokens:,} tokens" if documents else _NO_DOCUMENT[side]
        for side, (documents, tokens) in report.splits.items()
    ]
    if report.trained is not None:
        share = report.trained / max(1, report.tokens)
        lines.append(f"trained on: {report.trained:,} tokens, {share:.1%}")
    if report.untrained_documents:
        why = " (no turn has the role 'assistant')" if not report.trained else ""
        lines.append(
            f"nothing to train on: {report.untrained_documents:,} of {report.documents:,} "
            f"conversations{why}; all their labels are -100"
        )
    if report.skipped:
        lines.append(f"left out: {report.skipped:,} bad rows")
        lines += [f"  {place}" for place in report.places]
    if report.lost_spans:
        lines.append(f"not kept: {report.lost_spans:,} spans that got no token")
    stages = ", ".join(f"{what} {seconds:,.1f} s" for what, seconds in report.seconds.items())
    resumed = (
        f", {report.resumed:,} of {report.tasks:,} tasks done before" if report.resumed else ""
    )
    start = f" after {report.start_seconds:,.1f} s of start-up" if report.start_seconds else ""
    speed = ""
    if not report.resumed and working_s >= _LEAST_SECONDS:
        speed = f", {report.text_bytes / 1e6 / working_s:,.1f} MB/s of text{start}"
    lines.append(f"{report.wall_seconds:,.1f} s{speed}{resumed}; all workers: {stages}")
    if report.checked_bytes:
        lines.append(f"compared with the reference engine: {report.checked_bytes:,} bytes, equal")
    return lines


def _blocks(share: float) -> str:
    eighths = round(8 * _BAR_WIDTH * share)
    rest = "▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else ""
    return "█" * (eighths // 8) + rest
