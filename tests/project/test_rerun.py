"""`make test` runs what failed once more, alone, and lists what then passes as flaky."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow]

# Tests that fail, or end their worker, in the first run only.
ONCE = """
import os, pathlib, pytest, time

def is_first():
    path = pathlib.Path("was-here")
    was_here = path.exists()
    path.touch()
    return not was_here

def test_that_passes():
    pass
"""
FAILS_ONCE = """
def test_that_fails_once():
    assert not is_first()
"""
FAILS = """
def test_that_fails():
    assert False
"""
TEARDOWN_FAILS = """
@pytest.fixture
def torn_down():
    yield
    assert False

def test_that_leaves_something(torn_down):
    pass
"""
SKIPPED = """
def test_that_is_skipped():
    assert not is_first()
    pytest.skip("cannot run alone")
"""
CRASHES_ONCE = """
def test_that_crashes_once():
    if is_first():
        os._exit(1)
"""
HANGS_ONCE = """
@pytest.mark.timeout(10)
def test_that_hangs_once():
    while is_first():
        time.sleep(100)
"""
MANY = """
@pytest.mark.parametrize("number", range(20))
def test_one_of_many(number):
    pass
"""


def make_test(directory, options=""):
    """Run the recipe of `make test` on the tests in a directory."""
    (directory / "pytest.ini").write_text(
        f"[pytest]\naddopts = {options}\ntimeout = 60\ntimeout_method = thread\n"
    )
    ours = ("MAKE", "MFLAGS", "PYTEST_")  # of the `make test` and the pytest that run this test
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    made = ("lint", ".venv/.azurite")
    return subprocess.run(
        [
            *("make", "-f", ROOT / "Makefile", "test"),
            *(f"--assume-old={each}" for each in made),
            f"BIN={Path(sys.executable).parent}",
        ],
        cwd=directory,
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def flaky(done):
    """The tests that are listed as flaky, without their files."""
    _, _, listed = done.stdout.partition("\nflaky:\n")
    lines = [line for line in listed.splitlines() if line.startswith("  ")]
    return [line.partition("::")[2] for line in lines]


def num_runs(done):
    return done.stdout.count(" test session starts ")


def test_what_passes_is_not_run_again(tmp_path):
    (tmp_path / "test_it.py").write_text(ONCE)
    done = make_test(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (num_runs(done), flaky(done)) == (1, [])


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (FAILS_ONCE, "test_that_fails_once"),
        (CRASHES_ONCE, "test_that_crashes_once"),
        (HANGS_ONCE, "test_that_hangs_once"),
    ],
    ids=["fails", "crashes", "hangs"],
)
def test_what_passes_alone_is_listed(tmp_path, program, name):
    (tmp_path / "test_it.py").write_text(ONCE + program)
    done = make_test(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (num_runs(done), flaky(done)) == (2, [name])
    assert f"FAILED test_it.py::{name}" in done.stdout, "the first run is not shown"
    assert "test_that_passes" not in done.stdout


@pytest.mark.parametrize(
    "program", [FAILS, TEARDOWN_FAILS, SKIPPED], ids=["fails", "teardown fails", "is skipped"]
)
def test_what_does_not_pass_alone_fails(tmp_path, program):
    flaky_first = FAILS_ONCE.replace("is_first()", "is_first_of_another()")
    other = ONCE.replace("was-here", "other").replace("is_first", "is_first_of_another")
    (tmp_path / "test_it.py").write_text(ONCE + program)
    (tmp_path / "test_other.py").write_text(other + flaky_first)
    done = make_test(tmp_path)
    assert done.returncode == 2
    assert (num_runs(done), flaky(done)) == (2, ["test_that_fails_once"])


def test_after_an_error_of_collection_nothing_is_run_again(tmp_path):
    (tmp_path / "test_it.py").write_text(ONCE + FAILS_ONCE)
    (tmp_path / "test_other.py").write_text("import no_module_has_this_name\n")
    done = make_test(tmp_path)
    assert done.returncode == 2
    assert (num_runs(done), flaky(done)) == (1, [])


def test_a_run_that_ends_early_is_not_saved_by_what_passes_alone(tmp_path):
    """So it is after more crashes than workers are replaced."""
    (tmp_path / "test_it.py").write_text(CRASHES_ONCE.join([ONCE, MANY]))
    done = make_test(tmp_path, "--max-worker-restart=0")
    assert done.returncode == 2
    assert (num_runs(done), flaky(done)) == (1, [])
    assert " tests were not run" in done.stdout


def test_what_failed_in_earlier_runs_is_not_run_again(tmp_path):
    (tmp_path / "test_other.py").write_text("import no_module_has_this_name\n")
    (tmp_path / "test_third.py").write_text(FAILS)
    assert make_test(tmp_path).returncode == 2
    (tmp_path / "test_other.py").write_text("def test_that_can_be_collected_now(): pass\n")
    (tmp_path / "test_third.py").unlink()
    (tmp_path / "test_it.py").write_text(ONCE + FAILS_ONCE)
    done = make_test(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (num_runs(done), flaky(done)) == (2, ["test_that_fails_once"])
