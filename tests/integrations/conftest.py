"""Tests of frameworks that only `make test-frameworks` installs are collected only there."""

from importlib.util import find_spec

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
