import pytest

from tests.helpers.trainer_runs import check_killed_and_resumed
from tests.helpers.trainers import with_trl


@pytest.mark.process
@pytest.mark.parametrize("ranks", [1, 2])
def test_trl(tmp_path, ranks):
    check_killed_and_resumed(with_trl.train, tmp_path, ranks)
