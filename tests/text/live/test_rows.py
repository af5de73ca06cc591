"""Rows of live text are those of a plain model, also after any interruption."""

import contextlib
import itertools
import json

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import millstream
from millstream import TextLoader
from millstream.errors import UsageError
from tests.helpers.live_text import (
    PACKINGS,
    corpora,
    expected_rows,
    make_loader,
    rows_of,
    write_text,
)

pytestmark = pytest.mark.slow


@settings(max_examples=60, deadline=None)
@given(
    corpora,
    st.sampled_from(PACKINGS),
    st.integers(1, 12),
    st.integers(1, 7),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 3),
)
@example([[["a" * 30]]], "flat", 1, 1, 1, 1, 1)
def test_rows_are_those_of_the_model(
    tmp_path_factory, files, policy, seq_len, buffer_size, refill, threads, prefetch
):
    assume(seq_len > 1 or "repeat_bos" not in policy)
    path = write_text(tmp_path_factory.mktemp("text"), files)
    options = {"buffer_size": buffer_size, "refill": refill}
    with make_loader(
        path, policy, seq_len, threads=threads, prefetch=prefetch, **options
    ) as loader:
        found = rows_of(itertools.islice(loader, 9))
    expected = list(itertools.islice(expected_rows(files, policy, seq_len, **options), 18))
    assert found == expected


@settings(max_examples=40, deadline=None)
@given(corpora, st.sampled_from(PACKINGS), st.integers(2, 9), st.data())
def test_a_state_of_any_step_goes_on_exactly_on_any_ranks_that_divide_the_lanes(
    tmp_path_factory, files, policy, seq_len, data
):
    path = write_text(tmp_path_factory.mktemp("text"), files)
    num_blocks = sum(map(len, files))
    lanes = data.draw(st.integers(1, num_blocks))
    works = [ranks for ranks in range(1, lanes + 1) if lanes % ranks == 0]
    streams = [
        expected_rows(files, policy, seq_len, lane, lanes, buffer_size=5, refill=4)
        for lane in range(lanes)
    ]
    expected = [next(streams[position % lanes]) for position in range(60)]
    position, states = 0, None
    for _ in range(3):
        ranks, batch_size = data.draw(st.sampled_from(works)), data.draw(st.integers(1, 4))
        steps = data.draw(st.integers(0, 3))
        shares, saved = [], []
        for rank in range(ranks):
            with make_loader(
                path,
                policy,
                seq_len,
                batch_size,
                rank=rank,
                ranks=ranks,
                lanes=lanes,
                threads=data.draw(st.integers(1, 3)),
                prefetch=data.draw(st.integers(1, 4)),
            ) as loader:
                if states is not None:
                    loader.load_state_dict(json.loads(json.dumps(states)))
                shares.append(rows_of(itertools.islice(loader, steps)))
                saved.append(loader.state_dict())
        for row in range(steps * batch_size):
            for share in shares:
                if position < len(expected):
                    assert share[row] == expected[position]
                position += 1
        states = TextLoader.join_states(saved)
        assert states["position"] == position


@settings(max_examples=40, deadline=None)
@given(
    corpora,
    st.sampled_from(PACKINGS),
    st.integers(2, 9),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["drop", "keep"]),
)
@example([[["aaaa", "aa"]]], "bos_best_fit", 4, 1, 1, "keep")
def test_an_epoch_has_every_row_once_and_equally_many_steps_on_all_ranks(
    tmp_path_factory, files, policy, seq_len, ranks, batch_size, tail
):
    num_blocks = sum(map(len, files))
    ranks = min(ranks, num_blocks)
    path = write_text(tmp_path_factory.mktemp("text"), files)
    options = {"buffer_size": 5, "refill": 4, "epochs": 1}
    expected = [
        list(expected_rows(files, policy, seq_len, lane, ranks, **options)) for lane in range(ranks)
    ]
    step = ranks * batch_size
    if tail == "drop":
        holes = [ranks * len(rows) + lane for lane, rows in enumerate(expected)]
        num_steps = min(holes) // step
    else:
        num_steps = max(-(-len(rows) // batch_size) for rows in expected)
    for rank in range(ranks):
        with make_loader(
            path,
            policy,
            seq_len,
            batch_size,
            rank=rank,
            ranks=ranks,
            endless=False,
            tail=tail,
        ) as loader:
            if not num_steps:
                with pytest.raises(millstream.MillstreamError, match="less than one step"):
                    next(iter(loader))
                continue
            assert len(loader) == num_steps
            batches = list(loader)
            assert len(batches) == num_steps
            shown = expected[rank][: num_steps * batch_size]
            assert rows_of(batches) == shown
            assert loader.state_dict()["epoch"] == 0
            with contextlib.suppress(UsageError):  # the next one may be less than a step
                next(iter(loader))
            assert loader.state_dict()["epoch"] == 1
