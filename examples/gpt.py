"""A GPT for packed rows, in which no token attends to a document other than its own.

A loader's batch has the boundaries of the documents in two forms: `cu_seqlens`, and `document_ids`.
Each form of attention below is a function that takes a batch and returns what all layers call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Batch = dict[str, Any]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # of (rows, seq_len, heads, width of a head)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a model."""

    num_layers: int = 12
    width: int = 768
    num_heads: int = 12
    vocab_size: int = 50_304


TINY = Shape(num_layers=2, width=64, num_heads=2, vocab_size=512)


def varlen(batch: Batch) -> Attend:
    """Torch's own: all rows in one sequence, which `cu_seqlens` cuts into documents."""
    from torch.nn.attention.varlen import varlen_attn

    edges, longest = batch["cu_seqlens"], batch["max_seqlen"]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = varlen_attn(
            q.flatten(0, 1),
            k.flatten(0, 1),
            v.flatten(0, 1),
            edges,
            edges,
            longest,
            longest,
            window_size=(-1, 0),  # causal: all tokens before, none after
        )
        assert isinstance(seen, Tensor)
        return seen.view_as(q)

    return attend


def flash(batch: Batch) -> Attend:
    """FlashAttention's package: the same tensors."""
    from flash_attn import flash_attn_varlen_func

    edges, longest = batch["cu_seqlens"], batch["max_seqlen"]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen: Tensor = flash_attn_varlen_func(
            q.flatten(0, 1),
            k.flatten(0, 1),
            v.flatten(0, 1),
            edges,
            edges,
            longest,
            longest,
            causal=True,
        )
        return seen.view_as(q)

    return attend


def flex(batch: Batch) -> Attend:
    """FlexAttention: a mask of blocks, made once per batch from `document_ids`."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    ids = batch["document_ids"]
    rows, seq_len = ids.shape

    def sees(row: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        same: Tensor = ids[row, q] == ids[row, k]
        return same & (q >= k)

    mask = create_block_mask(sees, rows, None, seq_len, seq_len, device=ids.device)
    function: Any = torch.compile(flex_attention) if ids.is_cuda else flex_attention

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        seen: Tensor = function(q, k, v, block_mask=mask)
        return seen.transpose(1, 2)

    return attend


def sdpa(batch: Batch) -> Attend:
    """Plain torch, also on a CPU: a mask of seq_len x seq_len, made from `cu_seqlens`."""
    rows, seq_len = batch["input_ids"].shape
    places = torch.arange(rows * seq_len, device=batch["input_ids"].device)
    document = torch.searchsorted(batch["cu_seqlens"], places, right=True).view(rows, seq_len)
    mask = (document[:, :, None] == document[:, None, :]).tril()[:, None]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    return attend


ATTENTION = {"varlen": varlen, "flash": flash, "flex": flex, "sdpa": sdpa}


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.num_heads = shape.width, shape.num_heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        """Return hidden states of the same shape."""
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        x = x + self.out(attend(q, k, v).flatten(2))
        hidden: Tensor = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + hidden


class GPT(nn.Module):
    """GPT-2, with positions that start at 0 in every document."""

    def __init__(self, shape: Shape, seq_len: int, attention: str) -> None:
        super().__init__()
        self.attention = ATTENTION[attention]
        self.tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(seq_len, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.LayerNorm(shape.width)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits."""
        attend = self.attention(batch)
        x = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        for block in self.blocks:
            x = block(x, attend)
        return F.linear(self.norm(x), self.tokens.weight)


def sum_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of all tokens' losses; the labels of padding are -100."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")


def count_labels(step: list[Batch]) -> Tensor:
    """Return how many tokens the losses of a step are summed over."""
    return torch.stack([(batch["labels"] != -100).sum() for batch in step]).sum()
