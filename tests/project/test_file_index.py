"""docs/files.md lists every source file, with the first line of its docstring."""

from tests.helpers import file_index


def test_every_source_file_says_what_it_holds():
    empty = [str(path) for path in file_index.sources() if not file_index.first_line(path)]
    assert [path for path in empty if not path.endswith("_version.py")] == []


def test_the_page_is_current():
    assert file_index.PAGE.read_text() == file_index.render(), "run `make format`"
