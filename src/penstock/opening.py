"""Opening datasets: files, directories, patterns and lists, in any known format, as one stream."""

import glob
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from penstock.arguments import one_of
from penstock.dataset import Dataset
from penstock.errors import FormatError, MissingDataError, UsageError
from penstock.formats.checksums import CHECKSUMS
from penstock.formats.detection import data_files, describe, describe_listed
from penstock.formats.directories import data_of, divide_files, refuse_cached
from penstock.formats.file_list import FILE_LIST, ListedFile, list_files
from penstock.formats.files import OpenedPaths, read_head
from penstock.formats.job_marks import FINISHED
from penstock.formats.masks import with_mask
from penstock.formats.shard import Manifest
from penstock.formats.splits import choose
from penstock.formats.stream import FORMAT, fields_to_json
from penstock.formats.wanted_columns import Wanted
from penstock.paths import local_path
from penstock.read.eos_scan import find_documents
from penstock.read.local_reader import Access
from penstock.suggestions import did_you_mean

DatasetSource = str | os.PathLike[str]
_WITH_COLUMNS = ("arrow", "parquet")


def open(
    source: DatasetSource | Iterable[DatasetSource],
    *,
    format: str | None = None,  # noqa: A002
    access: Access = "pread",
    check_sizes: bool = True,
    bos_id: int | None = None,
    eos_id: int | None = None,
    split: str | None = None,
    file_list: DatasetSource | None = None,
    allow_outside: bool = False,
    loss_masks: DatasetSource | Iterable[DatasetSource] | None = None,
    fields: str | Iterable[str] = (),
    metadata: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
) -> Dataset:
    """Open a file, a directory, a pattern, or a list of them, in any known format, as one dataset.

    Opening reads manifests and headers and asks for the files' sizes. `check_sizes=False` leaves
    that to the first read of each of our own files, for file systems on which asking is slow and
    thousands of processes would ask at once. `access="mmap"` reads through memory maps: faster from
    the page cache, but a failing disk then ends the process (see `read.local`).

    The format is found out; `format` says it where that cannot be, as in "flat:uint32". Files that
    do not know their documents (nanoGPT's, llm.c's) are one each, or are cut before every `bos_id`
    or after every `eos_id`, which reads them once.

    A directory or a pattern with files of several splits, by their names (train, val, …), is
    refused unless `split` says which; a list of files is opened as it is. Spellings are the same:
    `split="val"` finds `validation-00000-of-00001.parquet` too.

    `file_list` names a file in which the names and sizes of many files are kept. It is made by the
    first process that comes, and used by all others while every file has that size and time; then
    the source is not searched again. Such a list can also be opened itself; one that names files
    outside of its directory only with `allow_outside`.

    `loss_masks` are files with a byte for every token, one for each file of tokens and in their
    order, as OLMo's label masks; they become the field `loss_mask`.

    Of the columns of Arrow and Parquet, those that say what to train on become that field too
    (docs/formats.md). `fields` are columns with a number for each token, `metadata` those with a
    value for each document, which it keeps as JSON; `ignore` are left out whatever they mean.

    >>> data = penstock.open(tmp / "data")
    >>> data.num_records, data.fields["token"]
    (100, dtype('uint16'))
    """
    if bos_id is not None and eos_id is not None:
        raise UsageError("documents are found by bos_id or by eos_id, not by both")
    one_of("access", access, ("pread", "mmap"))
    wanted = None
    if fields or metadata or ignore:
        wanted = Wanted(fields=_names(fields), metadata=_names(metadata), ignore=_names(ignore))
    if file_list is None:
        manifests = _describe(_find(source, split), format, wanted, allow_outside)
    else:
        files = _find_listed(source, format, file_list, split)
        manifests = tuple(describe_listed(files, format, wanted))
    if wanted is not None:
        _refuse_columns(manifests, wanted)
    if loss_masks is not None:
        manifests = _with_masks(manifests, [found.path for found in _find(loss_masks, split)])
    if bos_id is not None or eos_id is not None:
        manifests = tuple(find_documents(each, bos_id=bos_id, eos_id=eos_id) for each in manifests)
    for manifest in manifests:
        if (manifest.fields, manifest.apart) != (manifests[0].fields, manifests[0].apart):
            name, first = _name(manifest), _name(manifests[0])
            hint = ""
            if manifest.fields.names == manifests[0].fields.names:
                hint = "; write the files again with one type, or open them one by one"
            elif manifest.format in _WITH_COLUMNS:
                hint = " (ignore=… leaves out a column that only some files have)"
            raise FormatError(
                f"{name}: records are {fields_to_json(manifest.fields)}, those of {first} are "
                f"{fields_to_json(manifests[0].fields)}; only equal records make one stream{hint}"
            )
        for shard in manifest.shards if check_sizes and manifest.format == FORMAT else ():
            shard.check_sizes()
    data = Dataset(manifests, access)
    if data.num_records >= 1 << 63:
        raise FormatError(f"{data.num_records:,} records are too many")
    return data


