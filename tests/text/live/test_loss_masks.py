"""Loss masks of live text: they travel with the tokens, and labels are ignored where they are 0."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import Packing, Parallel, TextLoader
from millstream.batches.row_slice import RowSlice
from millstream.errors import StateError
from millstream.load.widening import widen
from millstream.text.batch import TextBatch
from millstream.text.live.lane_buffer import LivePolicyCode
from millstream.text.live.row_filling import LaneBuffers
from millstream.text.live.row_packer import RowPacker
from millstream.text.live.tokenizing_threads import Tokens, encode
from tests.helpers import live_model
from tests.helpers.live_text import (
    BOS,
    POLICIES,
    Bytes,
    MaskedSource,
    corpora,
    expected_rows,
    make_loader,
    mask_of,
    masked_tokens_of,
    rows_of,
    write_text,
)
from tests.helpers.row_slices import check_slices

pytestmark = pytest.mark.kernels

EOS = 257
EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")
SHOWN = ("input_ids", "labels", "document_ids", "loss_mask")
MARKS = {"bos": ([BOS], []), "eos": ([], [EOS]), "both": ([BOS], [EOS]), "none": ([], [])}
FILES = [[["abc" * k for k in range(1, 20)], ["d" * 50, ""], ["e" * 9] * 30, ["f" * 70] * 3]]


class Marked(Bytes):
    """With both marks."""

    def __init__(self):
        super().__init__()
        self.vocab_size, self.eos_id = 258, EOS


class Pairs(Bytes):
    """A token is two bytes, or the last one of a document alone."""

    def encode_with_ends(self, data, offsets):
        texts = [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]
        ends = [[*range(2, len(text), 2), len(text)] if text else [] for text in texts]
        ids = [text[end - 1] for text, at in zip(texts, ends, strict=True) for end in at]
        counts = np.cumsum([0, *map(len, ends)])
        return np.array(ids, np.uint32), counts, np.array(sum(ends, []), np.int64)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    corpora,
    st.sampled_from(POLICIES),
    st.sampled_from(sorted(MARKS)),
    st.integers(1, 12),
    st.integers(1, 7),
    st.integers(1, 5),
    st.integers(0, 7),
    st.sampled_from(["int64", "int32", None]),
)
def test_rows_and_their_masks_are_those_of_the_model_also_after_a_resume(
    tmp_path_factory, files, policy, add, seq_len, buffer_size, refill, step, dtype
):
    files = [[[*group, "a"] for group in groups] for groups in files]  # never without a token
    path = write_text(tmp_path_factory.mktemp("text"), files)
    before, after = MARKS[add]

    def tokens_of(text):
        ids = zip(text.encode(), mask_of(text.encode()), strict=True)
        return [*((mark, 0) for mark in before), *ids, *((mark, 1) for mark in after)]

    options = {"buffer_size": buffer_size, "refill": refill}
    rows = expected_rows(files, policy, seq_len, tokens_of=tokens_of, **options)
    expected = list(itertools.islice(live_model.with_masks(rows), 18))
    packing = Packing(policy=policy, add=add, extras="document_ids", **options)

    def make():
        return TextLoader(
            MaskedSource(path),
            Marked(),
            2,
            seq_len,
            packing,
            shuffle=False,
            endless=True,
            output="numpy",
            dtype=dtype,
        )

    with make() as loader:
        found = []
        for number, batch in enumerate(itertools.islice(loader, 9)):
            found += rows_of([batch], SHOWN)
            if number == step:
                state = json.loads(json.dumps(loader.state_dict()))
    assert found == expected
    assert batch["loss_mask"].dtype == np.uint8
    with make() as loader:
        loader.load_state_dict(state)
        assert rows_of(itertools.islice(loader, 8 - step), SHOWN) == expected[2 * step + 2 :]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(corpora, st.sampled_from(POLICIES), st.integers(2, 9), st.data())
def test_masks_go_on_exactly_on_any_ranks_that_divide_the_lanes(
    tmp_path_factory, files, policy, seq_len, data
):
    source = MaskedSource(write_text(tmp_path_factory.mktemp("text"), files))
    lanes = data.draw(st.integers(1, sum(map(len, files))))
    works = [ranks for ranks in range(1, lanes + 1) if lanes % ranks == 0]
    options = {"buffer_size": 5, "refill": 4, "tokens_of": masked_tokens_of}
    streams = [
        live_model.with_masks(expected_rows(files, policy, seq_len, lane, lanes, **options))
        for lane in range(lanes)
    ]
    position, states = 0, None
    for _ in range(3):
        ranks, batch_size = data.draw(st.sampled_from(works)), data.draw(st.integers(1, 4))
        shares, saved = [], []
        for rank in range(ranks):
            with make_loader(
                source, policy, seq_len, batch_size, rank=rank, ranks=ranks, lanes=lanes
            ) as loader:
                if states is not None:
                    loader.load_state_dict(states)
                shares.append(rows_of(itertools.islice(loader, 2), SHOWN))
                saved.append(loader.state_dict())
        for row in range(2 * batch_size):
            for share in shares:
                assert share[row] == next(streams[position % lanes])
                position += 1
        states = TextLoader.join_states(saved)


def tokens_in(files, number=0):
    """The documents of a corpus with their masks, as one block."""
    texts = [text.encode() for groups in files for group in groups for text in group]
    offsets = np.cumsum([0, *map(len, texts)])
    return Tokens(
        ids=np.frombuffer(b"".join(texts), np.uint8).astype(np.uint32),
        offsets=offsets,
        ordinal=0,
        block=0,
        number=number,
        bytes_before=offsets,
        trained=np.array([bit for text in texts for bit in mask_of(text)], np.uint8),
    )


@settings(max_examples=60, deadline=None)
@given(
    files=corpora,
    policy=st.sampled_from(POLICIES),
    mask_ends=st.booleans(),
    extras=st.lists(st.sampled_from(EXTRAS), unique=True),
    length=st.integers(1, 4),
    cut=st.sampled_from([None, (0, 2, "zigzag"), (1, 2, "zigzag"), (2, 3, "contiguous")]),
    dtype=st.sampled_from([np.int64, np.int32, None]),
)
def test_batches_that_cross_to_a_device_are_those_of_the_host(
    files, policy, mask_ends, extras, length, cut, dtype
):
    pytest.importorskip("torch")
    packing = Packing(
        policy=policy, buffer_size=4, refill=2, extras=tuple(extras), mask_ends=mask_ends, pad_id=3
    )
    row_slice = None if cut is None else RowSlice(part=cut[0], parts=cut[1], layout=cut[2])
    layout = packing.layout(Bytes(), 12 * length, 3, dtype, row_slice, masks_loss=True)
    tokens, lanes = tokens_in(files), np.zeros(3, np.int64)
    packers = [
        (RowPacker(packing, Bytes(), each, 1), each, iter([tokens] * 2))
        for each in (layout, layout.compact())
    ]
    for _ in range(4):
        memories = [np.full(each.num_bytes, 0xA5, np.uint8) for _, each, _ in packers]
        rows = [
            len(packer.pack(lanes, memory, lambda _, fed=fed: next(fed, None)))
            for (packer, _, fed), memory in zip(packers, memories, strict=True)
        ]
        assert rows[0] == rows[1]
        if rows[0] < 3:
            break
        expected, found = layout.outputs_in(memories[0], 3), widen(layout, memories[1], 3)
        assert found.keys() == expected.keys()
        assert "loss_mask" in found
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)


@settings(deadline=None, max_examples=15)
@given(
    files=corpora,
    policy=st.sampled_from(POLICIES),
    extras=st.lists(st.sampled_from(EXTRAS), unique=True),
    parts=st.integers(2, 4),
    layout=st.sampled_from(["contiguous", "zigzag"]),
)
def test_slices_side_by_side_are_the_masked_rows(
    tmp_path_factory, files, policy, extras, parts, layout
):
    source = MaskedSource(write_text(tmp_path_factory.mktemp("text"), files))

    def open_loader(extras, **options):
        packing = Packing(policy=policy, buffer_size=4, extras=tuple(extras), pad_id=3)
        options |= {"shuffle": False, "endless": True, "output": "numpy", "threads": 1}
        return TextLoader(source, Bytes(), 3, parts * 4, packing, **options)

    shares = [
        Parallel(rank=0, ranks=1, context_rank=part, context_ranks=parts, context_layout=layout)
        for part in range(parts)
    ]
    whole = open_loader(EXTRAS)
    loaders = [open_loader(extras, parallel=parallel) for parallel in shares]
    for expected, *batches in itertools.islice(zip(whole, *loaders, strict=True), 4):
        check_slices(expected, batches, [cut.row_slice for cut in shares], extras=extras)
        assert all("loss_mask" in batch for batch in batches)
    for loader in [whole, *loaders]:
        loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_masks_stay_with_their_tokens_while_the_arena_is_moved_and_grows(tmp_path, policy):
    chosen = np.random.default_rng(0)
    groups = [
        ["".join(chosen.choice(list("abcdefgh"), chosen.integers(9000))) for _ in range(60)]
        for _ in range(2)
    ]
    source = MaskedSource(write_text(tmp_path / "text", [groups]))
    options = {"buffer_size": 40, "refill": 16}
    with make_loader(source, policy, 2000, batch_size=4, **options) as loader:
        found = rows_of(itertools.islice(loader, 40), SHOWN)
    rows = expected_rows([groups], policy, 2000, tokens_of=masked_tokens_of, **options)
    assert found == list(itertools.islice(live_model.with_masks(rows), 160))


def test_tensors_of_torch_have_the_mask(tmp_path):
    torch = pytest.importorskip("torch")
    source = MaskedSource(write_text(tmp_path / "text", FILES))
    with make_loader(source, "full_best_fit", 16, output="torch") as loader:
        batch = next(iter(loader))
    assert batch["loss_mask"].dtype == torch.uint8
    assert (batch["labels"][:, :-1] == -100).equal(batch["loss_mask"][:, 1:] == 0)


def test_a_token_is_trained_on_if_one_of_its_bytes_is():
    batch = TextBatch(
        data=np.frombuffer(b"..abcdefg", np.uint8),
        offsets=np.array([2, 5, 5, 9]),
        rows=np.arange(3),
        trained=np.array([[2, 3], [4, 5], [6, 7]]),
    )
    ids, offsets, trained = encode(Pairs(), batch)
    assert (bytes(ids.tolist()), offsets.tolist()) == (b"bceg", [0, 2, 2, 4])
    assert trained.tolist() == [1, 1, 1, 0]
    assert encode(Pairs(), replace(batch, trained=None)).trained is None


def test_a_state_with_masks_does_not_continue_without_and_the_other_way_round(tmp_path):
    path = write_text(tmp_path / "text", FILES)
    for saved, other in ((path, MaskedSource(path)), (MaskedSource(path), path)):
        with make_loader(saved, "flat", 16) as loader:
            next(iter(loader))
            state = loader.state_dict()
        with pytest.raises(StateError, match=r"text was .* masked stride|is .* masked stride"):
            make_loader(other, "flat", 16).load_state_dict(state)


def test_epochs_of_masked_text_have_the_length_that_is_counted(tmp_path):
    source = MaskedSource(write_text(tmp_path / "text", FILES))
    options = {"endless": False, "tail": "keep", "lanes": 2}
    with make_loader(source, "best_fit", 16, **options) as loader:
        num_steps = len(loader)
        assert len(list(loader)) == num_steps


def test_masks_that_do_not_match_their_ids_or_the_batch_are_refused():
    ids, offsets, mask = np.zeros(3, np.uint32), np.array([0, 2, 3]), np.ones(3, np.uint8)
    options = {"policy": LivePolicyCode.FLAT, "buffer_size": 1, "refill": 1, "marks": (-1, -1)}
    packing = Packing(policy="flat")

    def buffers(*, masks_loss):
        layout = packing.layout(Bytes(), 4, 1, np.int64, masks_loss=masks_loss)
        return LaneBuffers(1, layout.for_kernels(), **options)

    for masks_loss, trained in ((True, None), (False, mask)):
        with pytest.raises(ValueError, match="both the ids and the batches"):
            buffers(masks_loss=masks_loss).feed(0, ids, offsets, 0, 0, trained=trained)
    with pytest.raises(ValueError, match="differs in length"):
        buffers(masks_loss=True).feed(0, ids, offsets, 0, 0, trained=mask[:2])
    wide = packing.layout(Bytes(), 4, 1, np.int64, masks_loss=True)
    wide = replace(wide, record=np.dtype([("token", np.uint16), ("loss_mask", np.uint16)]))
    with pytest.raises(ValueError, match="one byte for each token"):
        LaneBuffers(1, wide.for_kernels(), **options)
