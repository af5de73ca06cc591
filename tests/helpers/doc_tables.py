"""Tables in the documentation that name tests: their rows, and whether what they name exists."""

import functools
import re

from tests.helpers.paths import ROOT


def rows_of(text, num_cells):
    """The cells of the rows of all tables with this many columns, without the tables' heads."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    for line, following in zip(lines, [*lines[1:], []], strict=True):
        is_head = len(following) == len(line) and {*"".join(following)} <= {*"-:"}
        if len(line) == num_cells and not is_head and {*"".join(line)} - {*"-:"}:
            yield line


def spans(cell):
    """What stands between backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)


@functools.cache
def tests_in(path):
    """The names of the tests of a file."""
    return set(re.findall(r"^(?:async )?def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE))


def check_tests_exist(cell):
    """Assert that a cell names tests as path::name, or programs in benchmarks/, which exist."""
    tests = spans(cell)
    assert tests, "no test"
    for test in tests:
        path, colons, name = test.partition("::")
        assert (ROOT / path).is_file(), test
        if colons:
            assert name in tests_in(path), test
        else:
            assert path.startswith("benchmarks/"), f"{test} names no test"


def check_links(page):
    """Assert that every relative link of a page leads to a file and, with an anchor, a heading."""
    text = page.read_text()
    links = re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", text)
    for name, anchor in links:
        target = page.parent / name if name else page
        assert target.exists(), name
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
            assert anchor in anchors, f"{name}#{anchor}"
    return links
