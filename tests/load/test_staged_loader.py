"""Stages of a run with different row lengths and batch sizes."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import StateError, UsageError
from millstream.testing import assert_resumes_exactly
from tests.helpers.datasets import write_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(
        tmp_path_factory.mktemp("stages") / "data", np.arange(1000), cuts=range(7, 1000, 13)
    )


def stage(view, batch_size, until=None, **more):
    return millstream.LoaderStage(view=view, batch_size=batch_size, until=until, **more)


def new_loader(data, *, ends=(40, 55, None), sizes=(4, 2, 1), rank=0, ranks=1, **more):
    views = [data.windows(4), data.windows(9), data.windows(33)]
    stages = [
        stage(view, size, until) for view, size, until in zip(views, sizes, ends, strict=True)
    ]
    return millstream.StagedLoader(stages, rank=rank, ranks=ranks, output="numpy", **more)


def rows_of(loader):
    """(position before the step, rows) of every step that is left."""
    steps, position = [], loader.position
    for batch in loader:
        steps.append((position, batch["input_ids"].tolist()))
        position = loader.position
    return steps


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_position_has_the_same_row_on_any_ranks_and_batch_sizes(data, draws):
    ranks = draws.draw(st.integers(1, 3))
    sizes = draws.draw(st.tuples(*[st.integers(1, 4)] * 3))
    expected = {}
    for position, (row,) in rows_of(new_loader(data, sizes=(1, 1, 1))):
        expected[position] = row
    found = {}
    for rank in range(ranks):
        with new_loader(data, sizes=sizes, rank=rank, ranks=ranks, tail="keep") as loader:
            for position, rows in rows_of(loader):
                found |= {position + rank + k * ranks: row for k, row in enumerate(rows)}
    assert found == expected


def test_a_stage_starts_at_its_position_whatever_fits_before(data):
    loader = new_loader(data, ends=(41, 54, None), sizes=(4, 2, 1))
    starts = {}
    for batch in loader:
        starts.setdefault(loader.stage, loader.position - len(batch["input_ids"]))
    assert starts == {0: 0, 1: 41, 2: 54}
    assert loader.starts == [0, 41, 54]


@pytest.mark.parametrize("tail", ["drop", "keep"])
def test_length_and_remaining_count_all_stages(data, tail):
    loader = new_loader(data, ends=(41, 54, 60), tail=tail)
    length, seen = len(loader), 0
    assert loader.remaining == length
    for _ in loader:
        seen += 1
        assert len(loader) == length
        assert loader.remaining == length - seen
    assert seen == length


def test_states_resume_exactly_at_every_step_of_every_stage(data):
    assert_resumes_exactly(lambda: new_loader(data))


def test_a_state_continues_on_other_ranks_and_sizes_and_through_json(data):
    whole = [row for _, rows in rows_of(new_loader(data, sizes=(1, 1, 1))) for row in rows]
    for count in range(0, 70, 7):
        first = new_loader(data, sizes=(1, 1, 1))
        for _ in zip(range(count), first, strict=False):
            pass
        state = json.loads(json.dumps(first.state_dict()))
        rest = {}
        for rank in range(2):
            loader = new_loader(data, sizes=(3, 2, 1), rank=rank, ranks=2, tail="keep")
            loader.load_state_dict(state)
            for position, rows in rows_of(loader):
                rest |= {position + rank + 2 * k: row for k, row in enumerate(rows)}
        assert [rest[k] for k in sorted(rest)] == whole[count:]


def test_a_state_is_small_and_its_form_is_pinned(data):
    # A user's checkpoint outlives a release: change this only with a new version.
    stages = [stage(data.windows(4), 4, until=8), stage(data.windows(9), 2)]
    loader = millstream.StagedLoader(stages, rank=0, ranks=1, output="numpy")
    for _ in zip(range(3), loader, strict=False):
        pass
    state = loader.state_dict()
    assert len(json.dumps(state)) < 1000
    assert state.keys() == {"version", "millstream", "position", "stages"}
    assert (state["version"], state["position"]) == (2, 10)
    assert state["stages"] == [
        {
            "version": 2,
            "millstream": millstream.__version__,
            "position": position,
            "seed": 0,
            "order": {
                "mixture": 1,
                "changes": [[0, 0, [["data", 10**18]]]],
                "exhausted": [],
            },
            "view": {
                "data": f"windows-v1 of {width + 1} every {width} in {data.fingerprint}; "
                f"shuffle-v1 over {count}, seed 9823068252392861929"
            },
        }
        for position, width, count in ((8, 4, 249), (2, 9, 111))
    ]


@pytest.mark.parametrize("further", [3, 100])
def test_a_loader_goes_back_to_an_earlier_state(data, further):
    loader = new_loader(data, ends=(41, 54, 60))
    expected = rows_of(new_loader(data, ends=(41, 54, 60)))
    states = [loader.state_dict()]
    for _ in zip(range(12), loader, strict=False):
        states.append(loader.state_dict())
    for _ in zip(range(further), loader, strict=False):
        pass
    for taken in (0, 2, 12):
        loader.load_state_dict(states[taken])
        assert rows_of(loader) == expected[taken:]


def test_later_stages_may_change_and_earlier_ones_may_not(data):
    loader = new_loader(data)
    for _ in zip(range(12), loader, strict=False):
        pass
    state = loader.state_dict()
    assert loader.stage == 1
    new_loader(data, ends=(40, 60, None)).load_state_dict(state)
    other = new_loader(data, ends=(44, 60, None))
    before = other.position
    with pytest.raises(StateError, match="stage 0 ended after 40 rows and now ends at position 44"):
        other.load_state_dict(state)
    assert other.position == before == 0
    alone = millstream.StagedLoader([stage(data.windows(4), 4)], output="numpy")
    with pytest.raises(StateError, match="saved in stage 1, and this loader has stages 0 to 0"):
        alone.load_state_dict(state)
    swapped = millstream.StagedLoader(
        [stage(data.windows(5), 4, 40), stage(data.windows(9), 2)], output="numpy"
    )
    with pytest.raises(StateError, match="stage 0: source 'data' of the mixture was"):
        swapped.load_state_dict(state)


def test_stages_take_mixtures_and_steps_of_several_batches(data):
    short = millstream.mix({"a": (data.windows(4), 3), "b": (data.packed(4), 1)}, seed=5)
    long = millstream.mix({"a": (data.windows(16), 1)})
    loader = millstream.StagedLoader(
        [stage(short, 2, 24, global_batch_size=8), stage(long, 1, 30, global_batch_size=3)],
        output="numpy",
    )
    shapes = [[batch["input_ids"].shape for batch in step] for step in loader]
    assert shapes == [[(2, 4)] * 4] * 3 + [[(1, 16)] * 3] * 2
    assert loader.position == 30
    with pytest.raises(UsageError, match="all stages are over, at position 30"):
        iter(loader)


def test_the_last_stage_goes_on_by_epochs_if_it_has_no_end(data):
    loader = new_loader(data)
    first, second = rows_of(loader), rows_of(loader)
    assert loader.stage == 2
    assert len(second) == len(data.windows(33))
    assert first[-1] != second[-1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda view: millstream.StagedLoader([]), "takes a list of millstream.LoaderStage"),
        (lambda view: millstream.StagedLoader([view]), "takes a list of millstream.LoaderStage"),
        (lambda view: millstream.StagedLoader([stage(view, 1)] * 2), "needs until="),
        (
            lambda view: millstream.StagedLoader([stage(view, 1, 9), stage(view, 1, 9)]),
            "ends at 9, and the one before it at 9",
        ),
        (lambda view: millstream.StagedLoader([stage(view, 1, 0)]), "until is 0"),
        (lambda view: millstream.StagedLoader([stage("x", 1)]), "a view or a mixture, not 'x'"),
        (lambda view: millstream.StagedLoader([stage(view, 1)], tail="wrap"), "stages have ends"),
        (lambda view: millstream.StagedLoader([stage(view, 1)], endless=True), "leave out endless"),
        (
            lambda view: millstream.StagedLoader([stage(view, 1)], seed=3),
            "seed belongs to a mixture",
        ),
        (
            lambda view: millstream.StagedLoader([stage(view, 9, 4)]),
            "stage 0: an epoch of 4 samples",
        ),
        (
            lambda view: millstream.StagedLoader(
                [
                    stage(
                        millstream.mix({"a": millstream.MixtureSource(view, 1, max_epochs=1)}),
                        1,
                        10**6,
                    )
                ]
            ),
            "stage 0: it has 1,000,000 rows, but its mixture ends after 249",
        ),
    ],
)
def test_what_stages_cannot_be_is_refused(data, make, words):
    with pytest.raises(UsageError, match=words):
        make(data.windows(4))


@pytest.mark.parametrize("stages", [None, "x", -1, [], [1], {}, [{"position": 3}]])
def test_damaged_states_are_refused(data, stages):
    loader = new_loader(data)
    with pytest.raises(StateError, match=r"stage|state"):
        loader.load_state_dict(loader.state_dict() | {"stages": stages})
    assert loader.position == 0
