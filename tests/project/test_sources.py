"""`docs/sources.md` names calls and tests that exist."""

import functools
import importlib
import inspect
import re

import pytest

import millstream
from millstream import cli
from tests.helpers.paths import ROOT

PAGE = (ROOT / "docs" / "sources.md").read_text()
SHORT = {
    "data": "millstream.Dataset",
    "loader": "millstream.Loader",
    "writer": "millstream.Writer",
    "zerobatch": "millstream.compat.zerobatch",
    "nanochat": "millstream.compat.nanochat",
}
COMMAND = re.compile(r"millstream ([a-z-]+)|python -m (millstream[\w.]+)")
CALL = re.compile(r"([a-z]\w*(?:\.\w+)*)(?:\(((?:\w+=…(?:, )?)*)\))?")


def rows():
    """The cells of each row: what the document says, here, test, difference."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[0] not in ("---", "the document says"):
            yield cells


ROWS = list(rows())


def spans(cell):
    return re.findall(r"`([^`]+)`", cell)


def resolve(name):
    """The object that a dotted name leads to, through modules and classes."""
    first, _, rest = name.partition(".")
    whole = ".".join(filter(None, [SHORT.get(first, first), rest]))
    found, path = millstream, whole.split(".")
    assert path[0] == "millstream", f"{name}: begins with none of millstream, {', '.join(SHORT)}"
    for number, part in enumerate(path[1:], 2):
        try:
            found = getattr(found, part)
        except AttributeError:
            assert inspect.ismodule(found), f"{name}: {found} has no {part}"
            found = importlib.import_module(".".join(path[:number]))
    return found


def test_the_page_has_the_five_documents_and_rows_for_each():
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert [section[0] for section in sections] == list("12345")
    assert all(section.count("::test_") >= 9 for section in sections)
    lines = [line for section in sections for line in section.splitlines() if line[:2] == "| "]
    assert len(ROWS) == len(lines) - len(sections), "a row does not have four cells"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_calls_exist_with_their_arguments(row):
    calls = spans(row[1])
    assert calls, "no call"
    for call in calls:
        if command := COMMAND.fullmatch(call):
            name, module = command.groups()
            assert module is None or inspect.isfunction(importlib.import_module(module).main)
            assert name is None or importlib.import_module(
                f"{cli.__name__}.{name.replace('-', '_')}"
            )
            continue
        found = CALL.fullmatch(call)
        assert found, f"{call} is neither a name, nor a call as f(a=…, b=…), nor a command"
        target = resolve(found[1])
        names = re.findall(r"(\w+)=…", found[2] or "")
        if names:
            assert set(names) <= set(inspect.signature(target).parameters), call


@functools.cache
def names_in(path):
    return set(re.findall(r"^(?:async )?def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_tests_exist(row):
    tests = spans(row[2])
    assert tests, "no test"
    for test in tests:
        path, colons, name = test.partition("::")
        assert (ROOT / path).is_file(), test
        if colons:
            assert name in names_in(path), test
        else:
            assert path.startswith("benchmarks/"), f"{test} names no test"


def test_every_link_leads_to_a_heading():
    for page, anchor in re.findall(r"\]\(([\w.]*)#([\w-]+)\)", PAGE):
        text = (ROOT / "docs" / page).read_text() if page else PAGE
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
        assert anchor in anchors, f"{page}#{anchor}"
