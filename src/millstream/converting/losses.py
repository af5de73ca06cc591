"""What a target format can store of a dataset, and in words what it cannot."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from millstream.converting.shards import BatchShape, knows_documents
from millstream.dataset import Dataset
from millstream.formats.loss_masks import LOSS_MASK
from millstream.formats.shard import METADATA_ID, TOKEN
from millstream.write.targets import Target


def fields_for(data: Dataset, target: Target) -> np.dtype[Any]:
    """The record type to write."""
    stored = data.fields[TOKEN]
    members: list[tuple[str, Any]] = [(TOKEN, _token_type(stored, data.vocab_size, target))]
    for name in data.fields.names or ():
        is_mask = name == LOSS_MASK and data.fields[name].kind in "biu"  # weights are not a mask
        keeps = target.holds_fields or (target.holds_loss_mask and is_mask)
        if keeps and name not in (TOKEN, METADATA_ID):
            members.append((name, data.fields[name]))
    return np.dtype(members)


def _token_type(stored: np.dtype[Any], vocab_size: int | None, target: Target) -> np.dtype[Any]:
    """The stored type, or one of its size, or the smallest that fits all ids, or the largest.

    Ids that do not fit raise an error when they are written.
    """
    types = [np.dtype(name) for name in target.token_types] or [stored]
    highest = np.iinfo(stored).max if vocab_size is None else vocab_size - 1
    by_size = sorted(types, key=lambda dtype: dtype.itemsize)
    same = [dtype for dtype in types if dtype.itemsize == stored.itemsize]
    wide = [dtype for dtype in by_size if np.iinfo(dtype).max >= highest]
    if stored in types:
        return stored
    return [*same, *wide, by_size[-1]][0]


def losses(
    data: Dataset, to: str, target: Target, fields: np.dtype[Any], rows: BatchShape | None
) -> Iterator[str]:
    """One sentence for everything that is not in the new files."""
    if METADATA_ID in (data.fields.names or ()):
        yield "metadata is not copied"
    left = [
        n for n in data.fields.names or () if n not in (fields.names or ()) and n != METADATA_ID
    ]
    if left:
        yield f"{to} cannot store the fields {', '.join(left)}"
    if not target.holds_documents and knows_documents(data):
        yield (
            f"{to} does not store document boundaries{'' if rows else _how_to_find_documents(data)}"
        )
    if data.group_size > 1 and to != "millstream":
        yield f"{to} does not store that documents belong together in groups of {data.group_size:,}"
    for what in dict.fromkeys(each for manifest in data.manifests for each in manifest.unread):
        yield f"{what} of the source are not converted"
    common = common_facts(data)
    differing = [
        name
        for name, value in common.items()
        if value is None and any(getattr(each, name) for each in data.manifests)
    ]
    if differing:
        yield f"{', '.join(differing)} differ between the sources and are left out"
    if to == "datatrove" and set(common["tokenizer"] or ()) <= {"name"}:
        del common["tokenizer"]
    common["vocab_size"] = data.vocab_size
    left = [name for name, value in common.items() if value not in (None, {})]
    if to != "millstream" and left:
        yield f"{to} does not store {', '.join(left)}"
    if rows is not None:
        rest = data.num_records % (rows.seq_len * rows.batch_size)
        if rest:
            yield f"the last {rest:,} tokens, less than a batch, are dropped"


def _how_to_find_documents(data: Dataset) -> str:
    facts = common_facts(data)
    for name in ("eos_id", "bos_id"):
        if facts[name] is not None:
            option = f"--{name.replace('_', '-')} {facts[name]}"
            return f"; pass {name}={facts[name]} ({option}) when you open the result"
    return (
        "; if a token starts or ends each document, pass bos_id or eos_id (--bos-id, --eos-id) "
        "when you open the result"
    )


def common_facts(data: Dataset) -> dict[str, Any]:
    """Facts on which all sources agree; None where they do not."""
    first = data.manifests[0]
    return {
        name: getattr(first, name)
        if all(getattr(each, name) == getattr(first, name) for each in data.manifests)
        else None
        for name in ("tokenizer", "bos_id", "eos_id", "split")
    }
