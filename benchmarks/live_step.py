"""How much of its time a training loop spends in a live-text loader that keeps up with it.

Batches of 32 x 2,048 with all defaults, and a step of 50 ms after each: 1.3 M tokens/s. A step
sleeps, as one that waits for its accelerator; or is busy in torch, outside the GIL, on one of the
two cores; or is busy in pure Python, which holds the GIL whenever it can. Turns without batches in
between show how much longer the step itself takes beside the loader's threads.

nanochat does all its work in `next`, so it is measured only with sleeping steps.

Target: at most 2 % of the loop's time is spent in `next`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import torch

import millstream
from benchmarks import live_millstream, live_nanochat, text_corpus
from benchmarks.fresh import in_fresh_process
from benchmarks.live_walk import BATCH_SIZE, SEQ_LEN
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread

_STEP_SECONDS = 0.05
_STEPS_IN_A_TURN = 20
_NUM_FIRST = 20
_KINDS = ("asleep", "busy in torch", "busy in Python")


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Some steps with a batch before each, and as many without."""

    percent_in_loader: float
    percent_of_core: float
    """the part of it in which the consumer's thread worked, and did not just wait for a core"""
    percent_slower: float
    """how much longer the steps take, without the time in the loader"""


def measure(quick: bool) -> Section:
    """Run each kind of step without a model, in its own process."""
    num_turns = 3 if quick else 10
    paths = text_corpus.page_files()
    turns = {
        f"{policy}, {kind}": in_fresh_process(turns_of, paths, policy, kind, num_turns)
        for policy in ("full_best_fit", "bos_best_fit")[: 1 if quick else 2]
        for kind in _KINDS
    }
    problem = live_nanochat.missing()
    if not problem:
        base = live_nanochat.prepare(paths)
        turns[f"nanochat, {_KINDS[0]}"] = in_fresh_process(turns_of_nanochat, base, num_turns)
    spreads = {name: _spreads(each) for name, each in turns.items()}
    return Section(
        topic="live-step",
        text=(
            f"{num_turns} turns of {_STEPS_IN_A_TURN} steps of {1e3 * _STEP_SECONDS:.0f} ms, each "
            "once with batches and once without; medians (least to most). "
            f"{problem or live_nanochat.version()}"
        ),
        tables=[
            Table(
                "A training loop on live text",
                ["", "% of its time in the loader", "% at work there", "% its step is slower"],
                [
                    [name, *(with_range(spread) for spread in each)]
                    for name, each in spreads.items()
                ],
            )
        ],
        targets=[
            Target(
                what=f"live text: time in the loader, {name}",
                measured=share.median,
                limit=2,
                relation="at most",
                unit="%",
            )
            for name, (share, _, _) in spreads.items()
            if not name.startswith("nanochat")
        ],
        raw={name: [asdict(turn) for turn in each] for name, each in turns.items()},
    )


def turns_of(paths: list[Path], policy: str, kind: str, num_turns: int) -> list[Turn]:
    """Run steps with and without batches; for a fresh process."""
    torch.set_num_threads(1)
    step = _step(kind)
    tokenizer = live_millstream.load_tokenizer(2)
    packing = live_millstream.packing(policy)
    with millstream.TextLoader(
        paths, tokenizer, BATCH_SIZE, SEQ_LEN, packing, shuffle=False, endless=True
    ) as loader:
        batches = iter(loader)
        _loop(batches, step, _NUM_FIRST)
        return [_turn(batches, step) for _ in range(num_turns)]


def turns_of_nanochat(base: Path, num_turns: int) -> list[Turn]:
    """Do the same with nanochat's loader and sleeping steps."""
    batches = live_nanochat.batches(*live_nanochat.load(base))
    step = _step(_KINDS[0])
    _loop(batches, step, _NUM_FIRST)
    return [_turn(batches, step) for _ in range(num_turns)]


def _turn(batches: Iterator[Any], step: Callable[[], None]) -> Turn:
    in_loader, at_work, in_steps = _loop(batches, step, _STEPS_IN_A_TURN)
    start = time.perf_counter()
    for _ in range(_STEPS_IN_A_TURN):
        step()
    alone = time.perf_counter() - start
    return Turn(
        percent_in_loader=100 * in_loader / (in_loader + in_steps),
        percent_of_core=100 * at_work / (in_loader + in_steps),
        percent_slower=100 * (in_steps / alone - 1),
    )


def _loop(
    batches: Iterator[Any], step: Callable[[], None], num_steps: int
) -> tuple[float, float, float]:
    """Return seconds in the loader, seconds of work there, and seconds in the steps."""
    in_loader = at_work = in_steps = 0.0
    for _ in range(num_steps):
        start, worked = time.perf_counter(), time.thread_time()
        next(batches)
        middle = time.perf_counter()
        at_work += time.thread_time() - worked
        in_loader += middle - start
        middle = time.perf_counter()
        step()
        in_steps += time.perf_counter() - middle
    return in_loader, at_work, in_steps


def _spreads(turns: list[Turn]) -> list[Spread]:
    rows = [astuple(turn) for turn in turns]
    return [Spread.of(list(column)) for column in zip(*rows, strict=True)]


def _step(kind: str) -> Callable[[], None]:
    """Return a step of about 50 ms on an idle machine: always the same work."""
    if kind == "asleep":
        return lambda: time.sleep(_STEP_SECONDS)
    work = _count if kind == "busy in Python" else _multiply
    amount = 1
    while (seconds := min(_seconds(work, amount) for _ in range(5))) < _STEP_SECONDS / 10:
        amount *= 2
    amount = round(amount * _STEP_SECONDS / seconds)
    return lambda: work(amount)


def _count(amount: int) -> None:
    total = 0
    for i in range(1000 * amount):
        total += i & 7


def _multiply(amount: int) -> None:
    matrix = torch.ones(256, 256)
    for _ in range(amount):
        matrix @ matrix


def _seconds(work: Callable[[int], None], amount: int) -> float:
    start = time.perf_counter()
    work(amount)
    return time.perf_counter() - start
