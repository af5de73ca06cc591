"""`text.live.token_arena`: tokens are unchanged when the arena moves them."""

import itertools
import random

import pytest

from tests.helpers.live_text import PACKINGS, expected_rows, make_loader, rows_of, write_text


@pytest.mark.slow
@pytest.mark.parametrize("policy", PACKINGS)
def test_rows_are_those_of_the_model_when_tokens_are_moved_together(tmp_path, policy):
    chosen = random.Random(0)
    groups = [
        ["".join(chosen.choices("abcdefgh", k=chosen.randrange(9000))) for _ in range(60)]
        for _ in range(3)
    ]
    path = write_text(tmp_path / "text", [groups])
    options = {"buffer_size": 40, "refill": 16}
    with make_loader(path, policy, 2000, batch_size=4, **options) as loader:
        found = rows_of(itertools.islice(loader, 60))
        state = loader.state_dict()
    expected = list(itertools.islice(expected_rows([groups], policy, 2000, **options), 248))
    assert found == expected[:240]
    with make_loader(path, policy, 2000, batch_size=4, **options) as loader:
        loader.load_state_dict(state)
        assert rows_of(itertools.islice(loader, 2)) == expected[240:]
