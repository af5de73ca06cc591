"""Text loaders with a `global_batch_size`: steps of several batches."""

import json
import pickle
from itertools import islice

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import millstream
from millstream import TextLoader
from millstream.errors import UsageError
from tests.helpers.live_text import PACKINGS, corpora, make_loader, rows_of, write_text

FILES = [[["abc" * k for k in range(1, 30)], ["d" * 5] * 3, ["e", "", "f" * 40]]]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_text(tmp_path / "text", FILES)


def steps_of(path, policy, state=None, ranks=1, count=None, **options):
    """For every step, all ranks' batches as rows, and the joined state after it."""
    loaders = [
        make_loader(path, policy, 6, rank=rank, ranks=ranks, **options) for rank in range(ranks)
    ]
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(state)
    if not loaders[0].endless:
        num_left = {loader.remaining for loader in loaders}
    steps = []
    for shares in zip(*(islice(loader, count) for loader in loaders), strict=True):
        joined = TextLoader.join_states([loader.state_dict() for loader in loaders])
        shares = [[rows_of([batch]) for batch in share] for share in shares]
        assert len({len(share) for share in shares}) == 1
        steps.append((shares, json.loads(json.dumps(joined))))
    for loader in loaders:
        loader.close()
    if count is None:
        assert num_left == {len(steps)}
    return steps


def batches_of(path, policy, **options):
    """The rows of every batch of a loader without a `global_batch_size`, on one rank."""
    with make_loader(path, policy, 6, endless=False, **options) as loader:
        return [rows_of([batch]) for batch in loader]


@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize("tail", ["drop", "keep"])
def test_a_step_is_the_list_of_its_batches_and_the_tail_is_of_steps(corpus, tail, is_counted):
    batches = batches_of(corpus, "full_best_fit", batch_size=2, tail=tail)
    assert len(batches) % 5
    expected = [batches[start : start + 5] for start in range(0, len(batches), 5)]
    if tail == "drop":
        expected.pop()
    loader = make_loader(
        corpus, "full_best_fit", 6, batch_size=2, tail=tail, endless=False, global_batch_size=10
    )
    for epoch in range(2):
        if is_counted:
            assert (len(loader), loader.remaining) == (len(expected), len(expected))
        found, positions = [], []
        for step in loader:
            found.append([rows_of([batch]) for batch in step])
            positions.append(loader.position)
        assert found == expected
        whole = [10 * (number + 1) for number in range(len(expected))]
        if tail == "keep":
            whole[-1] = 2 * len(batches)
        assert (positions, loader.epoch) == (whole, epoch)
    assert loader.stats.batches == 2 * sum(map(len, expected))
    loader.close()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(files=corpora, policy=st.sampled_from(PACKINGS), data=st.data())
def test_every_step_can_be_resumed_with_other_sizes_on_other_ranks(
    tmp_path_factory, files, policy, data
):
    assume(any(len(text) > 6 for groups in files for group in groups for text in group))
    path = write_text(tmp_path_factory.mktemp("text"), files)
    lanes = data.draw(st.integers(1, sum(map(len, files))))
    works = [ranks for ranks in range(1, lanes + 1) if lanes % ranks == 0]
    options = {"tail": "keep", "lanes": lanes, "endless": False}

    def draw_shape():
        ranks, batch_size = data.draw(st.sampled_from(works)), data.draw(st.integers(1, 3))
        size = ranks * batch_size * data.draw(st.integers(1, 4))
        return {"ranks": ranks, "batch_size": batch_size, "global_batch_size": size}

    def rows(steps):
        return [row for shares, _ in steps for share in shares for batch in share for row in batch]

    first = draw_shape()
    whole = steps_of(path, policy, **options, **first)
    expected = batches_of(path, policy, batch_size=1, tail="keep", lanes=lanes)
    assert sorted(rows(whole)) == sorted(sum(expected, []))
    middle = data.draw(st.integers(1, len(whole)))
    state = whole[middle - 1][1]
    if middle < len(whole):
        assert steps_of(path, policy, state, **options, **first) == whole[middle:]
        rest = steps_of(path, policy, state, **options, **draw_shape())
        assert sorted(rows(whole[:middle]) + rows(rest)) == sorted(rows(whole))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_schedule_goes_on_by_position_on_any_number_of_ranks(corpus, ranks):
    schedule = [(0, 4), (10, 8), (40, 12)]
    options = {"lanes": 2, "global_batch_size": schedule}
    steps = steps_of(corpus, "flat", ranks=ranks, count=9, batch_size=2, **options)
    positions = [state["position"] for _, state in steps]
    assert positions == [4, 8, 12, 20, 28, 36, 44, 56, 68]
    assert [len(shares[0]) for shares, _ in steps] == [
        size // (2 * ranks) for size in [4, 4, 4, 8, 8, 8, 8, 12, 12]
    ]
    rest = steps_of(corpus, "flat", steps[3][1], 3 - ranks, 5, batch_size=1, **options)
    assert [state["position"] for _, state in rest] == positions[4:]

    def rows(steps):
        return [sorted(sum((sum(share, []) for share in shares), [])) for shares, _ in steps]

    assert rows(rest) == rows(steps[4:])


def test_a_state_has_the_keys_of_a_loader_without_a_global_batch_size(corpus):
    with (
        make_loader(corpus, "best_fit", 6, batch_size=2, global_batch_size=6) as loader,
        make_loader(corpus, "best_fit", 6, batch_size=6) as plain,
    ):
        next(iter(loader))
        next(iter(plain))
        assert loader.state_dict() == plain.state_dict()


@pytest.mark.parametrize("tail", ["drop", "keep"])
def test_epochs_resume_exactly_and_copies_continue(corpus, tail):
    def make():
        return make_loader(
            corpus, "full_best_fit", 6, tail=tail, endless=False, global_batch_size=10
        )

    millstream.testing.assert_resumes_exactly(make, steps=12)
    with make() as loader:
        steps = iter(loader)
        next(steps)
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert rows_of(next(iter(copy))) == rows_of(next(steps))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"global_batch_size": 7},
            "not a multiple of the 4 rows that 2 ranks of batch_size=2 have together; use 4 or 8",
        ),
        ({"global_batch_size": 3}, "together; use 4$"),
        ({"global_batch_size": [(0, 4), (8, 8)], "endless": False}, "needs endless=True"),
        ({"global_batch_size": [(0, 4), (8, 9)]}, "global_batch_size=9 is not a multiple"),
    ],
)
def test_sizes_that_cannot_work_are_refused(corpus, options, words):
    with pytest.raises(UsageError, match=words):
        make_loader(corpus, "flat", 6, rank=0, ranks=2, **options)


def test_an_epoch_without_a_step_advises_a_size_that_has_one(corpus):
    with make_loader(corpus, "flat", 6, endless=False, global_batch_size=2000) as loader:
        with pytest.raises(
            UsageError, match=r"less than one step of 2,000 rows on 1 rank"
        ) as found:
            next(iter(loader))
        size = int(str(found.value).partition("global_batch_size=")[2].split(" ")[0].strip(","))
    with make_loader(corpus, "flat", 6, endless=False, global_batch_size=size) as loader:
        assert len(loader) == 1
