"""States of live text: one per rank or one for all, and invalid ones."""

import json

import pytest

import millstream
from millstream import TextLoader
from millstream.errors import StateError, UsageError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Four blocks of documents that are all different."""
    directory = tmp_path_factory.mktemp("text")
    for number in range(4):
        lines = [f"document {number}.{line} of some length" for line in range(90)]
        (directory / f"{number}.txt").write_text("\n".join(lines))
    return directory


def make_loaders(path, ranks, batch_size, **options):
    return [
        TextLoader(
            path,
            "bytes",
            batch_size,
            16,
            rank=rank,
            ranks=ranks,
            endless=True,
            output="numpy",
            **options,
        )
        for rank in range(ranks)
    ]


def steps(loaders, num_steps):
    """The rows of each step, of all ranks, in the order of positions."""
    batches = [iter(loader) for loader in loaders]
    shares = [[next(batch)["input_ids"] for batch in batches] for _ in range(num_steps)]
    return [[row.tolist() for rows in zip(*share, strict=True) for row in rows] for share in shares]


def test_one_state_for_each_rank_goes_on_as_well_as_one_for_all(path):
    loaders = make_loaders(path, 2, 3)
    steps(loaders, 5)
    own = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
    joined = TextLoader.join_states(own)
    expected = steps(loaders, 4)
    for saved in (own, [joined, joined]):
        resumed = make_loaders(path, 2, 3)
        for loader, state in zip(resumed, saved, strict=True):
            loader.load_state_dict(state)
        assert steps(resumed, 4) == expected
    (alone,) = make_loaders(path, 1, 6)
    alone.load_state_dict(joined)
    assert steps([alone], 4) == expected


def test_a_state_from_before_the_first_batch_says_so_and_begins_at_the_beginning(path):
    (loader,) = make_loaders(path, 1, 2)
    assert (loader.position, loader.epoch) == (0, 0)
    (resumed,) = make_loaders(path, 1, 2)
    resumed.load_state_dict(TextLoader.join_states([loader.state_dict()]))
    assert steps([resumed], 2) == steps([loader], 2)


def test_states_that_are_not_of_all_ranks_at_one_step_are_not_joined(path):
    loaders = make_loaders(path, 2, 3)
    steps(loaders, 1)
    early = [loader.state_dict() for loader in loaders]
    steps(loaders, 1)
    late = [loader.state_dict() for loader in loaders]
    with pytest.raises(StateError, match="not from one step: position is 6 in one and 12"):
        TextLoader.join_states([early[0], late[1]])
    with pytest.raises(StateError, match=r"lanes \[1\] are missing"):
        TextLoader.join_states([late[0], late[0]])
    for wrong in ([], late[0]):
        with pytest.raises(StateError, match="list of what state_dict returned"):
            TextLoader.join_states(wrong)
    for wrong in ([None, late[1]], [{"position": 3}]):
        with pytest.raises(StateError, match="not a state of a TextLoader"):
            TextLoader.join_states(wrong)


@pytest.mark.parametrize(
    ("key", "value"),
    [("lanes", 0), ("lanes", "2"), ("position", None), ("lane_states", 5), ("lane_states", [])],
)
def test_damaged_states_are_neither_loaded_nor_joined(path, key, value):
    (loader,) = make_loaders(path, 1, 2)
    steps([loader], 1)
    damaged = loader.state_dict() | {key: value}
    with pytest.raises(StateError, match=f"{key} is "):
        loader.load_state_dict(damaged)
    with pytest.raises(StateError, match=f"{key} is "):
        TextLoader.join_states([damaged])


def test_a_state_that_claims_to_have_ever_so_many_lanes_is_refused_at_once(path):
    (loader,) = make_loaders(path, 1, 2)
    steps([loader], 1)
    with pytest.raises(StateError, match="are missing"):
        TextLoader.join_states([loader.state_dict() | {"lanes": 1 << 60}])
    with pytest.raises(StateError, match="blocks to share"):
        loader.load_state_dict(loader.state_dict() | {"lanes": 1 << 60})


def test_blocks_are_shuffled_or_not_and_nothing_else(path):
    with pytest.raises(UsageError, match="True or False"):
        make_loaders(path, 1, 2, shuffle=millstream.BlockShuffle(3))
