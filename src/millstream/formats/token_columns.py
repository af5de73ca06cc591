"""The meaning of a table's columns: tokens, what to train on, padding.

    input_ids, tokens, token_ids, ids   the tokens of each document; or the only lists of integers
    labels                              the same tokens, not shifted; -100 to not train on one
    loss_mask, completion_mask,
    assistant_masks                     1 to train on a token, 0 to not
    attention_mask                      0 for padding

Other columns are left out, unless the user names them as fields or metadata.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millstream.errors import FormatError, UsageError
from millstream.formats.arrow_lists import number_type, value_type
from millstream.formats.json_values import can_be_json
from millstream.formats.loss_masks import LOSS_MASK
from millstream.formats.recognition import quoted, text_advice
from millstream.formats.record_types import fields_problem
from millstream.formats.shard import METADATA_ID, TOKEN
from millstream.formats.wanted_columns import Wanted
from millstream.suggestions import did_you_mean

TOKEN_COLUMNS = ("input_ids", "tokens", "token_ids", "ids")
LABELS, ATTENTION_MASK = "labels", "attention_mask"
MASKS = (LOSS_MASK, "completion_mask", "assistant_masks")
"""the last two are TRL's"""
MEANT = (LABELS, *MASKS, ATTENTION_MASK)
"""columns that decide what to train on"""
_BESIDE_TOKENS = (
    *MEANT,
    *("token_type_ids", "special_tokens_mask", "position_ids", "seq_lengths"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenColumns:
    """The columns of a table that are read, and their roles."""

    tokens: str
    labels: str | None
    masks: tuple[str, ...]
    attention_mask: str | None
    fields: tuple[str, ...]
    metadata: tuple[str, ...]
    record: np.dtype[Any]
    """the token, `loss_mask` if a column says what to train on, and the fields"""
    left_out: dict[str, str]
    """the columns that are not read, and their types"""

    @property
    def of_tokens(self) -> tuple[str, ...]:
        """The columns with one value per token."""
        single = [name for name in (self.labels, self.attention_mask) if name is not None]
        return (self.tokens, *single, *self.masks, *self.fields)

    @property
    def identity(self) -> str:
        """What determines the records besides the file; if only tokens are read, their column."""
        if (*self.of_tokens, *self.metadata) == (self.tokens,):
            return self.tokens
        return (
            f"tokens {self.tokens!r} labels {self.labels!r} masks {self.masks!r} "
            f"attention_mask {self.attention_mask!r} fields {self.fields!r} "
            f"metadata {self.metadata!r}"
        )


def columns_of(
    path: Path, schema: Any, tokens: str | None, wanted: Wanted, *, kind: str = "parquet"
) -> TokenColumns:
    """Assign a role to each column of an Arrow schema; `tokens` may name the token column.

    `kind` is the kind of file: "parquet", or Arrow's "file" or "stream".
    """
    types = {field.name: field.type for field in schema}
    for name in wanted.names:
        if name not in types and name not in wanted.ignore:  # other files may have it
            raise _refusal(path, schema, f"no column {name!r}{did_you_mean(name, types)}")
        if (tokens, *wanted.names).count(name) > 1:
            raise UsageError(
                f"column {name!r} is named twice; name it once in fields, metadata or ignore"
            )
    tokens = _tokens(path, schema, tokens, wanted, kind)
    meant = [
        name
        for name in MEANT
        # One value per document, such as a class label, is something else.
        if name not in (tokens, *wanted.names) and value_type(types.get(name)) is not None
    ]
    used = (tokens, *meant, *wanted.fields, *wanted.metadata)
    for name in used:
        if schema.names.count(name) > 1:
            raise _refusal(path, schema, f"more than one column {name!r}")
        expected = _expected(types[name], name, wanted)
        if expected:
            raise FormatError(f"{path}: column {name!r} is {types[name]}, expected {expected}")
    return TokenColumns(
        tokens=tokens,
        labels=LABELS if LABELS in meant else None,
        masks=tuple(name for name in meant if name in MASKS),
        attention_mask=ATTENTION_MASK if ATTENTION_MASK in meant else None,
        fields=wanted.fields,
        metadata=wanted.metadata,
        record=_record(path, types, tokens, meant, wanted.fields),
        left_out={field.name: str(field.type) for field in schema if field.name not in used},
    )


def _tokens(path: Path, schema: Any, column: str | None, wanted: Wanted, kind: str) -> str:
    """The name of the column with tokens."""
    lists = [field.name for field in schema if number_type(field.type, "iu") is not None]
    hint = ""
    if column is not None:
        hint = did_you_mean(column, schema.names)
        lists = [name for name in lists if name == column]
    else:
        lists = [name for name in lists if name not in wanted.names]
        known = [name for name in TOKEN_COLUMNS if name in lists]
        lists = known[:1] or [name for name in lists if name not in _BESIDE_TOKENS]
    for field in schema if not lists else ():
        is_meant = field.name == column or (
            column is None and field.name in TOKEN_COLUMNS and field.name not in wanted.names
        )
        if is_meant and "string" not in str(field.type) and value_type(field.type) is not None:
            raise _refusal(
                path,
                schema,
                f"{field.name!r} must be lists of integers, one per row, not "
                f"{field.type}; convert it and write the file again",
            )
    text = [field.name for field in schema if "string" in str(field.type)]
    if column is None and not lists and text:
        advice = _text_advice(path, kind, "text" if "text" in text else text[0])
        raise _refusal(path, schema, f"they contain text, not tokens; {advice}")
    if len(lists) != 1:
        raise _refusal(
            path,
            schema,
            'name the column with lists of token ids, as in format="parquet:input_ids" or '
            f'"arrow:input_ids"{hint}',
        )
    return str(lists[0])


def _text_advice(path: Path, kind: str, column: str) -> str:
    """How to tokenize the text; `millstream tokenize` reads Parquet, but not Arrow."""
    if kind == "parquet":
        return text_advice(path, kind, column)
    parquet = path.with_suffix(".parquet")
    table = f"pyarrow.ipc.open_{kind}(pyarrow.memory_map({quoted(path)})).read_all()"
    return (
        f"write it as Parquet (pyarrow.parquet.write_table({table}, {quoted(parquet)}), or "
        "Dataset.to_parquet of Hugging Face datasets) and "
        f"{text_advice(parquet, 'parquet', column)}"
    )


def _expected(kind: Any, name: str, wanted: Wanted) -> str | None:
    """The type that a column needs; None if it fits."""
    if name in wanted.metadata:
        return None if can_be_json(kind) else "a type that JSON can represent"
    if name in wanted.fields:
        return None if number_type(kind, "iufb") else "lists of numbers"
    if number_type(kind, "iu" if name == LABELS else "iubf"):  # the values are checked
        return None
    return f"lists of integers; convert it, or leave it out with ignore={name!r}"


def _record(
    path: Path, types: dict[str, Any], tokens: str, meant: list[str], fields: tuple[str, ...]
) -> np.dtype[Any]:
    """The record: token, loss mask if a column gives one, and fields."""
    members = [(TOKEN, number_type(types[tokens], "iu"))]
    if set(meant) - {ATTENTION_MASK}:
        members.append((LOSS_MASK, np.dtype("u1")))
    for name in fields:
        if name in ("input_ids", LABELS):
            raise UsageError(
                f"{path}: {name!r} is reserved for the tokens of a batch; rename the column in "
                "the file to use it as a field"
            )
        if name in (*(member for member, _ in members), METADATA_ID):
            raise UsageError(f"{path}: {name!r} is a field already; rename the column in the file")
        members.append((name, number_type(types[name], "iufb")))
    record = np.dtype(members)
    problem = fields_problem(record)
    if problem is not None:
        raise UsageError(f"{path}: {problem}")
    return record


def _refusal(path: Path, schema: Any, problem: str) -> FormatError:
    found = ", ".join(f"{field.name} ({field.type})" for field in schema)
    return FormatError(f"{path}: columns are {found}; {problem}")
