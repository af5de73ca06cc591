"""How views of different kinds fill the same batch.

The rule: a batch has the outputs that all sources have. Extras that one view asks for are made for
all. Tokens get the widest type. A field that not every source has is left out, but still masks the
labels of those that have it. Where the same name means different things, the mixture is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from millstream.batches.layout import BatchLayout
from millstream.batches.outputs import SOURCE_IDS, DerivedOutput, Output, check_extras
from millstream.batches.row_slice import RowSlice
from millstream.errors import UsageError
from millstream.formats.shard import METADATA_ID, TOKEN
from millstream.views.view import View


def unify(views: Mapping[str, View]) -> dict[str, View]:
    """Return the views with the same extras; raise if their rows cannot be in one batch."""
    (first_name, first), *others = views.items()
    for name, view in others:
        for one, other in (
            (_objects_or_records(first), _objects_or_records(view)),
            (f"rows of {first.seq_len:,} tokens", f"rows of {view.seq_len:,} tokens"),
            (f"pad_to={first.narrow_to or None}", f"pad_to={view.narrow_to or None}"),
            (_with_or_without_tokens(first), _with_or_without_tokens(view)),
        ):
            if one != other:
                raise UsageError(
                    f"sources {first_name!r} and {name!r} cannot be in one batch: they have {one} "
                    f"and {other}"
                )
        if first.coding and view.coding and first.coding.collate is not view.coding.collate:
            raise UsageError(
                f"sources {first_name!r} and {name!r} have different collate functions, and a "
                "batch needs one; pass the same function to both"
            )
    for name, view in views.items():
        if view.metadata is not None:
            instead = "look documents up by source_ids and document_ids"
            if view.coding is not None:
                instead = "write what you need into the objects themselves"
            raise UsageError(
                f"source {name!r} has metadata={view.metadata!r:.40}, which a mixture does not "
                f"hand out; leave it out, and {instead}"
            )
        if view.transform is not None:
            raise UsageError(
                f"source {name!r} has a transform, but batches of a mixture have rows of all "
                "sources: pass it to millstream.mix(…, transform=…), where batch['source_ids'] "
                "tells which row is whose"
            )
    _check_fields(views)
    extras = check_extras(dict.fromkeys(extra for view in views.values() for extra in view.extras))
    is_static = any(view.static_shapes for view in views.values())
    return {
        name: view
        if (set(view.extras), view.static_shapes) == (set(extras), is_static)
        else replace(view, extras=extras, static_shapes=is_static)
        for name, view in views.items()
    }


def left_out_fields(views: Mapping[str, View]) -> dict[str, tuple[str, ...]]:
    """The fields that only some sources have, and so are not in batches; with those sources."""
    names = {name: _fields(view) for name, view in views.items()}
    every = dict.fromkeys(field for fields in names.values() for field in fields)
    return {
        field: having
        for field in every
        if len(having := tuple(name for name in names if field in names[name])) < len(views)
    }


def _has_tokens(view: View) -> bool:
    return TOKEN in (view.dataset.fields.names or ())


def _with_or_without_tokens(view: View) -> str:
    return f"records {'with' if _has_tokens(view) else 'without'} a field {TOKEN!r}"


def _objects_or_records(view: View) -> str:
    return "records" if view.coding is None else "objects"


def _fields(view: View) -> dict[str, np.dtype[Any]]:
    fields = view.dataset.fields
    names = [name for name in fields.names or () if name not in (TOKEN, METADATA_ID)]
    return {name: fields[name] for name in names}


def _check_fields(views: Mapping[str, View]) -> None:
    """Raise if a field has different types; the smallest common type would change its meaning."""
    seen: dict[str, tuple[str, np.dtype[Any]]] = {}
    for name, view in views.items():
        if SOURCE_IDS in _fields(view):
            raise UsageError(
                f"source {name!r} has a field {SOURCE_IDS!r}, which in batches of a mixture says "
                "where rows come from; write the field with another name"
            )
        for field, dtype in _fields(view).items():
            other, expected = seen.setdefault(field, (name, dtype))
            if dtype != expected:
                raise UsageError(
                    f"field {field!r} is {expected} in source {other!r} and {dtype} in {name!r}; "
                    "write both with one type"
                )


def check_tokenizers(views: Mapping[str, View]) -> None:
    """Raise if sources were tokenized in different ways, as far as their manifests tell."""
    known: dict[str, tuple[str, Any, str]] = {}
    for name, view in views.items():
        for manifest in view.dataset.manifests:
            fingerprint = manifest.tokenizer.get("fingerprint")
            facts = {"tokenizer": fingerprint, "vocab_size": manifest.vocab_size}
            for fact, value in facts.items():
                if value is None:
                    continue
                shown = f"{value:,}" if isinstance(value, int) else str(value)
                if fact == "tokenizer" and manifest.tokenizer.get("name"):
                    shown = f"{manifest.tokenizer['name']} ({shown})"
                other, expected, their = known.setdefault(fact, (name, value, shown))
                if value != expected:
                    raise UsageError(
                        f"sources {other!r} and {name!r} have different tokenizers: {fact} "
                        f"{their} and {shown}; if their ids are compatible, pass "
                        "check_tokenizers=False"
                    )


def mixed_layout(
    views: Sequence[View], rows: int, dtype: DTypeLike | None, row_slice: RowSlice | None
) -> BatchLayout:
    """The memory of a batch of rows of several views, which must have gone through `unify`."""
    stored = None
    if _has_tokens(views[0]):
        stored = np.result_type(*{view.dataset.fields[TOKEN] for view in views})
    wanted = stored if dtype is None else dtype
    layouts = [view.layout(rows, wanted, row_slice) for view in views]
    shared = set.intersection(*({out.name for out in layout.outputs} for layout in layouts))
    labels = np.result_type(
        *{out.dtype for layout in layouts for out in layout.outputs if out.name == "labels"}
        or {np.dtype(np.int64)}
    )
    most = max(layout.max_boundaries for layout in layouts)
    derived = _common_derived(layouts)
    unified = tuple(
        replace(
            layout,
            outputs=_common_outputs(layout, shared, labels),
            derived=derived,
            max_boundaries=most,
            cuts_labels=any(each.cuts_labels for each in layouts),
            stored=stored,
        )
        for layout in layouts
    )
    one = {layout: layout for layout in unified}  # equal ones become one object
    return replace(unified[0], sources=tuple(one[layout] for layout in unified))


def _common_outputs(
    layout: BatchLayout, shared: set[str], labels: np.dtype[Any]
) -> tuple[Output, ...]:
    kept = {out.name: out for out in layout.outputs if out.name in shared}
    if "labels" in kept:
        kept["labels"] = kept["labels"]._replace(dtype=labels)
    tokens = [name for name in ("input_ids", "labels") if name in kept]
    return tuple(kept[name] for name in (*tokens, *sorted(kept.keys() - set(tokens))))


def _common_derived(layouts: Sequence[BatchLayout]) -> tuple[DerivedOutput, ...]:
    """The derived outputs of all, with room for the rows of each, and the sources of rows."""
    merged: dict[str, DerivedOutput] = {}
    for layout in layouts:
        for out in layout.derived:
            found = merged.setdefault(out.name, out)
            merged[out.name] = found._replace(max_entries=max(found.max_entries, out.max_entries))
    for layout in layouts:
        for name in merged.keys() - {out.name for out in layout.derived}:
            raise UsageError(f"not all sources can have {name!r}: in some it is a stored field")
    return (*merged.values(), DerivedOutput(SOURCE_IDS, np.dtype(np.int64)))
