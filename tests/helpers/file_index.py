"""Writes `docs/files.md`: every source file, with the first line of its docstring.

`make format` runs this; `tests/project/test_file_index.py` checks that the page is current.
"""

import ast
from itertools import groupby

from tests.helpers import paths

PAGE = paths.ROOT / "docs" / "files.md"
SOURCE = paths.ROOT / "src" / "millstream"
HEAD = """# Files

Every source file and what it holds, from the first line of its docstring. `make format` writes this
page; [CONTRIBUTING.md](../CONTRIBUTING.md) follows the data through these files,
[design](design.md) explains the layers.
"""


def first_line(path):
    """The first line of a file's docstring or leading comment."""
    text = path.read_text()
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    return text.partition("\n")[0].strip('"/* ').replace("|", r"\|")


def sources():
    """All source files; of a compiled module its .pyx, or its .pxd if that is all there is."""
    found = (path for path in SOURCE.rglob("*") if path.suffix in (".py", ".pyx", ".pxd", ".h"))
    return sorted(
        (each for each in found if each.suffix != ".pxd" or not each.with_suffix(".pyx").exists()),
        key=lambda path: (path.parent, path.name),
    )


def render():
    """The page."""
    parts = [HEAD]
    for folder, files in groupby(sources(), key=lambda path: path.parent):
        name = folder.relative_to(SOURCE.parent)
        rows = [f"| `{path.name}` | {first_line(path)} |" for path in files]
        parts.append("\n".join([f"\n## {name}\n", "| file | holds |", "|---|---|", *rows, ""]))
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
