"""What jobs that write to object stores leave: at the target, and in their staging directories."""

import numpy as np
import obstore

import millstream
from millstream.cache import cache_directory


def contents(directory):
    """All files below a directory."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def stored(s3, bucket, prefix=""):
    """All objects below a prefix."""
    store = s3.store(bucket)
    keys = [each["path"] for page in obstore.list(store, prefix or None) for each in page]
    return {key.removeprefix(f"{prefix}/"): bytes(obstore.get(store, key).bytes()) for key in keys}


def staged():
    """What lies in the staging directories."""
    directory = cache_directory("staging")
    return sorted(path.name for path in directory.glob("*")) if directory.exists() else []


def write_shards(path, num_shards, shard_bytes, *, seed=0, after=lambda k: None, **options):
    """A dataset of shards of random tokens; `after` is called when a shard is appended."""
    generator = np.random.default_rng(seed)
    with millstream.Writer(path, vocab_size=1 << 16, shard_bytes=1, **options) as writer:
        for k in range(num_shards):
            writer.append(generator.integers(0, 1 << 16, shard_bytes // 2))
            after(k)
