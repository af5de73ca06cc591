"""`TextLoader` under context parallelism: all ranks pack the same rows, and keep slices of them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import Packing, Parallel, TextLoader
from millstream.testing import assert_resumes_exactly
from tests.helpers.live_text import POLICIES, Bytes, corpora, write_text
from tests.helpers.row_slices import check_slices

pytestmark = pytest.mark.kernels

EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")


def share(part, parts, layout):
    return Parallel(rank=0, ranks=1, context_rank=part, context_ranks=parts, context_layout=layout)


@settings(deadline=None, max_examples=30)
@given(
    files=corpora,
    policy=st.sampled_from(POLICIES),
    mask_ends=st.booleans(),
    extras=st.lists(st.sampled_from(EXTRAS), unique=True),
    parts=st.integers(2, 4),
    layout=st.sampled_from(["contiguous", "zigzag"]),
    length=st.integers(1, 3),
    dtype=st.sampled_from(["int64", "int32", None]),
)
def test_slices_side_by_side_are_the_packed_rows(
    tmp_path_factory, files, policy, mask_ends, extras, parts, layout, length, dtype
):
    path = write_text(tmp_path_factory.mktemp("text"), files)
    seq_len = parts * (2 if layout == "zigzag" else 1) * length

    def open_loader(extras, **options):
        packing = Packing(
            policy=policy, buffer_size=4, extras=tuple(extras), mask_ends=mask_ends, pad_id=3
        )
        options |= {"shuffle": False, "endless": True, "output": "numpy", "dtype": dtype}
        return TextLoader(path, Bytes(), 3, seq_len, packing, threads=1, **options)

    shares = [share(part, parts, layout) for part in range(parts)]
    whole = open_loader(EXTRAS)
    loaders = [open_loader(extras, parallel=parallel) for parallel in shares]
    for expected, *batches in itertools.islice(zip(whole, *loaders, strict=True), 6):
        check_slices(expected, batches, [cut.row_slice for cut in shares], extras=extras)
        assert all(
            loader.state_dict()["lane_states"] == whole.state_dict()["lane_states"]
            for loader in loaders
        )
    assert sum(loader.stats.tokens for loader in loaders) == whole.stats.tokens
    if policy == "bos_best_fit":
        shares_cropped = {loader.stats.cropped_share for loader in [whole, *loaders]}
        assert len(shares_cropped) == 1
    for loader in [whole, *loaders]:
        loader.close()


def test_sliced_rows_resume_exactly(tmp_path):
    path = write_text(tmp_path / "text", [[["abc" * k for k in range(1, 40)]]])
    assert_resumes_exactly(
        lambda: TextLoader(path, Bytes(), 2, 16, parallel=share(1, 2, "zigzag"), output="numpy"),
        steps=5,
    )
