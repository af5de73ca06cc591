"""`docs/sources.md` names calls and tests that exist."""

import importlib
import inspect
import re

import pytest

import millstream
from millstream import cli
from tests.helpers.doc_tables import check_links, check_tests_exist, rows_of, spans
from tests.helpers.paths import ROOT

PATH = ROOT / "docs" / "sources.md"
PAGE = PATH.read_text()
SHORT = {
    "data": "millstream.Dataset",
    "loader": "millstream.Loader",
    "writer": "millstream.Writer",
    "zerobatch": "millstream.compat.zerobatch",
    "nanochat": "millstream.compat.nanochat",
}
COMMAND = re.compile(r"millstream ([a-z-]+)|python -m (millstream[\w.]+)")
CALL = re.compile(r"([a-z]\w*(?:\.\w+)*)(?:\(((?:\w+=…(?:, )?)*)\))?")
# The cells of each row: what the document says, here, test, difference.
ROWS = list(rows_of(PAGE, 4))


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
    num_rows = [section.count("\n| ") - 1 for section in sections]
    assert all(map(int.__ge__, num_rows, [18, 42, 15, 29, 10])), "something a document says is lost"
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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_tests_exist(row):
    check_tests_exist(row[2])


def test_every_link_leads_to_a_heading():
    assert len(check_links(PATH)) > 5
