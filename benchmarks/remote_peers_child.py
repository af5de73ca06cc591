"""litdata and MosaicML streaming, each in its own environment; run by `remote_peers`.

    write litdata FILE DIR               write the tokens of a flat uint16 file in the peer's format
    load litdata JSON                    load batches from S3; print times as a line of JSON

Rows have 2,048 + 1 tokens. Batches become int64 inputs and labels, as a model takes them.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

_ROW = 2049
_BATCH_SIZE = 32
_PAGE_ITEMS = 512
"""of int64, one of which is touched"""
_PACKAGES = {"litdata": "litdata", "mosaic": "mosaicml-streaming"}


class _Pieces:
    """Gives litdata's writer pieces of the tokens; whole rows, so that no row spans two pieces."""

    rows = 1024

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, start: int) -> Iterator[Any]:
        import torch

        tokens = np.memmap(self.path, np.uint16, "r")
        yield torch.from_numpy(tokens[start : start + self.rows * _ROW].copy())


def write_litdata(path: str, directory: str) -> None:
    """Write chunks of 64 MB, the size in litdata's documentation for tokens."""
    from litdata import TokensLoader, optimize  # type: ignore[import-not-found]

    size = Path(path).stat().st_size // 2 // _ROW * _ROW
    pieces = _Pieces(path)
    starts = list(range(0, size, pieces.rows * _ROW))
    optimize(
        fn=pieces,
        inputs=starts,
        output_dir=directory,
        chunk_bytes="64MB",
        num_workers=1,
        item_loader=TokensLoader(block_size=_ROW),
    )


def allow_torchvision() -> None:
    """Let MosaicML's package import torchvision, which it does not use here.

    PyPI's build of torchvision lacks its operators beside a torch without CUDA, and then fails to
    describe these two.
    """
    import torch

    operators: Any = torch.library
    library = operators.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)


_KEPT = list[Any]()
"""libraries of operators, which end with their objects"""


def write_mosaic(path: str, directory: str) -> None:
    """Write MDS shards of the default size, 64 MiB."""
    allow_torchvision()
    from streaming import MDSWriter  # type: ignore[import-not-found]

    tokens = np.memmap(path, np.uint16, "r")
    rows = tokens[: tokens.size // _ROW * _ROW].reshape(-1, _ROW)
    with MDSWriter(out=directory, columns={"tokens": f"ndarray:uint16:{_ROW}"}) as writer:
        for row in rows:
            writer.write({"tokens": np.array(row)})


def litdata_batches(options: dict[str, Any]) -> Iterator[Any]:
    """Give batches of one shuffled epoch."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming import downloader  # type: ignore[import-not-found]

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for this
    dataset = StreamingDataset(
        options["url"],
        cache_dir=os.environ["PEER_CACHE"],
        item_loader=TokensLoader(block_size=_ROW),
        shuffle=True,
        drop_last=True,
        storage_options={
            "endpoint_url": options["endpoint"],
            "aws_access_key_id": options["key"],
            "aws_secret_access_key": options["secret"],
            "region_name": options["region"],
        },
    )
    return iter(
        StreamingDataLoader(
            dataset, batch_size=_BATCH_SIZE, num_workers=options["workers"], drop_last=True
        )
    )


def forget_client(worker: int) -> None:
    """Let a worker make its own connection to S3.

    It inherits that of its parent, which its siblings use too: their answers get mixed up, and the
    first batch waits for a time-out of 60 s, or is wrong.
    """
    from torch.utils.data import get_worker_info

    info: Any = get_worker_info()
    for stream in info.dataset.streams:
        stream._downloader._s3_client = None


def mosaic_batches(options: dict[str, Any]) -> Iterator[Any]:
    """Give batches of one shuffled epoch; the address and the keys are in the environment."""
    from streaming import StreamingDataset
    from streaming.base.util import (  # type: ignore[import-not-found]
        clean_stale_shared_memory,
    )
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()
    dataset = StreamingDataset(
        remote=options["url"], local=os.environ["PEER_CACHE"], shuffle=True, batch_size=_BATCH_SIZE
    )
    loader = DataLoader(
        dataset,
        batch_size=_BATCH_SIZE,
        num_workers=options["workers"],
        drop_last=True,
        worker_init_fn=forget_client,
    )
    return (batch["tokens"] for batch in loader)


def load(peer: str, options: dict[str, Any]) -> dict[str, Any]:
    """Load `num_steps` batches, or the whole epoch."""
    import torch

    if peer == "litdata":
        import litdata  # noqa: F401
    else:
        allow_torchvision()
        import streaming  # noqa: F401
    imported = time.monotonic()
    batches = (litdata_batches if peer == "litdata" else mosaic_batches)(options)
    num_steps, times = options["num_steps"], list[float]()
    for batch in batches:
        rows = batch.to(torch.int64)
        for values in (rows[:, :-1], rows[:, 1:]):
            values[:, ::_PAGE_ITEMS].sum()
        times.append(time.monotonic())
        if len(times) == num_steps:
            break
    assert rows.shape == (_BATCH_SIZE, _ROW), rows.shape
    return {
        "version": f"{_PACKAGES[peer]} {version(_PACKAGES[peer])}",
        "imported": imported,
        "times": times,
    }


def main() -> None:
    """Obey the command line."""
    action, peer, *words = sys.argv[1:]
    if action == "write":
        (write_litdata if peer == "litdata" else write_mosaic)(*words)
    else:
        print(json.dumps(load(peer, json.loads(words[0]))), flush=True)


if __name__ == "__main__":
    main()
