"""The examples with frameworks: kill one, start it again, and it trains as if undisturbed."""

import re
import signal

import pytest

from tests.helpers.datasets import write_random_documents
from tests.helpers.example_runs import Run

EXAMPLES = ["train_lightning.py", "train_transformers.py", "train_accelerate.py"]
STEPS = 30


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "data"
    write_random_documents(path, 200, longest=40, num_ids=500)
    return path


def steps_of(printed):
    return re.findall(r"^step (\d+): loss ([\d.]+), rows ([0-9a-f]{32}),", printed, re.M)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_that_was_killed_goes_on_with_the_same_rows_and_losses(
    example, documents, tmp_path
):
    def start(name):
        arguments = [
            *("--tiny", "--data", documents, "--seq-len", 64, "--batch-size", 8, "--steps", STEPS),
            *("--log-every", 1, "--checkpoint-every", 4, "--out", tmp_path / name),
        ]
        return Run(example, arguments, tmp_path / f"{name}.log")

    alone, killed = start("alone"), start("killed")
    killed.wait_for(lambda: len(steps_of(killed.log.read_text())) > 6)
    killed.process.kill()
    killed.process.join()
    assert killed.process.exitcode == -signal.SIGKILL
    before = steps_of(killed.log.read_text())
    killed.log.write_text("")
    resumed, expected = steps_of(start("killed").end()), steps_of(alone.end())
    assert [int(step) for step, _, _ in expected] == list(range(1, STEPS + 1))
    first = int(resumed[0][0])
    assert first > 4
    assert before == expected[: len(before)]
    assert resumed == expected[first - 1 :]
