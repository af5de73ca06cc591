"""Data for tests of frameworks; those that only `make test-frameworks` installs."""

from importlib.util import find_spec

import pytest

from tests.helpers.trainer_data import write_text, write_view

ONLY_THERE = [
    "test_deepspeed.py",
    "test_example_jax.py",
    "test_jax.py",
    "test_keras.py",
    "test_peers.py",
    "test_torchtitan.py",
    "test_trl.py",
]
collect_ignore = [] if find_spec("torchtitan") else ONLY_THERE


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    return write_view(tmp_path_factory.mktemp("tokens") / "data")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")
