"""What a killed and resumed run reads with Millstream, and with what its users have now.

The table holds what we found with the versions in constraints.txt. If a feed becomes better, its
test fails: update the table and docs/frameworks.md.
"""

from typing import NamedTuple

import pytest

from tests.helpers.peer_runs import Case, Comparison, run_killed, run_resumed, write_data

NUM_ROWS, NUM_SHARDS = 240, 12
SECOND_EPOCH = Comparison(NUM_ROWS, batch_rows=4, buffer_size=32)
FIRST_EPOCH = Comparison(NUM_ROWS, batch_rows=4, buffer_size=32, epoch=0)
REST = 12
"""steps of an epoch after the checkpoint"""


class Found(NamedTuple):
    lost: int
    repeated: int
    same_order: bool
    num_steps: int


EXACT = Found(0, 0, True, REST)
EPOCH_AGAIN = Found(0, 192, False, 60)
FOUND = {
    # Lightning starts a DataLoader again, and stops it where the epoch would end.
    Case("lightning", "torch"): Found(41, 41, False, REST),
    Case("lightning", "torch", ranks=2): Found(48, 48, False, REST),
    Case("lightning", "torch", workers=2): Found(41, 41, False, REST),
    Case("lightning", "datasets"): Found(41, 41, False, REST),
    Case("lightning", "torchdata", ranks=2): EXACT,
    Case("lightning", "litdata", ranks=2): EXACT,
    # The rows in the buffer are not saved.
    Case("lightning", "datasets-iterable"): Found(26, 6, False, 7),
    Case("transformers", "torch", ranks=2): EXACT,
    Case("transformers", "datasets"): EXACT,
    Case("transformers", "litdata"): EXACT,
    Case("transformers", "litdata", ranks=2): Found(40, 40, False, REST),
    # The Trainer does not know the length of an epoch: it skips more batches than there are.
    Case("transformers", "datasets-iterable"): EPOCH_AGAIN,
}
TRAINERS = ["lightning", "transformers"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("peers"), NUM_ROWS, NUM_SHARDS)


def read_of(case, comparison, data, out):
    run_killed(case, comparison, data, out)
    found = run_resumed(case, comparison, data, out)
    return Found(found.lost, found.repeated, found.same_order, found.num_steps)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_with_millstream_a_resumed_run_reads_every_row_once(trainer, ranks, data, tmp_path):
    case = Case(trainer, "millstream", ranks)
    assert read_of(case, SECOND_EPOCH, data, tmp_path) == EXACT


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("case", FOUND, ids=str)
def test_other_feeds_read_what_the_docs_say(case, data, tmp_path):
    assert read_of(case, SECOND_EPOCH, data, tmp_path) == FOUND[case]


@pytest.mark.slow
@pytest.mark.process
def test_an_iterable_dataset_is_exact_under_the_trainer_in_its_first_epoch(data, tmp_path):
    case = Case("transformers", "datasets-iterable")
    assert read_of(case, FIRST_EPOCH, data, tmp_path) == EXACT
