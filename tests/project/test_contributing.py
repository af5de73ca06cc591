"""CONTRIBUTING.md names files, functions and make targets: each of them exists."""

import re

import pytest

from tests.helpers import paths

TEXT = (paths.ROOT / "CONTRIBUTING.md").read_text()
SOURCE = paths.ROOT / "src" / "millstream"
STEPS = re.findall(r"^\| `([\w/.]+)` \| `(\w+)` \|", TEXT, re.M)


def test_the_map_has_three_walks():
    walks = re.findall(r"^## From .*", TEXT, re.M)
    assert len(walks) == 3
    assert len(STEPS) > 10 * len(walks)


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_a_step_of_a_walk_is_where_the_map_says(file, name):
    code = (SOURCE / file).read_text()
    assert re.search(rf"^(c?p?def|cdef|class|cdef class)\b.*\b{name}\b", code, re.M)


def test_every_path_exists():
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]*|\w+\.(?:py|md|json))`", TEXT))
    named -= {
        "dist/",
        "formats/NAME.py",
        "integrations/NAME.py",
        "views/NAME.py",
        "millstream.json",
    }
    roots = (paths.ROOT, paths.ROOT / "src", SOURCE)
    assert sorted(each for each in named if not any((root / each).exists() for root in roots)) == []


def test_every_make_target_exists():
    makefile = (paths.ROOT / "Makefile").read_text()
    targets = set(re.findall(r"make ([a-z-]+)", TEXT))
    assert sorted(each for each in targets if not re.search(rf"^{each}:", makefile, re.M)) == []
