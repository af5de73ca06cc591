import pytest

from tests.helpers.trainer_runs import (
    check_killed_and_resumed,
    expected_steps,
    seen_steps,
    start,
    write_data,
)
from tests.helpers.trainers import with_deepspeed


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_under_zero_continues_exactly(tmp_path, ranks):
    check_killed_and_resumed(with_deepspeed.train_with_zero, tmp_path, ranks, DS_ACCELERATOR="cpu")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("resumed_on", [1, 4])
def test_a_killed_run_continues_exactly_on_another_number_of_ranks(tmp_path, resumed_on):
    check_killed_and_resumed(
        with_deepspeed.train, tmp_path, 2, resumed_on=resumed_on, DS_ACCELERATOR="cpu"
    )


@pytest.mark.slow
@pytest.mark.process
def test_what_deepspeed_would_wrap_raises_but_its_repeating_loader_is_exact(tmp_path):
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    assert start(with_deepspeed.wrap, data, out, 1, DS_ACCELERATOR="cpu")
    assert list(seen_steps(out)[0].values()) == expected_steps(data)
