"""Ways to bring windows of tokens to the device, each an endless iterator of inputs and labels."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import millstream
from benchmarks import corpora

SEQ_LEN, BATCH_SIZE = 2048, 32
NUM_TOKENS = 1 << 28
DEVICE = torch.device("cuda", 0)

Batches = Iterator[tuple[Tensor, Tensor]]
CONSTANT, OURS, PINNED = (
    "a constant batch",
    "Millstream, device=",
    "Millstream, pin_memory and .to()",
)
TORCH = "torch DataLoader, {} workers, pinned"


class _Windows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of a file of tokens, as a map-style dataset of torch."""

    def __init__(self) -> None:
        self._path = corpora.stream_file(corpora.dense(NUM_TOKENS))
        self._tokens: NDArray[np.uint16] = np.memmap(self._path, np.uint16, "r")

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // SEQ_LEN

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self._tokens[index * SEQ_LEN : (index + 1) * SEQ_LEN + 1].astype(np.int64)
        tokens = torch.from_numpy(window)
        return tokens[:-1], tokens[1:]


def loader(batch_size: int = BATCH_SIZE, **options: Any) -> millstream.Loader:
    """Return an endless loader of windows."""
    data = millstream.open(corpora.dense(NUM_TOKENS))
    return millstream.Loader(data.windows(SEQ_LEN), batch_size, endless=True, **options)


def pairs(of: millstream.Loader) -> Batches:
    """Yield inputs and labels."""
    for batch in of:
        yield batch["input_ids"], batch["labels"]


def _moved(batches: Batches) -> Batches:
    for inputs, labels in batches:
        yield inputs.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)


def _from_torch(num_workers: int) -> Batches:
    batches = DataLoader(
        _Windows(),
        BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        pin_memory=True,
        persistent_workers=num_workers > 0,
    )
    while True:
        yield from batches


@contextmanager
def open_all(workers: tuple[int, ...] = (0, 2, 4)) -> Iterator[dict[str, Batches]]:
    """Open all contenders; they read ahead, so each is used in turn with the others idle."""
    with ExitStack() as stack:
        ours = stack.enter_context(loader(device=DEVICE))
        pinned = stack.enter_context(loader(pin_memory=True))
        first = next(pairs(ours))
        yield {
            CONSTANT: repeat((first[0].clone(), first[1].clone())),
            OURS: pairs(ours),
            PINNED: _moved(pairs(pinned)),
            **{TORCH.format(count): _moved(_from_torch(count)) for count in workers},
        }


def timed(step: Callable[[Tensor, Tensor], object], batches: Batches, num_steps: int) -> float:
    """Return the seconds of a step, after a few that are not timed."""
    for _ in range(5):
        step(*next(batches))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(num_steps):
        step(*next(batches))
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / num_steps
