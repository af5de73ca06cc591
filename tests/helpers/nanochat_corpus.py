"""The documents that nanochat's real loaders were run on, regenerated from their numbers.

Nothing but `random.random`, whose values Python promises to keep, decides about them.
"""

import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

# Documents in each row group of each file; the last file is the one for validation.
ROW_GROUPS = (
    (300, 128, 77, 1),
    (128, 256, 0, 5, 64, 33),
    (1, 200),
    (90, 40, 130),
)
BOS_ID = 256
_SENTENCE = "the of and naïve Straße 日本語 12345 don't 😀 \n\n it's a-b <|bos|> x=1; été"
_WORDS = tuple(_SENTENCE.split(" "))


def text(number: int, length: int) -> str:
    """`length` characters that no other document has, if it has more than a few."""
    words, size, i = [f"{number} "], 0, 0
    while size < length:
        words.append(_WORDS[(number * 7 + i * i * 3 + i // 5) % len(_WORDS)] + " ")
        size += len(words[-1])
        i += 1
    return "".join(words)[:length]


def documents() -> list[str]:
    """All documents: some empty, most short, a few much longer than a row."""
    source = random.Random(6)
    found = []
    for number in range(sum(map(sum, ROW_GROUPS))):
        kind, size = source.random(), source.random()
        length = 0 if kind < 0.05 else 1 if kind < 0.08 else int(4 * 2 ** (10 * size * size))
        found.append(text(number, length))
    return found


def files() -> list[list[list[str]]]:
    """The documents of every row group of every file."""
    left = iter(documents())
    return [[[next(left) for _ in range(size)] for size in sizes] for sizes in ROW_GROUPS]


def write_file(path: Path, groups: Iterable[list[str]]) -> Path:
    """A Parquet file with these row groups."""
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in groups:
            table = pa.table({"text": pa.array(group, pa.string())}, schema=schema)
            writer.write_table(table, row_group_size=max(1, len(group)))
    return path


def write_corpus(directory: Path, chosen: Iterable[int] = range(len(ROW_GROUPS))) -> list[Path]:
    """Some of the files, under names that sort as they stand."""
    directory.mkdir(parents=True, exist_ok=True)
    every = files()
    return [write_file(directory / f"shard_{k:05d}.parquet", every[k]) for k in chosen]


class ByteTokenizer:
    """Every byte of UTF-8 is a token; as much of a tokenizer as nanochat's loaders ask for."""

    def get_bos_token_id(self):
        return BOS_ID

    def encode(self, texts, prepend=None, num_threads=1):
        if isinstance(texts, str):
            return self.encode([texts], prepend)[0]
        start = [] if prepend is None else [prepend]
        return [start + list(each.encode()) for each in texts]
