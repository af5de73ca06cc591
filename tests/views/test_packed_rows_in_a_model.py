"""In a real model, a packed document has the logits and the loss that it has alone."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import millstream

VOCAB, WIDTH, NUM_HEADS, SEQ_LEN = 97, 32, 2, 40


def rotate(x, positions):
    """Rotary positions: turn pairs of channels by an angle that grows with the position."""
    half = x.shape[-1] // 2
    angles = positions[..., None] * 10_000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angles.cos(), angles.sin()
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, positions, mask):
        length = x.shape[0]
        parts = self.qkv(self.norm(x)).view(length, 3, NUM_HEADS, -1).permute(1, 2, 0, 3)
        q, k, v = parts[0], parts[1], parts[2]
        mixed = functional.scaled_dot_product_attention(
            rotate(q, positions), rotate(k, positions), v, attn_mask=mask
        )
        return x + self.out(mixed.transpose(0, 1).reshape(length, WIDTH))


class Model(nn.Module):
    """Two layers of causal attention over one flat sequence, as variable-length kernels see it.

    Positions enter twice, so that both absolute and relative ones matter.
    """

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(SEQ_LEN, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids, position_ids, mask):
        x = self.tokens(input_ids) + self.positions(position_ids)
        for layer in self.layers:
            x = layer(x, position_ids, mask)
        return self.head(x)


def causal_mask(cu_seqlens, length):
    """Block-diagonal: a token sees itself and what is before it in its own sequence."""
    number = torch.searchsorted(cu_seqlens[1:].long(), torch.arange(length), right=True)
    return (number[:, None] == number[None, :]) & torch.ones(length, length).tril().bool()


def run_flat(model, batch, *, positions=None, cu_seqlens=None):
    """The logits of a batch, as one sequence of all its rows."""
    flat = batch["input_ids"].reshape(-1)
    positions = batch["position_ids"].reshape(-1) if positions is None else positions
    cu_seqlens = batch["cu_seqlens"] if cu_seqlens is None else cu_seqlens
    with torch.no_grad():
        return model(flat, positions, causal_mask(cu_seqlens, len(flat)))


def run_alone(model, tokens):
    """The logits of one document, with nothing around it."""
    whole = torch.tensor([0, len(tokens)], dtype=torch.int32)
    with torch.no_grad():
        return model(tokens, torch.arange(len(tokens)), causal_mask(whole, len(tokens)))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model().double().eval()


@pytest.fixture(scope="module")
def documents():
    random = np.random.default_rng(0)
    return [random.integers(1, VOCAB, length) for length in random.integers(1, 25, 60)]


@pytest.fixture(scope="module")
def data(documents, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "d"
    with millstream.Writer(path, vocab_size=VOCAB, shard_bytes=200) as writer:
        for document in documents:
            writer.append(document)
    return millstream.open(path)


def batches(view):
    with millstream.Loader(view, 4, seed=0, tail="keep") as loader:
        yield from loader


def views(data, **options):
    extras = ("position_ids", "cu_seqlens", "document_ids")
    return {
        "packed": data.packed(SEQ_LEN, extras=extras, **options),
        "bos_best_fit_keep": data.packed(
            SEQ_LEN, policy="bos_best_fit_keep", mask_ends=True, extras=extras, **options
        ),
        "documents": data.documents(SEQ_LEN, extras=extras, **options),
        "windows": data.windows(SEQ_LEN, mask_ends=True, extras=extras, **options),
    }


def pieces_in(batch):
    """Where each run of one document lies in the flattened batch, by its document ids alone."""
    for row, ids in enumerate(batch["document_ids"].tolist()):
        start = 0
        for column in range(1, len(ids) + 1):
            if column == len(ids) or ids[column] != ids[start]:
                if ids[start] >= 0:
                    yield row * len(ids) + start, row * len(ids) + column, ids[start]
                start = column


@pytest.mark.slow
@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize("kind", ["packed", "documents", "windows", "bos_best_fit_keep"])
def test_packed_documents_get_the_logits_that_they_get_alone(data, model, kind, static_shapes):
    num_pieces = num_whole = 0
    for batch in batches(views(data, static_shapes=static_shapes)[kind]):
        logits = run_flat(model, batch)
        flat = batch["input_ids"].reshape(-1)
        for start, stop, document in pieces_in(batch):
            alone = run_alone(model, flat[start:stop])
            torch.testing.assert_close(logits[start:stop], alone, rtol=1e-10, atol=1e-10)
            num_pieces += 1
            tokens = torch.from_numpy(data.document(document).astype(np.int64))
            num_whole += torch.equal(flat[start:stop], tokens)
    assert num_pieces >= num_whole >= 30
    if kind in ("packed", "documents"):  # no document is longer than a row, so none is cut
        assert num_whole == data.num_documents


@pytest.mark.slow
@pytest.mark.parametrize("static_shapes", [False, True])
def test_the_loss_of_packed_rows_is_the_sum_of_the_documents_own(
    data, documents, model, static_shapes
):
    expected = 0.0
    num_labels = 0
    for document in documents:
        tokens = torch.from_numpy(document.astype(np.int64))
        logits = run_alone(model, tokens[:-1]) if len(tokens) > 1 else torch.zeros(0, VOCAB)
        expected += functional.cross_entropy(logits.double(), tokens[1:], reduction="sum").item()
        num_labels += len(tokens) - 1
    for kind in ("packed", "documents"):
        loss, num_found = 0.0, 0
        for batch in batches(views(data, static_shapes=static_shapes)[kind]):
            labels = batch["labels"].reshape(-1)
            logits = run_flat(model, batch)
            loss += functional.cross_entropy(logits, labels, reduction="sum").item()
            num_found += int((labels != -100).sum())
        assert num_found == num_labels
        assert loss == pytest.approx(expected, rel=1e-12)


def test_the_model_notices_wrong_boundaries_and_wrong_positions(data, model):
    """Else the tests above could not fail."""
    batch = next(iter(batches(views(data)["packed"])))
    right = run_flat(model, batch)
    length = batch["input_ids"].numel()
    rows = torch.arange(0, length + 1, SEQ_LEN)
    only_rows = run_flat(model, batch, cu_seqlens=rows)
    running = run_flat(model, batch, positions=torch.arange(length) % SEQ_LEN)
    boundaries = batch["cu_seqlens"].clone()
    boundaries[1] += 1
    shifted = run_flat(model, batch, cu_seqlens=boundaries)
    for wrong in (only_rows, running, shifted):
        assert (wrong - right).abs().max() > 1e-3
