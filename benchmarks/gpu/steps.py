"""How much longer a training step takes than on a constant batch that is on the device already.

Two steps: multiplications that take 0.9 ms, launched ahead of the device as training does, and a
GPT of 124 M parameters, forward, backward and AdamW in bf16.
"""

from collections.abc import Callable
from functools import partial
from itertools import repeat

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.gpu.contenders import BATCH_SIZE, CONSTANT, DEVICE, OURS, SEQ_LEN, open_all, timed
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread, in_turn, ratio

_VOCAB_SIZE, _WIDTH, _NUM_LAYERS, _NUM_HEADS = 50_304, 768, 12, 12
_SHORT_SECONDS = 0.9e-3

Step = Callable[[Tensor, Tensor], object]


def measure_short(quick: bool) -> Section:
    """Time the step of 0.9 ms."""
    step = short_step()
    return _measure("short step", step, 5 if quick else 21, 300, limit=1.01)


def measure_model(quick: bool) -> Section:
    """Time the steps of a GPT."""
    return _measure("124 M model", _model_step(), 3 if quick else 11, 8, limit=1.001)


def _measure(topic: str, step: Step, num_rounds: int, num_steps: int, limit: float) -> Section:
    with open_all() as contenders:
        jobs = {
            name: partial(timed, step, batches, num_steps) for name, batches in contenders.items()
        }
        for job in jobs.values():
            job()
        seconds = in_turn(jobs, num_rounds)
    against = {name: ratio(each, seconds[CONSTANT]) for name, each in seconds.items()}
    rows = [
        [name, f"{1e3 * Spread.of(each).median:.3f}", with_range(against[name], digits=4)]
        for name, each in seconds.items()
    ]
    return Section(
        topic=topic,
        text=(
            f"{BATCH_SIZE} x {SEQ_LEN:,} tokens a step, {num_rounds} interleaved rounds of "
            f"{num_steps} steps each; ratios round by round."
        ),
        tables=[Table("A step", ["", "ms", "to a constant batch"], rows)],
        targets=[
            Target(
                what=f"{topic}, to a constant batch",
                measured=against[OURS].median,
                limit=limit,
                relation="at most",
            )
        ],
        raw=seconds,
    )


def short_step() -> Step:
    """Return a step that takes 0.9 ms on this device."""
    table = torch.randn(_VOCAB_SIZE, 256, device=DEVICE, dtype=torch.bfloat16)
    weights = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
    count = 1

    def step(inputs: Tensor, labels: Tensor) -> Tensor:
        used = table[inputs].sum() + table[labels].sum()
        for _ in range(count):
            weights @ weights
        return used

    batch = torch.zeros((BATCH_SIZE, SEQ_LEN), dtype=torch.int64, device=DEVICE)
    once = timed(step, repeat((batch, batch)), 200)
    count = 3
    each = (timed(step, repeat((batch, batch)), 200) - once) / 2
    count = max(1, round((_SHORT_SECONDS - once) / each) + 1)
    return step


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, _NUM_HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        hidden: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + hidden


def _model_step() -> Step:
    table = nn.Embedding(_VOCAB_SIZE, _WIDTH)
    positions = nn.Embedding(SEQ_LEN, _WIDTH)
    blocks = nn.Sequential(*(_Block() for _ in range(_NUM_LAYERS)), nn.LayerNorm(_WIDTH))
    model = nn.ModuleList([table, positions, blocks]).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    places = torch.arange(SEQ_LEN, device=DEVICE)

    def step(inputs: Tensor, labels: Tensor) -> None:
        logits = blocks(table(inputs) + positions(places)) @ table.weight.T
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step
