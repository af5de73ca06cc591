"""Loaders under context parallelism: every rank gets its slices of the same rows."""

import numpy as np
import pytest
import torch

import millstream
from millstream import Loader, Parallel
from millstream.errors import UsageError
from millstream.testing import assert_resumes_exactly
from tests.helpers.row_slices import check_slices

EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")


@pytest.fixture
def data(tmp_path):
    random = np.random.default_rng(5)
    with millstream.Writer(tmp_path / "data", vocab_size=1000, shard_bytes=3000) as writer:
        for length in random.integers(1, 60, 150):
            writer.append(random.integers(10, 1000, length))
    return millstream.open(tmp_path / "data")


def share(part, parts, layout, **ranks):
    ranks = {"rank": 0, "ranks": 1} | ranks
    return Parallel(**ranks, context_rank=part, context_ranks=parts, context_layout=layout)


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_every_context_rank_gets_its_slices_of_the_same_rows(data, layout, output):
    views = [
        data.windows(24),
        data.windows(24, extras=EXTRAS),
        data.packed(24, extras=EXTRAS, pad_id=3),
        data.documents(24, extras=EXTRAS, pad_id=3, pad_to=4),
    ]
    for view in views:
        reference = data.windows(24, extras=EXTRAS) if view.extras == () else view
        options = {"batch_size": 4, "seed": 3, "output": output, "tail": "keep"}
        whole = Loader(reference, rank=1, ranks=2, **options)
        shares = [share(part, 3, layout, rank=1, ranks=2) for part in range(3)]
        loaders = [Loader(view, parallel=parallel, **options) for parallel in shares]
        for expected, *batches in zip(whole, *loaders, strict=True):
            cuts = [parallel.row_slice for parallel in shares]
            check_slices(expected, batches, cuts, extras=view.extras)
            assert {loader.digest() for loader in loaders} == {whole.digest()}
            assert all((loader.samples() == whole.samples()).all() for loader in loaders)
        assert sum(loader.stats.tokens for loader in loaders) == whole.stats.tokens
        assert len({loader.state_dict()["position"] for loader in [whole, *loaders]}) == 1


def test_one_context_rank_gets_whole_rows(data):
    batch = next(iter(Loader(data.windows(8), 4, parallel=share(0, 1, "zigzag"))))
    assert set(batch) == {"input_ids", "labels"}
    assert torch.equal(batch["input_ids"], next(iter(Loader(data.windows(8), 4)))["input_ids"])


def test_a_state_can_be_loaded_with_another_number_of_context_ranks(data):
    view = data.packed(24)
    before = Loader(view, 4, parallel=share(1, 2, "zigzag"), output="numpy")
    steps = iter(before)
    next(steps)
    after = Loader(view, 4, parallel=share(1, 3, "contiguous"), output="numpy")
    after.load_state_dict(before.state_dict())
    next(steps)
    assert next(iter(after))["input_ids"].shape == (4, 8)
    assert after.digest() == before.digest()


def test_sliced_batches_resume_exactly(data):
    view = data.packed(24, extras=EXTRAS)
    assert_resumes_exactly(
        lambda: Loader(view, 4, parallel=share(1, 2, "zigzag"), output="numpy"), steps=6
    )


def test_tokens_of_slices_have_no_digest(data):
    with pytest.raises(UsageError, match="hashes whole rows"):
        Loader(data.windows(8), 4, parallel=share(0, 2, "zigzag"), digest_tokens=True)


def test_rows_that_cannot_be_sliced_are_refused_when_the_loader_is_made(data):
    with pytest.raises(UsageError, match="use seq_len=8 or 12"):
        Loader(data.windows(10), 4, parallel=share(0, 2, "zigzag"))
