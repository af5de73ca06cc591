"""Loss masks: 0 for tokens not to train on.

They come in separate files of one byte per token, such as datatrove's `X.ds.loss` and OLMo's label
masks, or in columns of a table: `labels`, and masks such as TRL's. All values are checked: columns
must agree with the tokens and with each other.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, UsageError
from millstream.formats.files import Head, check_size
from millstream.formats.list_rows import ListRows
from millstream.formats.shard import APART, Manifest, StoredFile

LOSS_MASK = "loss_mask"
IGNORED = -100
"""in `labels`: not to be trained on"""

Flags = NDArray[np.bool_]


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


def loss_mask(
    rows: ListRows, tokens: str, labels: str | None, masks: Sequence[str], kept: Flags | None
) -> NDArray[np.uint8]:
    """1 for tokens to train on, from the columns of these names, which must agree.

    Padding, which is not `kept`, is not checked.
    """
    found = dict[str, Flags]()
    if labels is not None:
        found[labels] = _labelled(rows, tokens, labels, kept)
    for name in masks:
        found[name] = flags(rows, name, kept)
    (first, mask), *others = found.items()
    for name, other in others:
        position = _first(mask != other, kept)
        if position is not None:
            row, index = rows.place(position)
            raise FormatError(
                f"{rows.path}: row {rows.first_row + row:,}: {name}[{index:,}] is "
                f"{rows.values[name][position].item()}, but {first}[{index:,}] is "
                f"{rows.values[first][position].item()}; leave one of the columns out, as in "
                f"ignore={name!r}"
            )
    return mask.view(np.uint8)


def _labelled(rows: ListRows, of_tokens: str, name: str, kept: Flags | None) -> Flags:
    """True where the column `name` repeats the token."""
    tokens, labels = rows.values[of_tokens], rows.values[name]
    mask: Flags = labels != np.int64(IGNORED)
    position = _first(mask & (labels != tokens), kept)
    if position is None:
        return mask
    row, index = rows.place(position)
    start = position - index
    stop = start + int(rows.lengths[row])
    nexts, ahead = tokens[start + 1 : stop], labels[start : stop - 1]
    expected, remedy = f"{IGNORED} or the token there, {tokens[position].item()}", ""
    if nexts.size and bool(((ahead == nexts) | ~mask[start : stop - 1]).all()):
        expected += " (found the next token: labels must not be shifted)"
        remedy = f"write them as [{IGNORED}, *labels[:-1]] to keep what they mask, or "
    raise rows.refuse(name, position, expected, remedy)


def flags(rows: ListRows, name: str, kept: Flags | None) -> Flags:
    """A mask column, whose values must be 0 or 1."""
    values = rows.values[name]
    mask: Flags = values == 1
    position = _first(~mask & (values != 0), kept)
    if position is not None:
        raise rows.refuse(name, position, "0 or 1")
    return mask


def _first(wrong: Flags, kept: Flags | None) -> int | None:
    """The first wrong position; padding is not checked."""
    if kept is not None:
        wrong &= kept
    position = int(wrong.argmax()) if wrong.size else 0
    return position if wrong.size and wrong[position] else None
