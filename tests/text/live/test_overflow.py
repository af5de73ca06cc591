"""Documents longer than a row of live text: split, truncated or dropped, and counted."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import Packing, TextLoader
from millstream.errors import FormatError, StateError, UsageError
from tests.helpers import live_model
from tests.helpers.live_text import (
    MaskedSource,
    corpora,
    expected_rows,
    make_loader,
    masked_tokens_of,
    rows_of,
    tokens_of,
    write_text,
)

pytestmark = pytest.mark.kernels

WAYS = [
    (policy, overflow)
    for policy in ("best_fit", "full_best_fit", "bos_best_fit")
    for overflow in ("truncate", "drop")
]
SHOWN = ("input_ids", "labels", "document_ids", "loss_mask")
FILES = [[["abc" * k for k in range(1, 20)], ["d" * 50, ""], ["e" * 9] * 30, ["f" * 70] * 3]]


@pytest.fixture
def corpus(tmp_path):
    return write_text(tmp_path / "text", FILES)


def losses_of(files, policy, overflow, seq_len):
    """The tokens cropped, the documents dropped and their tokens."""
    columns = seq_len + (policy == "bos_best_fit")
    lengths = [len(tokens_of(text)) for groups in files for group in groups for text in group]
    too_long = [length for length in lengths if length > columns]
    if overflow == "truncate":
        return sum(length - columns for length in too_long), 0, 0
    return 0, len(too_long), sum(too_long)


def counted(stats):
    return stats.cropped_tokens, stats.dropped_documents, stats.dropped_tokens


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    corpora,
    st.sampled_from(WAYS),
    st.integers(2, 12),
    st.integers(2, 7),
    st.integers(1, 5),
    st.integers(1, 3),
    st.data(),
)
def test_an_epoch_is_that_of_the_model_with_what_is_lost_counted(
    tmp_path_factory, files, way, seq_len, buffer_size, refill, lanes, data
):
    policy, overflow = way
    source = MaskedSource(write_text(tmp_path_factory.mktemp("text"), files))
    lanes = min(lanes, sum(map(len, files)))
    options = {"buffer_size": buffer_size, "refill": refill, "overflow": overflow}
    expected = [
        list(
            live_model.with_masks(
                expected_rows(
                    files, policy, seq_len, lane, lanes, 1, tokens_of=masked_tokens_of, **options
                )
            )
        )
        for lane in range(lanes)
    ]
    in_turn = [row for rows in itertools.zip_longest(*expected) for row in rows if row is not None]

    def make():
        return make_loader(
            source,
            policy,
            seq_len,
            1,
            lanes=lanes,
            endless=False,
            tail="keep",
            prefetch=2,
            **options,
        )

    with make() as loader:
        if not in_turn:
            with pytest.raises(UsageError, match="less than one step"):
                next(iter(loader))
            return
        num_steps = len(loader)
        states, steps = [], []
        for batch in loader:
            steps.append(rows_of([batch], SHOWN))
            states.append(loader.state_dict())
        assert [row for rows in steps for row in rows] == in_turn
        assert len(steps) == num_steps
        found = counted(loader.stats)
    lost = losses_of(files, policy, overflow, seq_len)
    if policy == "bos_best_fit":  # it also crops to fill rows, and leaves the last one out
        assert found[1:] <= lost[1:]
    elif overflow == "drop" and lanes > 1:  # a lane may end with dropped documents, after its rows
        assert found <= lost
    else:
        assert found == lost
    step = data.draw(st.integers(0, len(states) - 1))
    with make() as loader:
        loader.load_state_dict(json.loads(json.dumps(states[step])))
        if step < num_steps - 1:
            assert [rows_of([batch], SHOWN) for batch in loader] == steps[step + 1 :]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(corpora, st.sampled_from(WAYS), st.integers(2, 9), st.data())
def test_a_state_of_any_step_goes_on_exactly_on_any_ranks_that_divide_the_lanes(
    tmp_path_factory, files, way, seq_len, data
):
    policy, overflow = way
    files = [[[*group, "a"] for group in groups] for groups in files]  # never all too long
    path = write_text(tmp_path_factory.mktemp("text"), files)
    lanes = data.draw(st.integers(1, sum(map(len, files))))
    works = [ranks for ranks in range(1, lanes + 1) if lanes % ranks == 0]
    options = {"buffer_size": 5, "refill": 4, "overflow": overflow}
    streams = [
        expected_rows(files, policy, seq_len, lane, lanes, **options) for lane in range(lanes)
    ]
    position, states = 0, None
    for _ in range(3):
        ranks, batch_size = data.draw(st.sampled_from(works)), data.draw(st.integers(1, 4))
        shares, saved = [], []
        for rank in range(ranks):
            with make_loader(
                path, policy, seq_len, batch_size, rank=rank, ranks=ranks, lanes=lanes, **options
            ) as loader:
                if states is not None:
                    loader.load_state_dict(states)
                shares.append(rows_of(itertools.islice(loader, 2)))
                saved.append(loader.state_dict())
        for row in range(2 * batch_size):
            for share in shares:
                assert share[row] == next(streams[position % lanes])
                position += 1
        states = TextLoader.join_states(saved)


def test_a_truncated_document_keeps_the_label_of_its_last_input(tmp_path):
    path = write_text(tmp_path / "text", [[["abcdefgh", "ij"]]])
    with make_loader(
        path, "best_fit", 4, 1, overflow="truncate", endless=False, tail="keep"
    ) as loader:
        rows = [
            (bytes(i % 256 for i in batch["input_ids"][0]), batch["labels"][0].tolist())
            for batch in loader
        ]
        assert rows == [(b"\0abc", [*b"abcd"]), (b"\0ij\0", [*b"ij", -100, -100])]
        assert counted(loader.stats) == (5, 0, 0)
        assert loader.stats.cropped_share == pytest.approx(5 / 12)


def test_what_a_policy_does_by_itself_is_the_default_and_has_its_fingerprint():
    for policy, overflow in (("best_fit", "split"), ("full_best_fit", "split"), ("flat", "split")):
        plain = Packing(policy=policy).fingerprint(16)
        assert Packing(policy=policy, overflow=overflow).fingerprint(16) == plain
    names = {Packing(policy=policy, overflow=way).fingerprint(16) for policy, way in WAYS}
    assert len(names | {Packing(policy=policy).fingerprint(16) for policy, _ in WAYS}) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "flat", "overflow": "drop"}, "cut anywhere; use policy='best_fit'"),
        ({"policy": "flat", "overflow": "truncate"}, "cut anywhere; use policy='best_fit'"),
        ({"policy": "bos_best_fit", "overflow": "split"}, "use policy='full_best_fit'"),
        ({"overflow": "wrap"}, "overflow is 'wrap'"),
    ],
)
def test_ways_that_a_policy_does_not_have_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Packing(**options)


def test_a_state_does_not_continue_with_another_overflow(corpus):
    with make_loader(corpus, "full_best_fit", 16, overflow="drop") as loader:
        next(iter(loader))
        state = loader.state_dict()
    for overflow in (None, "truncate"):
        with pytest.raises(StateError, match=r"packing was .*-drop"):
            make_loader(corpus, "full_best_fit", 16, overflow=overflow).load_state_dict(state)


def test_a_state_inside_a_document_that_is_never_split_is_refused(corpus):
    with make_loader(corpus, "best_fit", 16, overflow="truncate") as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    state["lane_states"]["0"]["first_token"] = 3
    with make_loader(corpus, "best_fit", 16, overflow="truncate") as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateError, match="'truncate' never splits documents"):
            next(iter(loader))


@pytest.mark.parametrize("policy", ["best_fit", "full_best_fit", "bos_best_fit"])
def test_text_of_which_no_document_fits_is_an_error_not_a_hang(tmp_path, policy):
    path = write_text(tmp_path / "text", [[["a" * 40, "b" * 30]]])
    with (
        make_loader(path, policy, 16, overflow="drop") as loader,
        pytest.raises(FormatError, match="no document that fits a row of 16 tokens; use a larger"),
    ):
        next(iter(loader))
    with (
        make_loader(path, policy, 16, overflow="drop", endless=False) as loader,
        pytest.raises(UsageError, match=r"less than one step: .* use overflow='truncate'"),
    ):
        next(iter(loader))


def test_documents_of_exactly_a_row_are_kept(tmp_path):
    for policy, columns in (("best_fit", 8), ("full_best_fit", 8), ("bos_best_fit", 9)):
        path = write_text(tmp_path / policy, [[["a" * (columns - 1), "b" * columns]]])
        with make_loader(path, policy, 8, 1, overflow="drop", endless=False, tail="keep") as loader:
            (batch,) = loader
            assert batch["input_ids"][0, 1:].tolist() == [ord("a")] * 7
            assert counted(loader.stats) == (0, 1, columns + 1)
            assert np.all(batch["document_ids"] == 0)
