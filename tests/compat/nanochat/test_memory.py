"""The memory of the loader, at nanochat's settings (docs/compat.md)."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from millstream.text.training import train_tokenizer
from tests.helpers.programs import run_python

pytestmark = [pytest.mark.process, pytest.mark.slow]

# `benchmarks/nanochat_memory.py` measures 14.5 MB with two threads and 16 MB with four.
LIMIT_MB = 30

WEIGH = """
import os, re, statistics, sys
from itertools import islice
from pathlib import Path
import millstream
from millstream.compat import nanochat

def resident_mb():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1000

def loader(directory, *shape):
    os.environ["NANOCHAT_BASE_DIR"] = directory
    make = nanochat.tokenizing_distributed_data_loader
    return make(tokenizer, *shape, "train", device="cpu")

vocabulary, few_words, much_text = sys.argv[1:]
tokenizer = millstream.load_tokenizer(vocabulary)
next(loader(few_words, 1, 16))  # imports what is imported lazily
before = resident_mb()
print(statistics.median(resident_mb() - before for _ in islice(loader(much_text, 32, 2048), 60)))
"""


def write_shard(directory, seed, num_documents):
    """Write a file as nanochat's, with row groups of up to 4.6 MB of words."""
    path = directory / "base_data" / f"shard_{seed:05}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    letters = generator.integers(ord("a"), ord("z") + 1, (20_000, 8), np.uint8)
    words = np.array([bytes(row[: 2 + row[0] % 7]).decode() for row in letters])
    chosen = generator.zipf(1.2, (num_documents, 700)) % len(words)
    pyarrow.parquet.write_table(
        pa.table({"text": [" ".join(words[row]) for row in chosen]}),
        path,
        row_group_size=1024,
        use_dictionary=False,
        compression="zstd",
        write_statistics=False,
    )
    return path


def test_the_flat_loader_takes_little_memory(tmp_path):
    few_words, much_text, vocabulary = (tmp_path / name for name in ("few", "much", "vocabulary"))
    for seed in range(2):
        write_shard(few_words, seed, 2)
        shard = write_shard(much_text, seed, 2048)
    train_tokenizer(shard, 4096, out=vocabulary)
    done = run_python(WEIGH, vocabulary, few_words, much_text)
    assert not done.returncode, done.stderr
    assert float(done.stdout) < LIMIT_MB
