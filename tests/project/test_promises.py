"""`docs/promises.md` names tests, benchmarks and pages that exist."""

import re

import pytest

from tests.helpers.doc_tables import check_links, check_tests_exist, rows_of
from tests.helpers.paths import ROOT

PATH = ROOT / "docs" / "promises.md"
PAGE = PATH.read_text()
# The cells of each row: what users can rely on, and its tests.
ROWS = list(rows_of(PAGE, 2))


def test_every_line_of_a_table_is_a_row_with_a_promise_and_its_tests():
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(lines) - len(sections), "a row does not have two cells"
    assert len({promise for promise, _ in ROWS}) == len(ROWS) > 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_tests_exist(row):
    check_tests_exist(row[1])


def test_every_source_document_is_linked_at_its_section():
    linked = [anchor for name, anchor in check_links(PATH) if name == "sources.md"]
    assert [anchor[0] for anchor in linked] == list("12345")
