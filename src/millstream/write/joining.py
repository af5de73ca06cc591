"""Joining the parts that several writers have written to one dataset."""

from dataclasses import fields, replace
from pathlib import Path

from millstream.atomic import hold_lock, lock_name, refuse_if_held
from millstream.errors import DatasetExistsError, FormatError, MissingDataError
from millstream.formats import stream
from millstream.formats.checksums import publish_checked
from millstream.formats.job_marks import planned_in

_ARGUMENTS = {"objects_with_metadata": "encode or metadata"}
"""what a writer calls what it stores in a manifest, if that has another name"""


def is_joined(directory: Path) -> bool:
    """True if the dataset is finished, and no part or plan is left to finish."""
    is_left = any(directory.glob(f"*{stream.PART_SUFFIX}")) or planned_in(directory) is not None
    return (directory / stream.MANIFEST_NAME).exists() and not is_left


def remove_joined_parts(directory: Path) -> bool:
    """Remove the parts that a finished dataset lists; False if there are none.

    Whoever joined them was killed before it could remove them.
    """
    listed = {shard.name for shard in stream.read_manifest(directory).shards}
    joined = [
        part
        for part in directory.glob(f"*{stream.PART_SUFFIX}")
        if listed.issuperset(
            shard.name for shard in stream.read_manifest(directory, part.name).shards
        )
    ]
    for part in joined:
        part.unlink(missing_ok=True)
    return bool(joined)


def join_parts(directory: Path, parts: int | None) -> None:
    """Join the finished parts of a dataset, in the order of their numbers.

    With `parts`, exactly the parts 0 to `parts - 1` must be there; without, those that are there
    must be numbered without a gap.
    """
    with hold_lock(directory, "finish", wait=True):
        for leftover in directory.glob("millstream.*.tmp"):
            leftover.unlink()
        if (directory / stream.MANIFEST_NAME).exists():
            if remove_joined_parts(directory):
                return
            raise DatasetExistsError(
                f"{directory / stream.MANIFEST_NAME}: the dataset is finished already"
            )
        for lock in sorted(directory.glob(".*.lock")):
            if lock.name != lock_name("finish"):
                refuse_if_held(lock)
        found = sorted(directory.glob(f"*{stream.PART_SUFFIX}"))
        expected = [
            directory / f"{part:05d}{stream.PART_SUFFIX}"
            for part in range(len(found) if parts is None else parts)
        ]
        if not found:
            raise MissingDataError(f"{directory}: has no finished parts to join")
        if found != expected:
            missing = [path.name for path in expected if path not in found]
            surplus = [path.name for path in found if path not in expected]
            raise MissingDataError(
                f"{directory}: the parts are incomplete: missing {missing[:5]}, unexpected "
                f"{surplus[:5]}; write the missing parts, then finish again"
            )
        manifests = [stream.read_manifest(directory, part.name) for part in found]
        head = replace(manifests[0], shards=())
        for part, manifest in zip(found, manifests, strict=True):
            own = replace(manifest, shards=())
            if own != head:
                differing = [
                    _ARGUMENTS.get(each.name, each.name)
                    for each in fields(head)
                    if getattr(own, each.name) != getattr(head, each.name)
                ]
                raise FormatError(
                    f"{part}: {', '.join(differing)} differ from those of {found[0].name}; all "
                    "parts of a dataset must have the same"
                )
        shards = tuple(shard for manifest in manifests for shard in manifest.shards)
        text = stream.manifest_to_json(replace(head, shards=shards))
        publish_checked(directory / stream.MANIFEST_NAME, text)
        for part in found:
            part.unlink()
