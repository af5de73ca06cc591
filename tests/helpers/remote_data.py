"""Datasets in object stores, and comparisons with the same data read locally."""

import shutil
from pathlib import Path

import numpy as np

import millstream


def upload(store, directory, prefix=""):
    """Put all files of a directory, or a file, into a store."""
    import obstore

    directory = Path(directory)
    files = [directory] if directory.is_file() else sorted(directory.rglob("*"))
    root = directory.parent if directory.is_file() else directory
    for path in files:
        if path.is_file():
            obstore.put(store, f"{prefix}{path.relative_to(root)}", path.read_bytes())


def publish(server, directory, name="data"):
    """Copy a directory to where an HTTP server serves it; returns its URL."""
    shutil.copytree(directory, server.directory / name)
    return f"{server.endpoint}/{name}"


def plain(value):
    """A batch, or a part of one, as values that compare with ==."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, memoryview):
        return bytes(value)
    return (str(value.dtype), value.shape, value.tobytes()) if hasattr(value, "tobytes") else value


def batches_of(loader, count=None):
    """The next batches of a loader, as values that compare with ==."""
    with loader:
        found = []
        for batch in loader:
            if count is not None and len(found) == count:
                break
            found.append(plain(batch))
            if count is not None and len(found) == count:
                break
        return found


def write_tokens(path, count, *, shard_bytes=1 << 20, seed=0, **options):
    """Random tokens in documents of 500; no two blocks are alike."""
    tokens = np.random.default_rng(seed).integers(1, 1 << 16, count).astype(np.uint16)
    with millstream.Writer(path, vocab_size=1 << 16, shard_bytes=shard_bytes, **options) as writer:
        for start in range(0, count, 500):
            writer.append(tokens[start : start + 500])
    return millstream.open(path)


def cached_bytes(cache):
    """The space on disk of the blocks of remote data."""
    files = Path(cache).glob("millstream/remote/*/files/**/*")
    return sum(path.stat().st_blocks * 512 for path in files if path.is_file())
