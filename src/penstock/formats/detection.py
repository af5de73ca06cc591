"""Detection: which format files are in, and what is known of them.

It goes by content, in this order: a directory with a manifest or an index, magic bytes, companions
such as `.idx`, and only then, for what has no header at all, the name. A format that cannot be told
by content, or is told wrongly, can be forced: `format="flat:uint32"`.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.arguments import one_of
from penstock.errors import FormatError, MissingDataError, PenstockError, ReadError, UsageError
from penstock.formats import datatrove, dolma, flat, llmbatch, llmchnk, megatron, stream
from penstock.formats.file_list import FILE_LIST, ListedFile, read_current
from penstock.formats.files import Head, plain_name, read_head, read_part, refuse_repeats
from penstock.formats.shard import STREAM, Manifest
from penstock.formats.wanted import Wanted
from penstock.suggestions import did_you_mean_path

UNFINISHED = "unfinished.json"
"""a directory with this is still being written"""
FINISHED = ".finished.json"
"""what `convert` and `repack` made in a directory; hidden, and never data"""
PLAN, PLAN_FORMAT = "plan.json", "penstock-plan"
"""so is one with this, which is the plan of `penstock tokenize`, and what lies right in it"""
_INDEX, _HF_STATE = "index.json", "state.json"
_MAX_INDEX_BYTES = 1 << 28  # JSON takes some ten times its size in memory


def describe(
    path: Path,
    format: str | None = None,  # noqa: A002
    wanted: Wanted | None = None,
) -> list[Manifest]:
    """What is known of the dataset at `path`: one manifest, or one for each file of a directory."""
    name, option = _split(format)
    try:
        if not path.exists():
            raise MissingDataError(f"{path}: no such file or directory{did_you_mean_path(path)}")
        if path.name in (stream.MANIFEST_NAME, _INDEX, _HF_STATE) and not path.is_dir():
            path = path.parent
        if path.is_dir():
            return _describe_directory(path, name, option, wanted)
        if path.suffix == ".json":
            return _describe_list(path, name, option, wanted)
        return [_describe_file(path, name, option, wanted)]
    except PenstockError:
        raise
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None


def _split(format: str | None) -> tuple[str, str | None]:  # noqa: A002
    """The name of a format, and what stands behind its colon."""
    name, _, option = (format or "").partition(":")
    if format is not None:
        one_of("format", name, FORMATS)
    if option and name not in _WITH_OPTION:
        raise UsageError(f"format={format!r:.60}: nothing can be said about {name}; leave it out")
    return name, option or None


def _parquet(head: Head, option: str | None, wanted: Wanted | None) -> Manifest:
    from penstock.formats.arrow import describe_parquet

    return describe_parquet(head, option, wanted)


def _arrow(head: Head, option: str | None, wanted: Wanted | None) -> Manifest:
    from penstock.formats.arrow import describe_arrow

    return describe_arrow(head, option, wanted)


Describe = Callable[[Head, str | None, Wanted | None], Manifest]

# How the files of each format are described, with what stands behind the colon in `format`, and
# what is wanted of their columns.
_FILES: dict[str, Describe] = {
    "llmbatch": lambda head, option, _: llmbatch.describe(head),
    "llmchnk": lambda head, option, _: llmchnk.describe(head),
    "megatron": lambda head, option, _: megatron.describe(head.path),
    "megatron-sequences": lambda head, option, _: megatron.describe(head.path, by_sequence=True),
    "datatrove": lambda head, option, _: datatrove.describe(head, _token_type(option)),
    "llmc": lambda head, option, _: flat.describe_llmc(head),
    "npy": lambda head, option, _: flat.describe_npy(head),
    "dolma": lambda head, option, _: dolma.describe(head, _token_type(option)),
    "flat": lambda head, option, _: flat.describe_flat(head, _token_type(option)),
    "parquet": _parquet,
    "arrow": _arrow,
}
FORMATS = ("penstock", *_FILES, "litdata", "mds")
"""the names that `format=` takes"""
_WITH_OPTION = ("datatrove", "dolma", "flat", "parquet", "arrow", "mds")

# Which files of a directory are data, and not companions of data.
_SUFFIXES = {
    ".batch": "llmbatch",
    ".chnk": "llmchnk",
    ".ds": "datatrove",
    ".bin": "",
    ".npy": "",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
}
# Files that belong to others: how their names end, and how those of the others do.
_COMPANIONS = {
    ".idx": ".bin",
    ".ds.index": ".ds",
    ".ds.loss": ".ds",
    ".ds.metadata": ".ds",
    ".csv.gz": ".npy",
}
_STREAM_START = b"\xff\xff\xff\xff"  # of an Arrow stream, which has no magic, and of some tokens
_BARE = (".bin", ".npy", ".ds")
_MAGIC = {
    llmbatch.MAGIC: "llmbatch",
    llmchnk.MAGIC: "llmchnk",
    megatron.MAGIC: "megatron",
    flat.NPY_MAGIC: "npy",
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    _STREAM_START: "arrow",
}


def _describe_file(path: Path, name: str, option: str | None, wanted: Wanted | None) -> Manifest:
    refuse_unfinished(path.parent)
    head = read_head(path)
    kind = name or _detect(head)
    if kind not in _FILES:
        raise UsageError(f"{path}: {kind} is a format of directories; give the directory")
    return _FILES[kind](head, option, wanted)


def _detect(head: Head) -> str:
    """The format of a file."""
    path = head.path
    for magic, kind in _MAGIC.items():
        if head.start.startswith(magic) and (magic != _STREAM_START or path.suffix not in _BARE):
            return kind
    if path.suffix == ".bin" and os.path.lexists(path.with_suffix(".idx")):
        return "megatron"
    if flat.is_llmc(head):
        return "llmc"
    if path.suffix == ".ds" or os.path.lexists(f"{path}{datatrove.INDEX_SUFFIX}"):
        return "datatrove"
    data = data_of(path) or (path.parent if path.suffix == ".mds" else None)
    if data is not None:
        raise FormatError(f"{path}: belongs to other files; open {data}")
    by_name = {".npy": "dolma", ".bin": "flat"}
    if path.suffix in by_name:
        return by_name[path.suffix]
    raise FormatError(
        f"{path}: starts with {head.start[:8]!r}, which is no format that is known; say which it "
        f"is, as in format='flat:uint16' (there are {', '.join(FORMATS)})"
    )


def _describe_list(
    path: Path, name: str, option: str | None, wanted: Wanted | None
) -> list[Manifest]:
    return _describe_listed(read_current(path, path.parent), name, option, wanted)


def describe_listed(
    files: Iterable[ListedFile],
    format: str | None,  # noqa: A002
    wanted: Wanted | None = None,
) -> list[Manifest]:
    """What is known of the files of a list, which may have their formats and checksums."""
    return _describe_listed(files, *_split(format), wanted)


def _describe_listed(
    files: Iterable[ListedFile], name: str, option: str | None, wanted: Wanted | None
) -> list[Manifest]:
    files = [file for file in files if data_of(file.path) is None]
    if not files:
        raise FormatError("the list has no file with tokens")
    refuse_repeats(files[0].path.parent, [str(file.path) for file in files])
    manifests = []
    for file in files:
        kind = (name, option) if name else _split(file.format)
        checksums = {str(each.path): each.xxh3 for each in (file, *file.companions)}
        manifests.append(_with_checksums(_describe_file(file.path, *kind, wanted), checksums))
    return manifests


def _with_checksums(manifest: Manifest, checksums: dict[str, str | None]) -> Manifest:
    shards = [
        replace(
            shard,
            files={
                kind: replace(file, xxh3=checksums.get(file.path))
                for kind, file in shard.files.items()
            },
        )
        for shard in manifest.shards
    ]
    is_decoded = any(not file.path for shard in manifest.shards for file in shard.files.values())
    return manifest if is_decoded else replace(manifest, shards=tuple(shards))


def data_of(path: Path) -> Path | None:
    """The file with the tokens that `path`, an index or a mask, belongs to."""
    for ending, data in _COMPANIONS.items():
        if path.name.endswith(ending):
            return path.with_name(path.name.removesuffix(ending) + data)
    return None


def refuse_unfinished(directory: Path) -> None:
    """Refuse what is still being written."""
    if os.path.lexists(directory / UNFINISHED):
        raise MissingDataError(
            f"{directory}: is not finished ({UNFINISHED} is there); run penstock convert again, "
            "and it goes on"
        )
    planned = planned_in(directory)
    if planned is not None:
        raise MissingDataError(
            f"{directory}: is not finished ({planned / PLAN} is there); run the same penstock "
            f"tokenize again, and it goes on, or penstock finish {planned} if all tasks have run"
        )


def planned_in(directory: Path) -> Path | None:
    """The directory that `penstock tokenize` is at work in, if it is this one or that above it."""
    for place in (directory, directory.parent):
        path = place / PLAN
        with contextlib.suppress(OSError):  # there is none, or not any more
            if path.is_file() and PLAN_FORMAT in path.read_text(errors="replace")[:64]:
                return place
    return None


def data_files(path: Path, format: str | None) -> list[Path]:  # noqa: A002
    """The files that hold the tokens of a dataset whose format is one of files."""
    if not path.is_dir():
        return [path]
    refuse_unfinished(path)
    for name in (stream.MANIFEST_NAME, _INDEX):
        if os.path.lexists(path / name):
            raise UsageError(f"{path}: has {name}, a list of its own; open it without file_list")
    if os.path.lexists(path / _HF_STATE):
        return _saved_by_datasets(path)
    files = _files_by_name(path, _split(format)[0])
    if not files:
        raise UsageError(f"{path}: holds no files that can be listed; open it without file_list")
    return files


def _describe_directory(
    path: Path, name: str, option: str | None, wanted: Wanted | None
) -> list[Manifest]:
    refuse_unfinished(path)
    if name in ("", "penstock") and (path / stream.MANIFEST_NAME).is_file():
        return [stream.read_manifest(path)]
    if name in ("", *_FILES) and os.path.lexists(path / FILE_LIST):
        return _describe_list(path / FILE_LIST, name, option, wanted)
    if name in ("", "litdata", "mds") and os.path.lexists(path / _INDEX):
        return [_describe_index(path, name, option)]
    if name in ("", "arrow") and os.path.lexists(path / _HF_STATE):
        files = _saved_by_datasets(path)
    else:
        files = _files_by_name(path, name)
    if files and name in ("", *_FILES):
        return [_describe_file(file, name, option, wanted) for file in files]
    is_ours = name in ("", "penstock")
    if is_ours and any(path.glob(f"*{stream.PART_SUFFIX}")):
        raise MissingDataError(
            f"{path}: holds finished parts but no {stream.MANIFEST_NAME}; "
            f"join them with penstock.finish({str(path)!r})"
        )
    if is_ours and any(path.glob(f"*{STREAM}")):
        raise MissingDataError(
            f"{path}: holds shards but no {stream.MANIFEST_NAME}: the writer did not finish; "
            "write the dataset again"
        )
    if (path / "dataset_dict.json").is_file():
        splits = sorted(each.name for each in path.iterdir() if each.is_dir())
        raise FormatError(f"{path}: holds several splits; open one of {', '.join(splits)}")
    missing = f"no files of the format {name}" if name else "no dataset"
    raise MissingDataError(
        f"{path}: holds {missing}: neither {stream.MANIFEST_NAME} nor {_INDEX}, and no file that "
        f"ends in {', '.join(_SUFFIXES)}"
    )


def _files_by_name(path: Path, name: str) -> list[Path]:
    """The files of a directory that hold tokens, by name; all of one kind, unless one is asked."""
    # A link to nowhere stays: reading it says what is missing.
    files = sorted(
        file for file in path.iterdir() if file.suffix in _SUFFIXES and not file.is_dir()
    )
    suffixes = {file.suffix for file in files}
    if name == "":
        if len(suffixes) > 1:
            raise FormatError(
                f"{path}: holds files that end in {' and '.join(sorted(suffixes))}; say which, "
                "with a pattern such as '*.bin'"
            )
        return files
    allowed = {suffix for suffix, kind in _SUFFIXES.items() if kind in ("", name)}
    return [file for file in files if file.suffix in allowed]


def _read_json(path: Path) -> Any:
    size_bytes = read_head(path, 1).size_bytes
    if size_bytes > _MAX_INDEX_BYTES:
        raise FormatError(
            f"{path}: {size_bytes:,} bytes, too large for an index; {_MAX_INDEX_BYTES:,} are read"
        )
    try:
        return json.loads(read_part(path, 0, size_bytes))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not valid JSON ({error})") from None


def _describe_index(path: Path, name: str, option: str | None) -> Manifest:
    from penstock.formats import litdata, mds

    index = _read_json(path / _INDEX)
    if isinstance(index, dict) and isinstance(index.get("chunks"), list) and name != "mds":
        return litdata.describe(path, index)
    if isinstance(index, dict) and isinstance(index.get("shards"), list) and name != "litdata":
        return mds.describe(path, index, _token_type(option))
    raise FormatError(f"{path / _INDEX}: lists neither chunks (litdata) nor shards (MDS)")


def _saved_by_datasets(path: Path) -> list[Path]:
    """The files that Hugging Face datasets lists in `state.json`."""
    listed = path / _HF_STATE
    state = _read_json(listed)
    try:
        names = [plain_name(listed, file["filename"]) for file in state["_data_files"]]
    except (KeyError, TypeError):
        raise FormatError(f"{listed}: lists no data files") from None
    refuse_repeats(listed, names)
    return [path / name for name in names]


def _token_type(option: str | None) -> str | None:
    types = {
        f"{kind}{8 * size}": f"<{kind[0]}{size}"
        for kind in ("uint", "int")
        for size in (1, 2, 4, 8)
    }
    return None if option is None else types[one_of("the type of tokens", option, types)]
