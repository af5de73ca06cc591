"""`millstream.open`: any known format as one stream of records.

source_paths   which files and directories a path, pattern or list names
decoding       the copies of files that cannot be read in place
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from millstream.arguments import one_of
from millstream.dataset import Dataset
from millstream.errors import FormatError, UsageError
from millstream.formats.detection import describe, describe_listed
from millstream.formats.directories import companions_of
from millstream.formats.files import read_head
from millstream.formats.loss_masks import with_mask
from millstream.formats.record_types import fields_to_json
from millstream.formats.repeated_files import OpenedPaths
from millstream.formats.shard import Manifest
from millstream.formats.stream import FORMAT
from millstream.formats.undecoded import Described
from millstream.formats.wanted_columns import Wanted
from millstream.opening.decoding import decoded
from millstream.opening.source_paths import (
    DatasetSource,
    SourcePath,
    as_list,
    expand,
    find_listed,
    find_paths,
)
from millstream.read.eos_scan import find_documents
from millstream.read.local_reader import Access
from millstream.remote.at_once import at_once, local_paths
from millstream.remote.found_files import finding_files
from millstream.remote.mirror import find_mirrored, is_mirrored, naming_urls
from millstream.remote.options import Remote
from millstream.suggestions import did_you_mean

__all__ = ["DatasetSource", "expand", "open"]

_WITH_COLUMNS = ("arrow", "parquet")


@naming_urls()
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
    remote: Remote | None = None,
) -> Dataset:
    """Open a file, a directory, a pattern, a URL, or a list of them, in any known format.

    Opening reads manifests and headers and checks the files' sizes. `check_sizes=False` delays the
    check of our own files to the first read of each, for file systems where `stat` is slow and
    thousands of processes would call it at once. `access="mmap"` reads through memory maps: faster
    from the page cache, but a failing disk then kills the process (see `read.local_reader`).

    The format is detected. `format` names it where that is impossible, as in "flat:uint32". Files
    without document boundaries (nanoGPT's, llm.c's) are one document each, unless `bos_id` or
    `eos_id` says which token starts or ends a document; finding them reads the files once.

    If the file names of a directory or pattern show several splits (train, val, …), `split` must
    choose one; a list of files is opened as given. Spellings are equivalent: `split="val"` also
    finds `validation-00000-of-00001.parquet`.

    `file_list` names a file that caches the names and sizes of many files. The first process writes
    it. Others use it instead of searching the source, as long as every file keeps its size and
    modification time. You can also open such a list itself; if it names files outside of its
    directory, pass `allow_outside=True`.

    `loss_masks` are files with one byte per token, such as OLMo's label masks: one for each token
    file, in the same order. They become the field `loss_mask`.

    Arrow and Parquet columns that say which tokens to train on become that field too
    (docs/formats.md). `fields` are columns with one number per token. `metadata` are columns with
    one value per document, stored as JSON. `ignore` are columns to leave out whatever their names
    mean.

    URLs (`s3://`, `gs://`, `az://`, `http://`, `https://`) are read in place; `remote` says how
    they are reached and cached (docs/remote.md).

    >>> data = millstream.open(tmp / "data")
    >>> data.num_records, data.fields["token"]
    (100, dtype('uint16'))
    """
    if bos_id is not None and eos_id is not None:
        raise UsageError("give bos_id or eos_id, not both: documents are found by one of them")
    one_of("access", access, ("pread", "mmap"))
    wanted = None
    if fields or metadata or ignore:
        wanted = Wanted(fields=_names(fields), metadata=_names(metadata), ignore=_names(ignore))
    described, masks = _find(
        as_list(source),
        format,
        wanted,
        split,
        file_list,
        allow_outside,
        None if loss_masks is None else as_list(loss_masks),
        remote,
    )
    manifests = tuple(decoded(each) for each in described)
    if wanted is not None:
        _check_columns(manifests, wanted)
    if masks is not None:
        manifests = _with_masks(manifests, masks)
    if bos_id is not None or eos_id is not None:
        manifests = tuple(find_documents(each, bos_id=bos_id, eos_id=eos_id) for each in manifests)
    _check_same_records(manifests)
    _check_same_groups(manifests)
    if check_sizes:
        _check_own_sizes(manifests)
    if access == "mmap" and any(
        find_mirrored(shard.directory / shard.name)
        for manifest in manifests
        for shard in manifest.shards
    ):
        raise UsageError('access="mmap" is for local files; leave it out for URLs')
    data = Dataset(manifests, access)
    if data.num_records >= 1 << 63:
        raise FormatError(f"{data.num_records:,} records; a dataset has fewer than 2^63")
    return data


@finding_files
def _find(
    sources: list[DatasetSource],
    format: str | None,  # noqa: A002
    wanted: Wanted | None,
    split: str | None,
    file_list: DatasetSource | None,
    allow_outside: bool,
    loss_masks: list[DatasetSource] | None,
    remote: Remote | None,
) -> tuple[Sequence[Described], list[Path] | None]:
    """Find and describe the files of a source, and find those of its masks."""
    paths = local_paths(sources, remote, companions_of)
    described: Sequence[Described]
    if file_list is None:
        described = _describe(find_paths(paths, split), format, wanted, allow_outside)
    else:
        listed = find_listed(
            paths, format, local_paths([file_list], remote, companions_of)[0], split
        )
        described = describe_listed(listed, format, wanted)
    if loss_masks is None:
        return described, None
    masks = find_paths(local_paths(loss_masks, remote, companions_of), split)
    return described, [found.path for found in masks]


def _names(columns: str | Iterable[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _describe(
    found: list[SourcePath],
    format: str | None,  # noqa: A002
    wanted: Wanted | None,
    allow_outside: bool,
) -> list[Described]:
    """Describe all paths; refuse files that two of them lead to."""
    described, finished, reached = list[Described](), set[Path](), OpenedPaths()

    def describe_one(each: SourcePath, reached: OpenedPaths) -> list[Described]:
        return describe(
            each.path,
            format,
            wanted,
            split=each.split,
            allow_outside=allow_outside,
            finished=finished,
            reached=reached,
        )

    def describe_apart(each: SourcePath) -> tuple[list[Described], OpenedPaths]:
        own = OpenedPaths()
        return describe_one(each, own), own

    # The files of a directory are described at once; so are remote files that are named.
    files = [each for each in found if is_mirrored(each.path) and each.path.is_file()]
    apart = dict(zip(files, at_once(describe_apart, files, lambda each: each.path), strict=True))
    for each in found:
        if each in apart:
            reached.join(apart[each][1])
            described += apart[each][0]
        else:
            described += describe_one(each, reached)
    return described


def _check_columns(manifests: tuple[Manifest, ...], wanted: Wanted) -> None:
    """Refuse `fields`, `metadata` and `ignore` for formats without columns, and unknown names."""
    for manifest in manifests:
        if manifest.format not in _WITH_COLUMNS:
            raise UsageError(
                f"{_location(manifest)}: {manifest.format} has no columns such as "
                f"{', '.join(wanted.names)}; leave out fields, metadata and ignore"
            )
    from millstream.formats.token_columns import MEANT

    known = {name for manifest in manifests for name in manifest.ignorable}
    for name in wanted.ignore:
        if name not in known:
            hint = did_you_mean(name, [*MEANT, *known])
            raise UsageError(f"ignore: no file has a column {name!r}{hint}")


def _with_masks(manifests: tuple[Manifest, ...], masks: list[Path]) -> tuple[Manifest, ...]:
    if len(masks) != len(manifests):
        raise UsageError(
            f"{len(masks)} loss_masks for {len(manifests)} token files; give one for each"
        )
    pairs = zip(manifests, masks, strict=True)
    return tuple(with_mask(each, read_head(mask, 0)) for each, mask in pairs)


def _check_same_records(manifests: tuple[Manifest, ...]) -> None:
    for manifest in manifests[1:]:
        first = manifests[0]
        if _content(manifest) != _content(first) and manifest.fields == first.fields:
            raise FormatError(
                f"{_location(manifest)}: holds {_content(manifest)}, but {_location(first)} holds "
                f"{_content(first)}; open them one by one"
            )
        if (manifest.fields, manifest.apart) == (first.fields, first.apart):
            continue
        remedy = ""
        if manifest.fields.names == first.fields.names:
            remedy = "; write the files again with one type, or open them one by one"
        elif manifest.format in _WITH_COLUMNS:
            remedy = "; pass ignore=… to leave out a column that only some files have"
        raise FormatError(
            f"{_location(manifest)}: records are {fields_to_json(manifest.fields)}, but those of "
            f"{_location(first)} are {fields_to_json(first.fields)}; all files of a dataset need "
            f"the same record type{remedy}"
        )


def _check_same_groups(manifests: tuple[Manifest, ...]) -> None:
    for manifest in manifests[1:]:
        size, first = manifest.group_size, manifests[0].group_size
        if size != first:
            raise FormatError(
                f"{_location(manifest)}: documents come in groups of {size:,}, but those of "
                f"{_location(manifests[0])} in groups of {first:,}; open them one by one, and mix "
                "their views with millstream.mix"
            )


def _check_own_sizes(manifests: tuple[Manifest, ...]) -> None:
    """Compare the sizes of our own files; those of remote ones come with the first answer."""
    for manifest in manifests:
        for shard in manifest.shards if manifest.format == FORMAT else ():
            if find_mirrored(shard.directory / shard.name) is None:
                shard.check_sizes()


def _content(manifest: Manifest) -> str:
    """What documents are."""
    if not manifest.holds_objects:
        return "records"
    return f"objects {'with' if manifest.has_metadata else 'without'} metadata"


def _location(manifest: Manifest) -> str:
    """Where a dataset lies."""
    return manifest.decoded_from or next(
        (f"{each.directory}/{each.name}" for each in manifest.shards), "a dataset without shards"
    )
