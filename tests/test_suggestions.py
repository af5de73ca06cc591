"""Hints for misspelt names."""

import subprocess
import sys

import pytest

from penstock.suggestions import did_you_mean

KNOWN = ("input_ids", "labels", "position_ids", "Text")


@pytest.mark.parametrize(
    ("word", "close"),
    [
        ("input_id", "input_ids"),
        ("lables", "labels"),
        ("position-ids", "position_ids"),
        ("INPUT_IDS", "input_ids"),
        ("text", "Text"),
    ],
)
def test_a_misspelt_name_gets_the_closest_known_one(word: str, close: str) -> None:
    assert did_you_mean(word, KNOWN) == f"; did you mean {close!r}?"


@pytest.mark.parametrize("word", ["", "zzz", "tokens", "labels"])
def test_a_name_that_is_far_from_all_or_known_gets_no_hint(word: str) -> None:
    assert did_you_mean(word, KNOWN) == ""


def test_no_name_is_close_to_an_empty_list() -> None:
    assert did_you_mean("labels", []) == ""


def test_importing_it_imports_nothing_heavy() -> None:
    code = "import sys, penstock.suggestions; assert 'difflib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
