"""The same rows in the format of each feed; the first token of a row is its number."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import millstream

SEQ_LEN = 8
_ROWS_PER_DOCUMENT = 1000


def write(directory, num_rows, *, num_shards):
    """Write all formats whose libraries are installed, but those that are there already."""
    tokens = np.zeros((num_rows, SEQ_LEN), np.uint32)
    tokens[:, 0] = np.arange(num_rows)
    tokens.tofile(directory / "tokens.bin")
    if not (directory / "millstream").exists():
        with millstream.Writer(directory / "millstream", vocab_size=num_rows) as writer:
            writer.append(np.append(tokens, np.uint32(0)))  # the last window's last label
    if find_spec("litdata") and not (directory / "litdata" / "index.json").exists():
        _write_litdata(directory, num_rows, num_shards)
    if find_spec("datasets") and not (directory / "datasets" / "state.json").exists():
        _write_datasets(directory, tokens)


def _write_litdata(directory, num_rows, num_shards):
    from litdata import TokensLoader, optimize

    rows_per_chunk = num_rows // num_shards
    optimize(
        _Chunk(directory / "tokens.bin", rows_per_chunk),
        inputs=list(range(num_shards)),
        output_dir=str(directory / "litdata"),
        num_workers=1,
        chunk_size=rows_per_chunk * SEQ_LEN,
        item_loader=TokensLoader(),
    )


class _Chunk:
    """Yields the documents of one chunk. A chunk ends with a row, or litdata drops the rest."""

    def __init__(self, path: Path, num_rows: int):
        self._path, self._num_rows = path, num_rows

    def __call__(self, number):
        import torch

        start = number * self._num_rows
        rows = np.memmap(self._path, np.uint32, "r").reshape(-1, SEQ_LEN)
        rows = rows[start : start + self._num_rows].astype(np.int32)
        for at in range(0, len(rows), _ROWS_PER_DOCUMENT):
            yield torch.from_numpy(rows[at : at + _ROWS_PER_DOCUMENT].reshape(-1))


def _write_datasets(directory, tokens):
    import datasets
    import pyarrow as pa

    rows = pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1), pa.int32()), SEQ_LEN)
    table = pa.table({"input_ids": rows.cast(pa.list_(pa.int32()))})
    datasets.Dataset(table).save_to_disk(str(directory / "datasets"))


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), num_shards=int(sys.argv[3]))
