"""A sample of the oracle's cases; `make oracle` runs all."""

import pytest

import millstream
from tests.oracle.draws import Draws
from tests.oracle.recordings import NUM_CASES, TOPICS, recorded, run

EVERY, AT_ONCE = 12, 10
SAMPLE = [
    pytest.param(
        topic.__name__, range(first, count, EVERY)[:AT_ONCE], id=f"{topic.__name__}-{first}"
    )
    for topic, count in NUM_CASES.items()
    for first in range(0, count, EVERY * AT_ONCE)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "numbers"), SAMPLE)
def test_cases_give_what_was_recorded(name, numbers):
    before = recorded(name)
    assert len(before) == NUM_CASES[TOPICS[name]]
    differing = [k for k in numbers if run(name, k, millstream) != before[k]]
    assert differing == [], f"to see a case: python -m tests.oracle {name} {differing[0]}"


@pytest.mark.parametrize("name", TOPICS)
def test_few_cases_are_refused(name):
    refused = [digest for digest in recorded(name) if " " in digest]
    assert len(refused) <= 0.05 * len(recorded(name))


def test_choices_never_change():
    draw = Draws("windows 0")
    assert [draw.integer(1, 1000) for _ in range(4)] == [270, 18, 563, 647]
    assert draw.shuffled("abcdef") == list("efdcab")
    assert draw.numbers(3, 10**6).tolist() == [927245, 549700, 363242]
