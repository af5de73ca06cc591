"""What `millstream inspect` shows of a dataset of objects: their sizes, and the bytes of some."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from millstream.views.objects import Objects

_MOST_BYTES = 64
_MOST_CHARACTERS = 200


def describe_objects(view: "Objects") -> str:
    """Say how many objects there are, and how large they are."""
    sizes = view.rows.pieces[:, 1]  # by size
    if not sizes.size:
        return "objects: none"
    return (
        f"objects: {len(view):,} samples of {sizes[0]:,} to {sizes[-1]:,} bytes, "
        f"median {sizes[sizes.size // 2]:,}, mean {sizes.mean():,.0f}"
    )


def show_objects(console: "Console", view: "Objects", shown: "Sequence[int]") -> None:
    """Print the first bytes of some objects, and their metadata."""
    for index in shown:
        sample = view[index]
        console.print(f"sample {index:,}", style="bold", markup=False)
        content = sample["documents"]
        console.print(f"  {content.size:,} bytes: ", end="")
        console.print(_readable(content[: 4 * _MOST_CHARACTERS + 1].tobytes()), markup=False)
        if "metadata" in sample:
            console.print("  metadata: ", end="")
            console.print(_readable(sample["metadata"]), markup=False)
        console.print()


def _readable(content: bytes) -> str:
    """The first characters, if the bytes are text; otherwise the first bytes in hex."""
    start = content[: 4 * _MOST_CHARACTERS]
    text = start.decode("utf-8", "ignore")
    num_cut = 3 if len(start) < len(content) else 0  # bytes of a character that goes on
    if len(text.encode()) < len(start) - num_cut or not text.isprintable():
        more = " …" if len(content) > _MOST_BYTES else ""
        return content[:_MOST_BYTES].hex(" ") + more
    is_cut = len(text) > _MOST_CHARACTERS or num_cut > 0
    return text[:_MOST_CHARACTERS] + (" …" if is_cut else "")
