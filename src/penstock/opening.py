"""Opening datasets: files, directories, patterns and lists, in any known format, as one stream."""

import glob
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.arguments import one_of
from penstock.dataset import Dataset
from penstock.errors import FormatError, MissingDataError, UsageError
from penstock.formats.detection import FINISHED, data_files, data_of, describe, describe_listed
from penstock.formats.file_list import FILE_LIST, ListedFile, list_files
from penstock.formats.files import read_head
from penstock.formats.masks import with_mask
from penstock.formats.shard import STREAM, Manifest
from penstock.formats.stream import FORMAT, fields_to_json
from penstock.formats.wanted import Wanted
from penstock.read.local import Access
from penstock.read.scan import find_documents

Source = str | os.PathLike[str]


def open(
    source: Source | Iterable[Source],
    *,
    format: str | None = None,  # noqa: A002
    access: Access = "pread",
    check_sizes: bool = True,
    bos_id: int | None = None,
    eos_id: int | None = None,
    file_list: Source | None = None,
    loss_masks: Source | Iterable[Source] | None = None,
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

    `file_list` names a file in which the names and sizes of many files are kept. It is made by the
    first process that comes, and used by all others while every file has that size and time; then
    the source is not searched again. Such a list can also be opened itself.

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
        manifests = _describe(_find(source), format, wanted)
    else:
        listed = _find_listed(source, format, file_list)
        manifests = tuple(describe_listed(listed, format, wanted))
    if wanted is not None:
        _refuse_columns(manifests, wanted)
    if loss_masks is not None:
        manifests = _with_masks(manifests, _find(loss_masks))
    if bos_id is not None or eos_id is not None:
        manifests = tuple(find_documents(each, bos_id=bos_id, eos_id=eos_id) for each in manifests)
    for manifest in manifests:
        if (manifest.fields, manifest.apart) != (manifests[0].fields, manifests[0].apart):
            name, first = _name(manifest), _name(manifests[0])
            raise FormatError(
                f"{name}: records are {fields_to_json(manifest.fields)}, those of {first} are "
                f"{fields_to_json(manifests[0].fields)}; only equal records make one stream"
            )
        for shard in manifest.shards if check_sizes and manifest.format == FORMAT else ():
            shard.check_sizes()
    data = Dataset(manifests, access)
    if data.num_records >= 1 << 63:
        raise FormatError(f"{data.num_records:,} records are too many")
    return data


def _name(manifest: Manifest) -> str:
    """Where the first shard of a dataset lies."""
    return next((f"{each.directory}/{each.name}" for each in manifest.shards), "one without shards")


def _with_masks(manifests: tuple[Manifest, ...], masks: list[Path]) -> tuple[Manifest, ...]:
    if len(masks) != len(manifests):
        raise UsageError(f"{len(masks)} loss_masks for {len(manifests)} files of tokens")
    pairs = zip(manifests, masks, strict=True)
    return tuple(with_mask(each, read_head(mask, 0)) for each, mask in pairs)


def _names(columns: str | Iterable[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _refuse_columns(manifests: tuple[Manifest, ...], wanted: Wanted) -> None:
    for manifest in manifests:
        if manifest.format not in ("arrow", "parquet"):
            raise UsageError(
                f"{_name(manifest)}: is {manifest.format}, which has no columns such as "
                f"{', '.join(wanted.names)}; leave out fields, metadata and ignore"
            )


def _describe(
    paths: list[Path],
    format: str | None,  # noqa: A002
    wanted: Wanted | None,
) -> tuple[Manifest, ...]:
    """What is known of all paths; tokens that two of them lead to are a mistake."""
    manifests, given = [], dict[str, Path]()
    for path in _without_companions(paths):
        for manifest in describe(path, format, wanted):
            manifests.append(manifest)
            for stored in {shard.files[STREAM].path for shard in manifest.shards} - {""}:
                if given.setdefault(stored, path) != path:
                    raise FormatError(
                        f"{stored}: is reached twice, by {given[stored]} and {path}; leave one out"
                    )
    return tuple(manifests)


def _without_companions(paths: list[Path]) -> list[Path]:
    """Leave out what only belongs to others that are there, as `*` brings it along."""
    there = set(paths)
    directories = {path.parent for path in paths if path.name != FILE_LIST}
    return [
        path
        for path in paths
        if data_of(path) not in there
        and not (path.name == FILE_LIST and path.parent in directories)
        and path.name != FINISHED
    ]


def _find_listed(
    source: Source | Iterable[Source],
    format: str | None,  # noqa: A002
    file_list: Source,
) -> list[ListedFile]:
    """The files of the source, by a list of them that is kept."""
    sources, listed = _as_list(source), Path(file_list).expanduser().absolute()

    def find() -> list[Path]:
        found = _without_companions(_find(sources))
        return [file for path in found for file in data_files(path, format)]

    files = list(list_files(listed, listed.parent, find))
    _refuse_strangers([file.path for file in files], sources, listed)
    return files


def _refuse_strangers(paths: list[Path], sources: list[Source], listed: Path) -> None:
    """Notice a list that was made for something else."""
    roots = []
    for source in sources:
        whole = os.path.normpath(Path(os.path.expanduser(source)).absolute())  # noqa: PTH111
        fixed = itertools.takewhile(lambda part: not glob.has_magic(part), Path(whole).parts)
        roots.append(Path(*fixed))
    for path in paths:
        if not any(Path(os.path.normpath(path)).is_relative_to(root) for root in roots):
            raise UsageError(
                f"{listed}: lists {path}, which is not of {', '.join(map(str, sources)):.200}; "
                "give this dataset a list of its own"
            )


def _find(source: Source | Iterable[Source]) -> list[Path]:
    """The files and directories that are meant, in order."""
    paths = [path for each in _as_list(source) for path in _expand(each)]
    if not paths:
        raise UsageError("nothing to open: the list is empty")
    return paths


def _as_list(source: Source | Iterable[Source]) -> list[Source]:
    if isinstance(source, str | os.PathLike):
        return [source]
    sources = list(source) if isinstance(source, Iterable) else [source]
    if not all(isinstance(each, str | os.PathLike) for each in sources):
        raise UsageError(f"open takes a path, a pattern, or a list of them, not {source!r:.80}")
    return sources


def _expand(source: Source) -> list[Path]:
    source = os.path.expanduser(source)  # noqa: PTH111 (a pattern is no path)
    path = Path(source).absolute()  # reading goes on after the user changes directory
    if os.path.lexists(path) or not glob.has_magic(str(source)):
        return [path]
    found = sorted(Path(match).absolute() for match in glob.glob(str(source), recursive=True))  # noqa: PTH207
    if not found:
        raise MissingDataError(f"{source}: the pattern matches nothing")
    return found
