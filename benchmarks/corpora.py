"""The data that is read, in bench-data/: made once, used again by the next run.

Dense corpora hold random tokens. Sparse ones have a real manifest and files without blocks, so a
terabyte takes no room: reading their holes costs what cached pages cost, once they are cached.
"""

import shutil
from pathlib import Path

import numpy as np

import penstock
from penstock.formats import stream
from penstock.formats.stream import Manifest, Shard, StoredFile

DATA = Path("bench-data")

_VOCAB_SIZE = 50_257
_DOCUMENT = 1 << 20
_NO_CHECKSUM = "0" * 16


def dense(num_tokens: int) -> Path:
    """Random uint16 tokens in one shard."""
    directory = DATA / f"dense-{num_tokens}"
    if (directory / stream.MANIFEST_NAME).exists():
        return directory
    generator = np.random.default_rng(0)
    with penstock.Writer(directory, vocab_size=_VOCAB_SIZE, shard_bytes=2 * num_tokens) as writer:
        for start in range(0, num_tokens, _DOCUMENT):
            size = min(_DOCUMENT, num_tokens - start)
            writer.append(generator.integers(0, _VOCAB_SIZE, size, np.uint16))
    return directory


def stream_file(directory: Path) -> Path:
    """The only stream file of a dense corpus."""
    (path,) = directory.glob(f"*{stream.STREAM}")
    return path


def sparse(num_shards: int, records_per_shard: int) -> Path:
    """Shards of nothing but zeros that take no room on disk."""
    directory = DATA / f"sparse-{num_shards}x{records_per_shard}"
    if (directory / stream.MANIFEST_NAME).exists():
        return directory
    shutil.rmtree(directory, ignore_errors=True)  # half made by a run that was killed
    directory.mkdir(parents=True)
    shards = []
    for number in range(num_shards):
        sizes = {stream.STREAM: 2 * records_per_shard, stream.DOCUMENTS: 16}
        files = {suffix: StoredFile(size, _NO_CHECKSUM) for suffix, size in sizes.items()}
        shard = Shard(directory, f"{number:05d}", records_per_shard, 1, 0, files)
        for suffix, size in sizes.items():
            with shard.path(suffix).open("xb") as file:
                file.truncate(size)
        shards.append(shard)
    fields = np.dtype([("token", "<u2")])
    manifest = Manifest(fields, _VOCAB_SIZE, {}, None, None, tuple(shards))
    (directory / stream.MANIFEST_NAME).write_text(manifest.to_json())
    return directory
