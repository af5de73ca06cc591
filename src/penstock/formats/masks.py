"""Loss masks in separate files: one byte per token, 0 for tokens not to train on.

Examples are datatrove's `X.ds.loss` and OLMo's label masks.
"""

from dataclasses import replace

import numpy as np

from penstock.errors import UsageError
from penstock.formats.files import Head, check_size
from penstock.formats.shard import APART, Manifest, StoredFile

LOSS_MASK = "loss_mask"


def with_mask(manifest: Manifest, mask: Head) -> Manifest:
    """Add the field `loss_mask` to the records of one token file."""
    names = manifest.fields.names or ()
    if len(manifest.shards) != 1 or manifest.apart is not None or LOSS_MASK in names:
        raise UsageError(f"{mask.path}: a loss mask needs a single token file without one")
    (shard,) = manifest.shards
    check_size(mask.path, mask.size_bytes, shard.num_records, f"{shard.num_records:,} tokens")
    files = {**shard.files, APART: StoredFile(mask.size_bytes, path=str(mask.path))}
    members = [*((name, manifest.fields[name]) for name in names), (LOSS_MASK, np.dtype("u1"))]
    return replace(
        manifest,
        fields=np.dtype(members),
        shards=(replace(shard, files=files),),
        apart=LOSS_MASK,
    )
