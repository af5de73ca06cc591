"""The data to read, in bench-data/: generated once, reused by the next run.

Dense corpora hold random tokens. Sparse ones have a real manifest and files without blocks, so a
terabyte takes no space: reading their holes costs what cached pages cost, once they are cached.
Where documents matter, their lengths are lognormal, roughly like those of web pages.
"""

import math
import shutil
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

import millstream
from millstream.converting import convert
from millstream.formats import stream
from millstream.formats.shard import DOCUMENTS, OFFSET, STREAM, Manifest, Shard, StoredFile
from millstream.write.llmbatch import write_batch_file

DATA = Path("bench-data")

_VOCAB_SIZE = 50_257
_DOCUMENT = 1 << 20
_NO_CHECKSUM = "0" * 16
SIGMA = 1.1
_CHUNK = 1 << 20
_RECORD = np.dtype([("token", "<u2")])


def dense(num_tokens: int) -> Path:
    """Return random uint16 tokens in one shard."""
    return _dense(DATA / f"dense-{num_tokens}", num_tokens, seed=0)


def dense_sources(sizes: list[int]) -> list[Path]:
    """Return a dataset of random uint16 tokens for each size."""
    root = DATA / f"dense-sources-{len(sizes)}"
    return [
        _dense(root / f"{number:04d}-{size}", size, seed=number)
        for number, size in enumerate(sizes)
    ]


def stream_file(directory: Path) -> Path:
    """Return the only stream file of a dense corpus."""
    return shard_file(directory, STREAM)


def shard_file(directory: Path, suffix: str) -> Path:
    """Return a file of the only shard of a corpus."""
    (path,) = directory.glob(f"*{suffix}")
    return path


def web(num_tokens: int, mean_length: int) -> Path:
    """Return random uint16 tokens in one shard, in documents of lognormal length."""
    directory = DATA / f"web-{mean_length}-{num_tokens}"
    if (directory / stream.MANIFEST_NAME).exists():
        return directory
    generator = np.random.default_rng(0)
    # The mean of a lognormal is exp(mu + sigma^2 / 2).
    mu = math.log(mean_length) - SIGMA**2 / 2
    with millstream.Writer(directory, vocab_size=_VOCAB_SIZE, shard_bytes=2 * num_tokens) as writer:
        while writer.num_records < num_tokens:
            lengths = lognormal_lengths(generator, mu, 1024)
            tokens = generator.integers(0, _VOCAB_SIZE, int(lengths.sum()), np.uint16)
            tokens = tokens[: num_tokens - writer.num_records]
            for document in np.split(tokens, np.cumsum(lengths)[:-1]):
                if document.size:
                    writer.append(document)
    return directory


