"""Datasets with metadata that no writer would produce."""

import json
import os

import numpy as np
import xxhash

ACCESS = ["pread", "mmap"]
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def write_by_hand(path, *, ids, index, metadata, num_spans=None):
    """A dataset of one document whose metadata ids and index are as given."""
    os.makedirs(path, exist_ok=True)  # noqa: PTH103
    records = np.zeros(len(ids), [("token", "<u2"), ("metadata_id", "<u4")])
    records["token"] = np.arange(len(ids)) + 1
    records["metadata_id"] = ids
    if isinstance(index, list):
        num_spans = len(index) - 1
        index = dict(enumerate(index))
    content = {
        ".stream": records.tobytes(),
        ".documents": np.array([0, len(ids)], "<u8").tobytes(),
        ".metadata": metadata,
    }
    sizes = {suffix: len(values) for suffix, values in content.items()}
    for suffix, values in content.items():
        with open(f"{path}/00000{suffix}", "wb") as file:  # noqa: PTH123
            file.write(values)
    sizes[".index"] = 8 * (num_spans + 1)
    with open(f"{path}/00000.index", "wb") as file:  # noqa: PTH123
        file.truncate(sizes[".index"])
        for entry, value in index.items():
            file.seek(8 * entry)
            file.write(int(value).to_bytes(8, "little"))
    shard = {
        "name": "00000",
        "records": len(ids),
        "documents": 1,
        "spans": num_spans,
        "files": {
            suffix: {"bytes": n, "xxh3": xxhash.xxh3_64_hexdigest(content.get(suffix, b""))}
            for suffix, n in sizes.items()
        },
    }
    manifest = {
        "format": "millstream-stream",
        "version": 1,
        "fields": [["token", "<u2"], ["metadata_id", "<u4"]],
        "vocab_size": None,
        "tokenizer": {},
        "shards": [shard],
    }
    with open(f"{path}/millstream.json", "w") as file:  # noqa: PTH123
        json.dump(manifest, file)
    return path
