"""What users pass to a trainer today, and Millstream: each feed as its documentation recommends.

Every feed shuffles, gives each process its share, and reads the rows that `peer_data` wrote.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import millstream
from tests.helpers.trainers.peer_data import SEQ_LEN

SEED = 3


@dataclass(frozen=True)
class Share:
    """What one process reads."""

    data: Path
    rank: int
    ranks: int
    batch_size: int
    workers: int
    buffer_size: int
    """rows from which an iterable dataset of Hugging Face draws"""


class Rows(Dataset):
    """The common map-style dataset over a memory-mapped file."""

    def __init__(self, path):
        self._tokens = np.memmap(path, np.uint32, "r").reshape(-1, SEQ_LEN)

    def __len__(self):
        return len(self._tokens)

    def __getitem__(self, index):
        row = torch.from_numpy(self._tokens[index].astype(np.int64))
        return {"input_ids": row}


def millstream_loader(share):
    view = millstream.open(share.data / "millstream").windows(SEQ_LEN)
    return millstream.Loader(view, share.batch_size, seed=SEED, rank=share.rank, ranks=share.ranks)


def rows(share):
    return Rows(share.data / "tokens.bin")


def torch_loader(share):
    """With several processes, Lightning gives it a DistributedSampler."""
    return DataLoader(
        rows(share), share.batch_size, shuffle=True, drop_last=True, num_workers=share.workers
    )


def torchdata_loader(share):
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    dataset = rows(share)
    options = {"shuffle": True}
    if share.ranks > 1:
        sampler = StatefulDistributedSampler(dataset, share.ranks, share.rank, seed=SEED)
        options = {"sampler": sampler}
    return StatefulDataLoader(
        dataset, share.batch_size, drop_last=True, num_workers=share.workers, **options
    )


def litdata_dataset(share):
    from litdata import StreamingDataset, TokensLoader

    return StreamingDataset(
        str(share.data / "litdata"),
        item_loader=TokensLoader(block_size=SEQ_LEN),
        shuffle=True,
        drop_last=True,
        seed=SEED,
    )


def litdata_loader(share):
    from litdata import StreamingDataLoader

    return StreamingDataLoader(
        litdata_dataset(share),
        batch_size=share.batch_size,
        num_workers=share.workers,
        drop_last=True,
        collate_fn=as_inputs,
    )


def as_inputs(rows):
    return {"input_ids": torch.stack(rows)}


def datasets_map(share):
    from datasets import load_from_disk

    return load_from_disk(str(share.data / "datasets")).with_format("torch")


def datasets_map_loader(share):
    return DataLoader(
        datasets_map(share),
        share.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=share.workers,
    )


def datasets_iterable(share, num_shards=8):
    dataset = datasets_map(share).to_iterable_dataset(num_shards=num_shards)
    return dataset.shuffle(seed=SEED, buffer_size=share.buffer_size)


def datasets_iterable_loader(share, epoch):
    """It continues from a state only in the epoch of that state, so the epoch is set before."""
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = split_dataset_by_node(datasets_iterable(share), share.rank, share.ranks)
    dataset.set_epoch(epoch)
    return StatefulDataLoader(dataset, share.batch_size, drop_last=True, num_workers=share.workers)
