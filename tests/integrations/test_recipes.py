"""The recipes of docs/frameworks.md continue exactly after a kill; the versions named are true."""

import re
import signal
from importlib.metadata import version
from importlib.util import find_spec

import pytest

from tests.helpers import fork_server
from tests.helpers.paths import ROOT
from tests.helpers.recipes import (
    KILLED_AT,
    PAGE,
    RECIPES,
    USES,
    can_run,
    expected_steps,
    run,
    seen_steps,
    write_data,
)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("recipe", USES)
def test_a_recipe_that_is_killed_continues_exactly(recipe, tmp_path):
    if not can_run(recipe):
        pytest.skip(f"{USES[recipe][0]} is installed by make test-frameworks")
    expected = expected_steps(write_data(tmp_path), recipe)
    for exit_code in (-signal.SIGKILL, 0):
        process = fork_server.start(run, recipe, tmp_path)
        process.join(90)
        process.kill()
        process.join()
        assert process.exitcode == exit_code, (tmp_path / "log").read_text()
    killed, continued = seen_steps(tmp_path)
    assert killed == expected[:KILLED_AT]
    # Own loops save every step and end with the epoch; trainers save every few, for two epochs.
    assert len(continued) in (
        len(expected) // 2 - KILLED_AT + 1,
        len(expected) - 4,
        len(expected) - 6,
    )
    num_epochs = 1 if len(continued) < len(expected) // 2 else 2
    assert continued == expected[: len(expected) * num_epochs // 2][-len(continued) :]


def test_every_recipe_is_run():
    by_tests_of_frameworks = {"torchtitan", "JAX", "JAX attention", "Keras", "Keras loss"}
    assert set(RECIPES) == {*USES, *by_tests_of_frameworks}


def test_the_page_names_the_versions_that_the_tests_run_with():
    table = re.findall(r"^\|.*?\| (\w[\w-]*) (\d[\w.]*) \|", PAGE, re.M)
    assert len(table) > 6
    pinned = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.M))
    for name, named in table:
        assert named == pinned[name]
        if find_spec(name) is not None:
            assert version(name).partition("+")[0] == named
