"""nanochat's way to tokenize text.

nanochat tokenizes while it trains and stores no tokens. Here its lists go to one token file per
text file, as nanoGPT's scripts write them. It runs in one process, as designed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import text_corpus

if TYPE_CHECKING:
    import tiktoken

_BATCH_SIZE, _NUM_THREADS = 128, 4


def tokenize(paths: list[Path], encoding: "tiktoken.Encoding", out: Path) -> None:
    """Pass lists of 128 texts to `encode_ordinary_batch` on 4 threads, and prepend bos."""
    bos = encoding.encode_single_token(text_corpus.END_OF_TEXT)
    for path in paths:
        tokens: list[int] = []
        for texts in _batches(path):
            rows = encoding.encode_ordinary_batch(texts, num_threads=_NUM_THREADS)
            for row in rows:
                row.insert(0, bos)
                tokens += row
        np.array(tokens, np.uint16).tofile(out / f"{path.stem}.bin")


def _batches(path: Path) -> Iterator[list[str]]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    for group in range(file.num_row_groups):
        texts = file.read_row_group(group).column("text").to_pylist()
        for start in range(0, len(texts), _BATCH_SIZE):
            yield texts[start : start + _BATCH_SIZE]
