"""Corpora, loaders and expected rows of live text."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import penstock
from penstock import Packing, TextLoader
from tests.helpers import live_model

BOS = 256
POLICIES = ["flat", "best_fit", "bos_best_fit", "full_best_fit"]
PACKINGS = [*POLICIES, "best_fit, repeat_bos", "full_best_fit, repeat_bos"]
"""what `make_loader` and `expected_rows` take as their policy"""


class Bytes:
    """The tokenizer "bytes", whose end of text here begins documents instead."""

    def __init__(self) -> None:
        self._bytes = penstock.load_tokenizer("bytes")
        self.name, self.engine, self.fingerprint = "bytes-bos", "bytes", "b"
        self.vocab_size, self.specials = 257, {"<|bos|>": BOS}
        self.bos_id, self.eos_id = BOS, None

    def encode(self, data, offsets):
        return self._bytes.encode(data, offsets)

    def encode_with_ends(self, data, offsets):
        return self._bytes.encode_with_ends(data, offsets)


def write_text(directory: Path, files: list[list[list[str]]]) -> Path:
    """Parquet files, of row groups, of documents."""
    directory.mkdir(exist_ok=True, parents=True)
    for number, groups in enumerate(files):
        with pq.ParquetWriter(
            directory / f"{number:03d}.parquet", pa.schema([("text", pa.string())])
        ) as writer:
            for group in groups:
                writer.write_table(pa.table({"text": group}))
    return directory


def tokens_of(text: str) -> list[int]:
    return [BOS, *text.encode()]


def expected_rows(files, policy, seq_len, lane=0, lanes=1, epochs=None, **options):
    """What the model makes of a lane, for ever or of so many epochs."""
    blocks = [[tokens_of(text) for text in group] for groups in files for group in groups if group]
    numbers = live_model.lane_blocks(len(blocks), lane, lanes)
    if epochs is not None:
        numbers = (p % len(blocks) for p in range(lane, epochs * len(blocks), lanes))
    return live_model.rows(((n, blocks[n]) for n in numbers), policy, seq_len, **options)


def rows_of(batches) -> list[tuple[list[int], ...]]:
    """Inputs, labels and document ids of every row of some batches."""
    names = ("input_ids", "labels", "document_ids")
    return [
        tuple(row[name].tolist() for name in names)
        for batch in batches
        for row in ({name: batch[name][k] for name in names} for k in range(len(batch["labels"])))
    ]


def make_loader(path, policy, seq_len, batch_size=2, buffer_size=5, refill=4, **options):
    policy, _, repeat_bos = policy.partition(", ")
    packing = Packing(
        policy=policy,
        buffer_size=buffer_size,
        refill=refill,
        repeat_bos=bool(repeat_bos),
        extras=("document_ids",),
    )
    options = {"shuffle": False, "endless": True, "output": "numpy"} | options
    return TextLoader(path, Bytes(), batch_size, seq_len, packing, **options)


texts = st.text(st.sampled_from("abcdefgh"), max_size=30)
groups = st.lists(texts, min_size=1, max_size=9)
corpora = st.lists(st.lists(groups, min_size=1, max_size=4), min_size=1, max_size=3)