def _name(manifest: Manifest) -> str:
    """Where a dataset lies."""
    return manifest.decoded_from or next(
        (f"{each.directory}/{each.name}" for each in manifest.shards), "one without shards"
    )


def _with_masks(manifests: tuple[Manifest, ...], masks: list[Path]) -> tuple[Manifest, ...]:
    if len(masks) != len(manifests):
        raise UsageError(f"{len(masks)} loss_masks for {len(manifests)} files of tokens")
    pairs = zip(manifests, masks, strict=True)
    return tuple(with_mask(each, read_head(mask, 0)) for each, mask in pairs)


def _names(columns: str | Iterable[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _refuse_columns(manifests: tuple[Manifest, ...], wanted: Wanted) -> None:
    for manifest in manifests:
        if manifest.format not in _WITH_COLUMNS:
            raise UsageError(
                f"{_name(manifest)}: is {manifest.format}, which has no columns such as "
                f"{', '.join(wanted.names)}; leave out fields, metadata and ignore"
            )
    from penstock.formats.token_columns import MEANT

    known = {name for manifest in manifests for name in manifest.ignorable}
    for name in wanted.ignore:
        if name not in known:
            hint = did_you_mean(name, [*MEANT, *known])
            raise UsageError(f"ignore: no file has a column {name!r}{hint}")


class _FoundFiles(NamedTuple):
    """A file or a directory that the source means, and the split to choose in it."""

    path: Path
    split: str | None


def _describe(
    found: list[_FoundFiles],
    format: str | None,  # noqa: A002
    wanted: Wanted | None,
    allow_outside: bool,
) -> tuple[Manifest, ...]:
    """What is known of all paths; tokens that two of them lead to are a mistake."""
    manifests, finished, reached = list[Manifest](), set[Path](), OpenedPaths()
    for each in found:
        manifests += describe(
            each.path,
            format,
            wanted,
            split=each.split,
            allow_outside=allow_outside,
            finished=finished,
            reached=reached,
        )
    return tuple(manifests)


def _without_companions(found: list[_FoundFiles]) -> list[_FoundFiles]:
    """Leave out what only belongs to others that are there, as `*` brings it along."""
    there = {each.path for each in found}
    directories = {path.parent for path in there if path.name != FILE_LIST}
    return [
        each
        for each in found
        if data_of(each.path) not in there
        and not (each.path.name == FILE_LIST and each.path.parent in directories)
        and each.path.name != FINISHED
        and not (each.path.suffix == CHECKSUMS and len(there) > 1)
    ]


def _find_listed(
    source: DatasetSource | Iterable[DatasetSource],
    format: str | None,  # noqa: A002
    file_list: DatasetSource,
    split: str | None,
) -> list[ListedFile]:
    """The files of the source, by a list of them that is kept."""
    sources, listed = _as_list(source), Path(local_path(file_list)).absolute()

    def find() -> list[Path]:
        # The list is of the whole source, and serves every split of it.
        found = [_FoundFiles(path, None) for each in sources for path in _match(local_path(each))]
        found = _without_companions(found)
        return [file for each in found for file in data_files(each.path, format)]

    files = [file for file in list_files(listed, listed.parent, find) if data_of(file.path) is None]
    if not files:
        raise FormatError(f"{listed}: lists no file with tokens")
    chosen = list[int]()
    for root, paths in _below(files, sources, listed).items():
        numbers = list(paths)
        splits = divide_files(list(paths.values()), len(root), split)
        chosen += [numbers[k] for k in choose(root, splits, split)]
    return [files[number] for number in sorted(chosen)]


def _below(
    files: list[ListedFile], sources: list[DatasetSource], listed: Path
) -> dict[str, dict[int, str]]:
    """Which of the files, by their numbers, lie below which source, and their paths."""
    roots = {os.path.normpath(_root(local_path(each))): dict[int, str]() for each in sources}
    for number, file in enumerate(files):
        path = os.path.normpath(file.path)
        for root, paths in roots.items():
            if path == root or path.startswith(os.path.join(root, "")):  # noqa: PTH118
                paths[number] = path
                break
        else:
            raise UsageError(
                f"{listed}: lists {file.path}, which is not of "
                f"{', '.join(map(str, sources)):.200}; give this dataset a list of its own"
            )
    return {root: paths for root, paths in roots.items() if paths}


def _find(source: DatasetSource | Iterable[DatasetSource], split: str | None) -> list[_FoundFiles]:
    """The files and directories that are meant, in order."""
    sources = _as_list(source)
    if not sources:
        raise UsageError("nothing to open: the list is empty")
    found = [each for one in sources for each in _choose(one, split)]
    return found if len(found) == 1 else _without_companions(found)


def expand(sources: list[str]) -> list[str]:
    """The directories and files that are meant, where one of several is a directory; else none."""
    found = [_FoundFiles(path, None) for each in sources for path in _match(local_path(each))]
    paths = [each.path for each in _without_companions(found)]
    is_several = len(paths) > 1 and any(path.is_dir() for path in paths)
    return [str(path) for path in paths] if is_several else []


def _choose(source: DatasetSource, split: str | None) -> list[_FoundFiles]:
    """What a path or a pattern stands for, of one split."""
    text = local_path(source)
    if not text:
        raise UsageError("nothing to open: the path is empty; write '.' for this directory")
    if not _is_pattern(text):
        return [_FoundFiles(Path(text).absolute(), split)]  # reading goes on in another directory
    found = [_FoundFiles(path, split) for path in _match(text)]
    refuse_cached(text, [str(each.path) for each in found if each.path.suffix == ".arrow"])
    below = len(str(_root(text)))
    splits = divide_files([str(each.path) for each in found], below, split)
    if len(splits) > 1:  # what only belongs to others must not count
        found = _without_companions(found)
        splits = divide_files([str(each.path) for each in found], below, split)
    if set(splits) == {""}:
        return found
    return [_FoundFiles(found[number].path, None) for number in choose(source, splits, split)]


def _as_list(source: DatasetSource | Iterable[DatasetSource]) -> list[DatasetSource]:
    if isinstance(source, str | os.PathLike):
        return [source]
    sources = list(source) if isinstance(source, Iterable) else [source]
    if not all(isinstance(each, str | os.PathLike) for each in sources):
        raise UsageError(f"open takes a path, a pattern, or a list of them, not {source!r:.80}")
    return sources


def _match(text: str) -> list[Path]:
    """What a path or a pattern stands for."""
    if not _is_pattern(text):
        return [Path(text).absolute()]
    found = sorted(Path(match).absolute() for match in glob.glob(text, recursive=True))  # noqa: PTH207
    if not found:
        raise MissingDataError(f"{text}: the pattern matches nothing")
    return found


def _is_pattern(text: str) -> bool:
    return glob.has_magic(text) and not os.path.lexists(text)


def _root(text: str) -> Path:
    """The part of a path or a pattern that is fixed."""
    whole = Path(text).absolute()
    if not _is_pattern(text):
        return whole
    return Path(*itertools.takewhile(lambda part: not glob.has_magic(part), whole.parts))
