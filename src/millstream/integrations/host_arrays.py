"""Batches as JAX and Keras take them: 32 bits, labels that are token ids, a mask, segments.

JAX truncates 64-bit integers without a word, and its losses do not know -100: an out-of-range label
gives a wrong loss, or NaN, not an error.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.load.base_loader import BaseLoader

Arrays = dict[str, NDArray[Any]]

_NARROW: dict[str, Any] = {"i": np.int32, "u": np.uint32, "f": np.float32}


def host_arrays(batch: dict[str, Any], *, keep_64_bits: bool = False) -> Arrays:
    """Return a batch of NumPy arrays in which every array has a row for each sample.

    `labels` lose their -100, and `loss_mask` tells where there was none. `document_ids` become
    `segment_ids`. Types of 64 bits become 32, unless `keep_64_bits`.

    >>> view = data.packed(16, extras=["document_ids"])
    >>> arrays = host_arrays(next(iter(millstream.Loader(view, 1, output="numpy", shuffle=False))))
    >>> arrays["labels"][0, 8:].tolist(), arrays["loss_mask"][0, 8:].tolist()
    ([9, 0, 0, 0, 0, 0, 0, 0], [True, False, False, False, False, False, False, False])
    >>> arrays["segment_ids"][0].tolist()
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    """
    _check_rows(batch)
    arrays = dict(batch)
    labels = arrays.get("labels")
    if labels is not None:
        if arrays.get("loss_mask", labels).dtype.kind == "f":
            raise UsageError(
                "the records have a field of floats named 'loss_mask', which is also the name of "
                "the mask of labels; give the field another name, such as 'loss_weight'"
            )
        is_label = labels >= 0
        arrays["labels"], arrays["loss_mask"] = np.where(is_label, labels, 0), is_label
    if "document_ids" in arrays:
        if "segment_ids" in arrays:
            raise UsageError(
                "the records have a field 'segment_ids', which is also what document_ids become; "
                "leave document_ids out of extras, or give the field another name"
            )
        arrays["segment_ids"] = segments_of(arrays.pop("document_ids"))
    if keep_64_bits:
        return arrays
    return {name: _narrowed(name, values) for name, values in arrays.items()}


def segments_of(document_ids: NDArray[np.int64]) -> NDArray[np.int32]:
    """Number the documents of each row from 1; 0 is padding, which has the document id -1.

    >>> segments_of(np.array([[7, 7, 3, 9, 9, -1]])).tolist()
    [[1, 1, 2, 3, 3, 0]]
    """
    begins = np.ones(document_ids.shape, bool)
    np.not_equal(document_ids[:, 1:], document_ids[:, :-1], out=begins[:, 1:])
    segments: NDArray[np.int32] = np.cumsum(begins, axis=1, dtype=np.int32)
    segments[document_ids < 0] = 0  # always at the end of a row
    return segments


def check_output(loader: Any, accumulate: str) -> None:
    """Raise unless the loader gives one batch of whole rows in NumPy arrays for each step.

    `accumulate` tells how to do without global_batch_size.
    """
    if not isinstance(loader, BaseLoader):
        raise UsageError(f"a millstream Loader or TextLoader is needed, not {loader!r:.60}")
    if loader.output != "numpy":
        raise UsageError(
            "NumPy arrays are needed, and this loader gives torch tensors; create it with "
            "output='numpy' (and without device=)"
        )
    if loader.global_batch_size is not None:
        rows = f"batch_size=rows // {loader.ranks}" if loader.ranks > 1 else "batch_size=rows"
        raise UsageError(
            "with global_batch_size the loader gives lists of batches; leave it out, pass "
            f"{rows}, and {accumulate}"
        )
    if loader.parallel.context_ranks > 1:
        raise UsageError(
            f"whole rows are needed, and this loader gives slices ({loader.parallel}); leave out "
            "its context ranks: the sharding divides rows"
        )


def _check_rows(batch: dict[str, Any]) -> None:
    """Raise if a value cannot be divided by rows."""
    if not isinstance(batch, dict):
        raise UsageError(
            "a batch must be a dict of arrays, but the view's transform or collate returned "
            f"{type(batch).__name__}"
        )
    if "cu_seqlens" in batch:
        raise UsageError(
            "cu_seqlens counts the tokens of one process, and has another length in every batch; "
            "create the view with extras=['position_ids', 'document_ids'], of which the latter "
            "become segment_ids"
        )
    if "metadata" in batch:
        raise UsageError(
            "metadata cannot be put into arrays of rows; leave metadata= out of the view"
        )
    for name, values in batch.items():
        is_array = isinstance(getattr(values, "dtype", None), np.dtype)
        if not is_array or not values.ndim:
            raise UsageError(
                f"batch[{name!r}] is {type(values).__name__}, not an array of rows; return arrays "
                "from the view's transform, or for objects from collate"
            )


def _narrowed(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return values with at most 32 bits; raise if one does not fit."""
    kind = values.dtype.kind
    if values.dtype.itemsize <= 4 or kind not in _NARROW:
        return values
    narrow = _NARROW[kind]
    if kind != "f" and values.size:
        bounds = np.iinfo(narrow)
        for extreme in (values.min(), values.max()):
            if not bounds.min <= extreme <= bounds.max:
                raise UsageError(
                    f"{name} has the value {extreme:,}, which does not fit into 32 bits. Leave the "
                    'field out, or with JAX call jax.config.update("jax_enable_x64", True)'
                )
    return values.astype(narrow)
