"""Corpora, loaders and expected rows of live text."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import millstream
from millstream import Packing, Source, TextLoader
from tests.helpers import live_model

BOS = 256
POLICIES = ["flat", "best_fit", "bos_best_fit", "full_best_fit"]
PACKINGS = [*POLICIES, "best_fit, repeat_bos", "full_best_fit, repeat_bos"]
"""what `make_loader` and `expected_rows` take as their policy"""


class Bytes:
    """The tokenizer "bytes", whose end of text here begins documents instead."""

    def __init__(self) -> None:
        self._bytes = millstream.load_tokenizer("bytes")
        self.name, self.engine, self.fingerprint = "bytes-bos", "bytes", "b"
        self.vocab_size, self.specials = 257, {"<|bos|>": BOS}
        self.bos_id, self.eos_id = BOS, None

    def encode(self, data, offsets):
        return self._bytes.encode(data, offsets)

    def encode_with_ends(self, data, offsets):
        return self._bytes.encode_with_ends(data, offsets)

    def encode_with_specials(self, data, offsets):
        return self.encode_with_ends(data, offsets)


class MaskedSource(Source):
    """Text of which some bytes are to be learned: see `mask_of`."""

    masks_loss = True

    def read(self, piece, bad=None, *, batch_bytes=1 << 20):
        for batch in super().read(piece, bad, batch_bytes=batch_bytes):
            trained = [
                (start + place, start + place + 1)
                for k, start in enumerate(batch.offsets[:-1].tolist())
                for place, is_trained in enumerate(mask_of(batch.text(k)))
                if is_trained
            ]
            ranges = np.array(trained, np.int64).reshape(-1, 2)
            yield dataclasses.replace(batch, trained=ranges)


def mask_of(text: bytes) -> list[int]:
    """Whether each byte is to be learned, which depends on its place and on all of the text."""
    total = sum(text)
    return [(total + place * place // 3 + byte) % 3 % 2 for place, byte in enumerate(text)]


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


def masked_tokens_of(text: str) -> list[tuple[int, int]]:
    return [(BOS, 0), *zip(text.encode(), mask_of(text.encode()), strict=True)]


def expected_rows(
    files, policy, seq_len, lane=0, lanes=1, epochs=None, tokens_of=tokens_of, **options
):
    """What the model makes of a lane, for ever or of so many epochs."""
    blocks = [[tokens_of(text) for text in group] for groups in files for group in groups if group]
    numbers = live_model.lane_blocks(len(blocks), lane, lanes)
    if epochs is not None:
        numbers = (p % len(blocks) for p in range(lane, epochs * len(blocks), lanes))
    return live_model.rows(((n, blocks[n]) for n in numbers), policy, seq_len, **options)


def rows_of(batches, names=("input_ids", "labels", "document_ids")) -> list[tuple[list[int], ...]]:
    """Inputs, labels and document ids of every row of some batches."""
    return [
        tuple(row[name].tolist() for name in names)
        for batch in batches
        for row in ({name: batch[name][k] for name in names} for k in range(len(batch["labels"])))
    ]


def make_loader(
    path, policy, seq_len, batch_size=2, buffer_size=5, refill=4, overflow=None, **options
):
    policy, _, repeat_bos = policy.partition(", ")
    packing = Packing(
        policy=policy,
        buffer_size=buffer_size,
        refill=refill,
        repeat_bos=bool(repeat_bos),
        extras=("document_ids",),
        overflow=overflow,
    )
    options = {"shuffle": False, "endless": True, "output": "numpy"} | options
    return TextLoader(path, Bytes(), batch_size, seq_len, packing, **options)


texts = st.text(st.sampled_from("abcdefgh"), max_size=30)
groups = st.lists(texts, min_size=1, max_size=9)
corpora = st.lists(st.lists(groups, min_size=1, max_size=4), min_size=1, max_size=3)
