"""What only a GPU can show."""

from itertools import islice, pairwise

import pytest

import millstream
from tests.helpers.datasets import write_random_documents

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture
def documents(tmp_path):
    """200 documents of 1 to 300 tokens."""
    return write_random_documents(tmp_path / "d", 200, longest=300, shard_bytes=8000)


@pytest.mark.parametrize("static_shapes", [False, True])
def test_flash_attention_over_cu_seqlens_gives_every_document_what_it_gets_alone(
    documents, static_shapes
):
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    extras = ["position_ids", "cu_seqlens", "document_ids"]
    view = documents.packed(256, extras=extras, static_shapes=static_shapes)
    torch.manual_seed(0)
    table = torch.randn(3, 1000, 4, 64, device="cuda", dtype=torch.bfloat16)
    for batch in millstream.Loader(view, 8, pin_memory=True):
        tokens = batch["input_ids"].cuda(non_blocking=True).flatten()
        q, k, v = (part[tokens] for part in table)
        edges = batch["cu_seqlens"].cuda(non_blocking=True)
        longest = batch["max_seqlen"]
        packed = varlen.varlen_attn(
            q,
            k,
            v,
            edges,
            edges,
            longest,
            longest,
            window_size=(-1, 0),  # causal
        )
        bounds = batch["cu_seqlens"].tolist()
        ids = batch["document_ids"].flatten()
        for start, stop in pairwise(bounds):
            if start == stop or ids[start] < 0:
                continue
            single = (part[start:stop].transpose(0, 1)[None] for part in (q, k, v))
            alone = torch.nn.functional.scaled_dot_product_attention(*single, is_causal=True)
            torch.testing.assert_close(
                packed[start:stop], alone[0].transpose(0, 1), atol=2e-2, rtol=2e-2
            )


def test_page_locked_batches_of_all_views_are_those_of_ordinary_memory(documents):
    views = [
        documents.packed(256, extras=["position_ids", "cu_seqlens", "document_ids"]),
        documents.documents(128, by_length=True, pad_to=8),
        documents.windows(100, extras=["position_ids", "cu_seqlens"], mask_ends=True),
    ]
    for view in views:
        ordinary = millstream.Loader(view, 4, tail="keep")
        for pinned, plain in zip(
            millstream.Loader(view, 4, tail="keep", pin_memory=True), ordinary, strict=True
        ):
            assert pinned["input_ids"].is_pinned()
            millstream.testing.assert_same(pinned, plain)


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda"), torch.device("cuda:0")], ids=str)
def test_nanochats_batches_arrive_whole_while_the_gpu_is_busy(device, tmp_path, monkeypatch):
    """Copies wait in the stream behind other work, while the batches after them are made."""
    pytest.importorskip("pyarrow")
    from millstream.compat.nanochat import tokenizing_distributed_data_loader_bos_bestfit as make
    from tests.helpers.nanochat_corpus import ByteTokenizer, write_corpus

    write_corpus(tmp_path / "base_data")
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    options = {"buffer_size": 50, "tokenizer_batch_size": 16}
    expected = list(islice(make(ByteTokenizer(), 8, 256, "train", device="cpu", **options), 60))
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    found = list(islice(make(ByteTokenizer(), 8, 256, "train", device=device, **options), 60))
    for (inputs, targets), (first, second) in zip(found, expected, strict=True):
        assert inputs.device.type == targets.device.type == "cuda"
        assert torch.equal(inputs.cpu(), first)
        assert torch.equal(targets.cpu(), second)


def test_stats_count_what_crosses_and_ranges_are_balanced(documents):
    with millstream.Loader(documents.windows(64), 8, device="cuda", endless=True) as loader:
        loader.annotate()
        calls = []
        loader.watch(lambda step, metrics: calls.append(metrics), every=10)
        depth = torch.cuda.nvtx.range_push("outside")
        for _ in islice(loader, 40):
            pass
        assert torch.cuda.nvtx.range_pop() == depth
        stats = loader.stats
    assert stats.uploaded_bytes >= 40 * 8 * 64 * 2
    assert stats.bytes_per_second > 0
    assert 0 <= stats.in_flight <= 2
    assert all(metrics["bytes_per_second"] > 0 for metrics in calls)
