"""How long an epoch of live text is: counted once for a text and its tokenizer, and never believed
of others."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError, StateError, UsageError
from millstream.text.live.lane_state import Waiting
from tests.helpers.live_text import PACKINGS, Bytes, corpora, make_loader, rows_of, write_text

GROUPS = [["abc" * k for k in range(1, 20)], ["d" * 50], ["e" * 9] * 30, ["f" * 70] * 3]


@pytest.fixture
def corpus(tmp_path):
    return write_text(tmp_path / "text", [GROUPS])


class Twice(Bytes):
    """Two tokens for each byte."""

    def __init__(self):
        super().__init__()
        self.fingerprint = "twice"

    def encode(self, data, offsets):
        ids, ends = super().encode(data, offsets)
        return np.repeat(ids, 2), ends * 2


def test_another_tokenizer_has_epochs_of_another_length(corpus):
    lengths = []
    for tokenizer in (Bytes(), Twice()):
        with millstream.TextLoader(
            corpus, tokenizer, 2, 16, endless=False, tail="keep", output="numpy"
        ) as loader:
            lengths.append(len(loader))
            assert len(list(loader)) == lengths[-1]
    assert lengths[1] > lengths[0]


def test_an_epoch_is_counted_anew_for_the_lanes_of_a_state(corpus):
    options = {"endless": False, "tail": "keep"}
    with make_loader(corpus, "best_fit", 16, lanes=4, **options) as loader:
        next(iter(loader))
        state, whole, left = loader.state_dict(), len(loader), loader.remaining
        expected = rows_of(loader)
    with make_loader(corpus, "best_fit", 16, **options) as loader:
        assert len(loader) != whole
        loader.load_state_dict(state)
        assert (len(loader), loader.remaining) == (whole, left) == (left + 1, left)
        assert rows_of(loader) == expected


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    corpora,
    st.sampled_from(PACKINGS),
    st.integers(2, 9),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 6),
)
@example([[["a" * 50]]], "best_fit", 16, 1, 1, 5)
def test_a_state_of_any_step_goes_on_exactly_to_the_end_of_the_epoch(
    tmp_path_factory, files, policy, seq_len, batch_size, lanes, buffer_size
):
    path = write_text(tmp_path_factory.mktemp("text"), files)
    options = {"lanes": min(lanes, sum(map(len, files))), "endless": False, "tail": "keep"}

    def make():
        return make_loader(path, policy, seq_len, batch_size, buffer_size, prefetch=2, **options)

    with make() as loader:
        try:
            batches = iter(loader)
            rows, states = [rows_of([next(batches)])], [loader.state_dict()]
        except UsageError:  # an epoch without a row
            return
        for batch in batches:
            rows.append(rows_of([batch]))
            states.append(loader.state_dict())
    for step in {len(rows) // 3, len(rows) // 2, len(rows) - 2} & set(range(len(rows) - 1)):
        with make() as loader:
            loader.load_state_dict(states[step])
            assert [rows_of([batch]) for batch in loader] == rows[step + 1 :]


def test_every_shuffled_epoch_has_the_length_that_it_is_said_to_have(corpus):
    options = {"endless": False, "tail": "keep", "shuffle": True, "lanes": 3}
    with make_loader(corpus, "best_fit", 16, batch_size=1, **options) as loader:
        lengths = [len(loader)]
        while len(lengths) < 12:
            assert len(list(loader)) == lengths[-1]
            lengths.append(len(loader))
    assert len(set(lengths)) > 1


def test_a_document_that_is_longer_than_its_source_allows_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text("short\n" + "long " * 200_000)
    source = millstream.Source(tmp_path / "text.txt", max_document_bytes=500_000)
    with (
        make_loader(source, "flat", 1000) as loader,
        pytest.raises(FormatError, match=r"larger than 500,000 bytes .* larger max_document_bytes"),
    ):
        list(itertools.islice(loader, 1000))


@pytest.mark.parametrize(
    ("documents", "first_tokens", "lengths", "message"),
    [
        ([0, 1], [0, 1 << 40], [4, 7], "differs in length from when"),
        ([0, 1], [0, 0], [4, 8], "differs in length from when"),
        ([0, 500], [0, 0], [4, 7], "document 500 of block 0 differs"),
        ([0, 5 << 32], [0, 0], [4, 7], "a waiting document of block 5"),
        ([0, -1], [0, 0], [4, 7], "impossible document ids or lengths"),
        ([0, 1], [0, -1], [4, 7], "impossible document ids or lengths"),
        ([0, 1], [0, 0], [4, 0], "impossible document ids or lengths"),
        ([0, 1], [0, 0], [4, 17], "does not fit rows of 16 tokens"),
        ([0, 1], [0, 15], [4, 2], "does not fit rows of 16 tokens"),
        ([0] * 6, [0] * 6, [4] * 6, "more than 5 waiting documents"),
        ([0] * 99, [0] * 99, [4] * 99, "more than 5 waiting documents"),
    ],
)
def test_documents_that_cannot_wait_are_refused(corpus, documents, first_tokens, lengths, message):
    with make_loader(corpus, "full_best_fit", 16) as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    waiting = Waiting(
        documents=np.array(documents),
        first_tokens=np.array(first_tokens),
        lengths=np.array(lengths),
        goes_on=np.zeros(len(documents), np.int64),
    )
    state["lane_states"]["0"]["waiting"] = waiting.to_text()
    with (
        make_loader(corpus, "full_best_fit", 16) as loader,
        pytest.raises(StateError, match=message),
    ):
        loader.load_state_dict(state)
        list(itertools.islice(loader, 9))


def test_a_state_of_epochs_or_of_other_marks_does_not_continue_an_endless_loader(corpus):
    with make_loader(corpus, "flat", 16, endless=False) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with pytest.raises(StateError, match=r"endless was False and is True; .* with endless=False$"):
        make_loader(corpus, "flat", 16).load_state_dict(state)
    packing = millstream.Packing(policy="flat", add="none")
    other = millstream.TextLoader(corpus, Bytes(), 2, 16, packing, shuffle=False, output="numpy")
    with pytest.raises(
        StateError,
        match=r"'b bos 256 eos -1' and is 'b bos -1 .* with packing=Packing\(add='bos'\)$",
    ):
        other.load_state_dict(state)


def test_lanes_that_were_asked_for_are_not_given_up_for_those_of_a_state(corpus):
    with make_loader(corpus, "flat", 16, lanes=4) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with pytest.raises(StateError, match="lanes=2; leave that out"):
        make_loader(corpus, "flat", 16, lanes=2).load_state_dict(state)


def loader(path, **options):
    options = {"batch_size": 4, "seq_len": 8, "rank": 0, "ranks": 1, "endless": False} | options
    return millstream.TextLoader(millstream.Source(path), "bytes", **options)


def test_an_epoch_without_a_step_advises_what_gives_one(tmp_path):
    (tmp_path / "a.txt").write_text("twelve bytes\n" * 2)
    for tail in ("drop", "keep"):
        with pytest.raises(UsageError, match="use a smaller seq_len, or more text") as caught:
            len(loader(tmp_path / "a.txt", tail=tail, seq_len=100, packing="bos_best_fit"))
        assert "tail" not in str(caught.value)
    assert len(loader(tmp_path / "a.txt", batch_size=1, packing="bos_best_fit"))
    with pytest.raises(
        UsageError, match=r"on 1 rank: it has 4 rows in 1 lane; use batch_size=4 or less, "
    ):
        len(loader(tmp_path / "a.txt", batch_size=5))
    assert len(loader(tmp_path / "a.txt", batch_size=4)) == 1
    assert len(loader(tmp_path / "a.txt", tail="keep")) == 1


def test_an_epoch_whose_ranks_have_too_little_does_not_advise_smaller_batches(tmp_path):
    for name, text in (("a", "x" * 100), ("b", "y")):
        (tmp_path / f"{name}.txt").write_text(text)
    options = {"ranks": 2, "packing": "bos_best_fit"}
    for rank in range(2):
        with pytest.raises(UsageError, match="lanes; use tail='keep', or endless=True"):
            len(loader(tmp_path, rank=rank, **options))
        assert len(loader(tmp_path, rank=rank, tail="keep", **options)) >= 1