def with_spans(num_tokens: int, mean_length: int, blob_bytes: int) -> Path:
    """Return random uint16 tokens in one shard, all in spans that carry random bytes."""
    directory = DATA / f"spans-{mean_length}-{num_tokens}"
    if (directory / stream.MANIFEST_NAME).exists():
        return directory
    generator = np.random.default_rng(0)
    with millstream.Writer(directory, vocab_size=_VOCAB_SIZE, metadata=bytes) as writer:
        for _ in range(0, num_tokens, _DOCUMENT):
            tokens = generator.integers(0, _VOCAB_SIZE, _DOCUMENT, np.uint16)
            lengths = generator.integers(1, 2 * mean_length, 2 * _DOCUMENT // mean_length)
            stops = np.unique(np.minimum(np.cumsum(lengths), _DOCUMENT))
            edges = [0, *stops.tolist()]
            blobs = generator.bytes(blob_bytes * (len(edges) - 1))
            spans = [
                (start, stop, blobs[k * blob_bytes : (k + 1) * blob_bytes])
                for k, (start, stop) in enumerate(pairwise(edges))
            ]
            writer.append(tokens, spans=spans)
    return directory


def objects(count: int, size_bytes: int) -> Path:
    """Return random bytes in one shard, in documents of one size."""
    directory = DATA / f"objects-{size_bytes}-{count}"
    if (directory / stream.MANIFEST_NAME).exists():
        return directory
    generator = np.random.default_rng(0)
    with millstream.Writer(directory, encode=bytes) as writer:
        for _ in range(count):
            writer.append(generator.bytes(size_bytes))
    return directory


def llmbatch(num_records: int, seq_len: int, batch_size: int) -> Path:
    """Return rows of random tokens in one LLMBATCH file."""
    path = DATA / f"llmbatch-{num_records}x{seq_len}.batch"
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        tokens = np.random.default_rng(0).integers(0, _VOCAB_SIZE, (num_records, seq_len), "u4")
        write_batch_file(path, tokens, batch_size, seq_len, seed=42)
    return path


def as_own(path: Path) -> Path:
    """Return the same tokens in the Millstream format."""
    directory = path.with_suffix("")
    if not (directory / stream.MANIFEST_NAME).exists():
        convert(millstream.open(path), directory, "millstream")
    return directory


def as_flat(directory: Path) -> Path:
    """Return the stream of a one-shard corpus as nanoGPT's file, which has the same bytes."""
    path = directory.with_suffix(".bin")
    if not path.exists():
        path.hardlink_to(stream_file(directory))
    return path


def as_datatrove(directory: Path) -> Path:
    """Return the stream of a one-shard corpus as datatrove's file, which has the same bytes."""
    path = directory.with_suffix(".ds")
    if not path.exists():
        offsets = np.fromfile(shard_file(directory, DOCUMENTS), OFFSET)
        offsets[1:].tofile(f"{path}.index")
        path.hardlink_to(stream_file(directory))
    return path


def lognormal_lengths(generator: np.random.Generator, mu: float, count: int) -> NDArray[np.int64]:
    """Return document lengths of at least one token."""
    drawn = np.rint(generator.lognormal(mu, SIGMA, count))
    return np.maximum(1, drawn).astype(np.int64)


def lognormal_chunks(mu: float, num_documents: int) -> Iterator[NDArray[np.int64]]:
    """Yield the same lengths in chunks."""
    generator = np.random.default_rng(0)
    for start in range(0, num_documents, _CHUNK):
        yield lognormal_lengths(generator, mu, min(_CHUNK, num_documents - start))


def sparse(num_shards: int, records_per_shard: int) -> Path:
    """Return shards of zeros that take no space on disk."""
    directory = DATA / f"sparse-{num_shards}x{records_per_shard}"
    return _sparse(directory, num_shards, records_per_shard)


def sparse_sources(num_sources: int, num_shards: int, records_per_shard: int) -> list[Path]:
    """Return datasets of such shards."""
    root = DATA / f"sparse-sources-{num_shards}x{records_per_shard}"
    return [
        _sparse(root / f"{number:04d}", num_shards, records_per_shard)
        for number in range(num_sources)
    ]


def sparse_documents(directory: Path, lengths: Iterable[NDArray[np.int64]]) -> Path:
    """Return documents of these lengths in one shard: real offsets, sparse records."""
    if (directory / stream.MANIFEST_NAME).exists():
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    hashed, num_records, num_documents = xxhash.xxh3_64(bytes(8)), 0, 0
    with (directory / f"00000{DOCUMENTS}").open("xb") as file:
        file.write(bytes(8))
        for some in lengths:
            offsets = (num_records + np.cumsum(some)).astype(OFFSET).tobytes()
            file.write(offsets)
            hashed.update(offsets)
            num_records += int(some.sum())
            num_documents += some.size
    files = {
        STREAM: StoredFile(2 * num_records, _NO_CHECKSUM),
        DOCUMENTS: StoredFile(8 * (num_documents + 1), hashed.hexdigest()),
    }
    shard = Shard(directory, "00000", num_records, num_documents, 0, files)
    with shard.path(STREAM).open("xb") as file:
        file.truncate(2 * num_records)
    _write_manifest(directory, [shard])
    return directory


def _dense(directory: Path, num_tokens: int, seed: int) -> Path:
    if (directory / stream.MANIFEST_NAME).exists():
        return directory
    generator = np.random.default_rng(seed)
    with millstream.Writer(directory, vocab_size=_VOCAB_SIZE, shard_bytes=2 * num_tokens) as writer:
        for start in range(0, num_tokens, _DOCUMENT):
            size = min(_DOCUMENT, num_tokens - start)
            writer.append(generator.integers(0, _VOCAB_SIZE, size, np.uint16))
    return directory


def _sparse(directory: Path, num_shards: int, records_per_shard: int) -> Path:
    if (directory / stream.MANIFEST_NAME).exists():
        return directory
    shutil.rmtree(directory, ignore_errors=True)  # incomplete, from a killed run
    directory.mkdir(parents=True)
    shards = []
    for number in range(num_shards):
        sizes = {STREAM: 2 * records_per_shard, DOCUMENTS: 16}
        files = {suffix: StoredFile(size, _NO_CHECKSUM) for suffix, size in sizes.items()}
        shard = Shard(directory, f"{number:05d}", records_per_shard, 1, 0, files)
        for suffix, size in sizes.items():
            with shard.path(suffix).open("xb") as file:
                file.truncate(size)
        shards.append(shard)
    _write_manifest(directory, shards)
    return directory


def _write_manifest(directory: Path, shards: list[Shard]) -> None:
    manifest = Manifest(_RECORD, _VOCAB_SIZE, {}, None, None, tuple(shards))
    (directory / stream.MANIFEST_NAME).write_text(stream.manifest_to_json(manifest))
