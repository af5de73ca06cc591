"""The formats of single files: their names, how to detect one, and how to describe a file in it.

Detection goes by content, in this order: magic bytes, companions such as `.idx`, and only then, for
files without a header, the name. `format="flat:uint32"` overrides it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.arguments import one_of
from millstream.errors import FormatError, UsageError
from millstream.formats import datatrove, dolma, flat, llmbatch, llmchnk, megatron
from millstream.formats.directories import data_of
from millstream.formats.files import Head, read_head
from millstream.formats.recognition import refuse_others, unknown
from millstream.formats.repeated_files import OpenedPaths
from millstream.formats.signatures import is_arrow_stream
from millstream.formats.undecoded import Described
from millstream.formats.wanted_columns import Wanted
from millstream.remote.at_once import at_once


@dataclass(frozen=True, slots=True)
class Said:
    """What the user, or a file list, says about files."""

    name: str
    """of the format; "" to detect it"""
    option: str | None
    """the part of `format=` after its colon"""
    wanted: Wanted | None
    reached: OpenedPaths
    """what the same call has opened"""


def parse_format(format: str | None) -> tuple[str, str | None]:  # noqa: A002
    """Split `format=` into the name and the option after its colon."""
    name, _, option = (format or "").partition(":")
    if format is not None:
        one_of("format", name, FORMATS)
    if option and name not in _WITH_OPTION:
        raise UsageError(f"format={format!r:.60}: {name} takes no option; leave out {option!r}")
    if name in _WITH_TYPE:
        token_type(option or None)  # report a mistake even if no file has this format
    return name, option or None


def _parquet(head: Head, option: str | None, wanted: Wanted | None) -> Described:
    from millstream.formats.arrow import describe_parquet

    return describe_parquet(head, option, wanted)


def _arrow(head: Head, option: str | None, wanted: Wanted | None) -> Described:
    from millstream.formats.arrow import describe_arrow

    return describe_arrow(head, option, wanted)


DescribeFile = Callable[[Head, str | None, Wanted | None], Described]

# How to describe a file of each format, given the option after the colon in `format=`.
FILE_FORMATS: dict[str, DescribeFile] = {
    "llmbatch": lambda head, option, _: llmbatch.describe(head),
    "llmchnk": lambda head, option, _: llmchnk.describe(head),
    "megatron": lambda head, option, _: megatron.describe(head.path),
    "megatron-sequences": lambda head, option, _: megatron.describe(head.path, by_sequence=True),
    "datatrove": lambda head, option, _: datatrove.describe(head, token_type(option)),
    "llmc": lambda head, option, _: flat.describe_llmc(head),
    "npy": lambda head, option, _: flat.describe_npy(head),
    "dolma": lambda head, option, _: dolma.describe(head, token_type(option)),
    "flat": lambda head, option, _: flat.describe_flat(head, token_type(option)),
    "parquet": _parquet,
    "arrow": _arrow,
}
FORMATS = ("millstream", *FILE_FORMATS, "litdata", "mds")
"""the names that `format=` takes"""
_WITH_TYPE = ("datatrove", "dolma", "flat", "mds")
_WITH_OPTION = (*_WITH_TYPE, "parquet", "arrow")

_STREAM_START = b"\xff\xff\xff\xff"  # of an Arrow stream, which has no magic, and of some tokens
_BARE = (".bin", ".npy", ".ds")
_HEADERLESS = ("flat", "datatrove", "dolma")
_BYTES = ("uint8", "int8")  # any file may be read as bytes, and models are trained on that
_MAGIC = {
    llmbatch.MAGIC: "llmbatch",
    llmchnk.MAGIC: "llmchnk",
    megatron.MAGIC: "megatron",
    flat.NPY_MAGIC: "npy",
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    _STREAM_START: "arrow",
}


def describe_file(path: Path, said: Said) -> Described:
    """Describe one file in the format that it is said to have, or seems to have."""
    head = read_head(path)
    said.reached.add(path, head.file_id)
    kind = said.name or _detect(head)
    if kind not in FILE_FORMATS:
        raise UsageError(f"{path}: {kind} datasets are directories; open the directory")
    if kind in _HEADERLESS and said.option not in _BYTES:
        _refuse_header(head)
        refuse_others(head, is_told=bool(said.name))
    return FILE_FORMATS[kind](head, said.option, said.wanted)


def describe_files(paths: Sequence[Path], said: Said) -> list[Described]:
    """Describe files, remote ones at once."""
    return at_once(lambda path: describe_file(path, said), paths, lambda path: path)


def _detect(head: Head) -> str:
    """Detect the format of a file."""
    path, ending = head.path, head.path.suffix
    suffix = ending.lower()
    for magic, kind in _MAGIC.items():
        if head.start.startswith(magic) and (magic != _STREAM_START or suffix not in _BARE):
            return kind
    if is_arrow_stream(head):
        return "arrow"
    if ending == ".bin" and os.path.lexists(path.with_suffix(".idx")):
        return "megatron"
    if flat.is_llmc(head):
        return "llmc"
    if suffix == ".ds" or os.path.lexists(f"{path}{datatrove.INDEX_SUFFIX}"):
        return "datatrove"
    data = data_of(path) or (path.parent if ending == ".mds" else None)
    if data is not None:
        raise FormatError(f"{path}: is a companion of other files; {_open_or_copy(data)}")
    by_name = {".npy": "dolma", ".bin": "flat"}
    if suffix in by_name:
        return by_name[suffix]
    raise unknown(head, ", ".join(FORMATS))


def _open_or_copy(data: Path) -> str:
    is_there = os.path.lexists(data)
    return f"open {data}" if is_there else f"{data.name} is missing; copy it here and open it"


def _refuse_header(head: Head) -> None:
    """Refuse an llm.c header where bare tokens are expected: it would be read as tokens."""
    if flat.is_llmc(head):
        raise FormatError(f"{head.path}: has an llm.c header; open it without format")


_TOKEN_TYPES = {
    f"{kind}{8 * size}": f"<{kind[0]}{size}" for kind in ("uint", "int") for size in (1, 2, 4, 8)
}


def token_type(option: str | None) -> str | None:
    """The NumPy type of a token type's name, such as "uint16"."""
    if option is None:
        return None
    return _TOKEN_TYPES[one_of("the type of tokens", option, _TOKEN_TYPES)]
