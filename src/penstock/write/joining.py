"""`finish`: from the parts that several writers wrote to one dataset."""

import os
from dataclasses import replace
from pathlib import Path

from penstock.atomic import hold_lock, lock_name, refuse_if_held
from penstock.errors import DatasetExistsError, FormatError, MissingDataError, UsageError
from penstock.formats import stream
from penstock.formats.checksums import publish_checked
from penstock.formats.job_marks import planned_in
from penstock.suggestions import did_you_mean_path


def finish(path: str | os.PathLike[str], *, parts: int | None = None) -> None:
    """Join the finished parts of a dataset, in the order of their numbers.

    With `parts`, exactly the parts 0 to `parts - 1` must be there; without, those that are there
    must be numbered without a gap.
    """
    directory = Path(path).absolute()
    if not directory.is_dir():
        raise MissingDataError(f"{directory}: no such directory{did_you_mean_path(directory)}")
    planned = planned_in(directory)
    if planned is not None:
        raise UsageError(f"{directory}: belongs to a plan; use penstock finish {planned}")
    join_parts(directory, parts)


def is_joined(directory: Path) -> bool:
    """Whether there is a whole dataset, and no part or plan that is left to finish."""
    is_left = any(directory.glob(f"*{stream.PART_SUFFIX}")) or planned_in(directory) is not None
    return (directory / stream.MANIFEST_NAME).exists() and not is_left


def join_parts(directory: Path, parts: int | None) -> None:
    """Join the finished parts of a dataset."""
    with hold_lock(directory, "finish", wait=True):
        for leftover in directory.glob("penstock.*.tmp"):
            leftover.unlink()
        if (directory / stream.MANIFEST_NAME).exists():
            raise DatasetExistsError(f"{directory / stream.MANIFEST_NAME}: finished already")
        for lock in sorted(directory.glob(".*.lock")):
            if lock.name != lock_name("finish"):
                refuse_if_held(lock)
        found = sorted(directory.glob(f"*{stream.PART_SUFFIX}"))
        expected = [
            directory / f"{part:05d}{stream.PART_SUFFIX}"
            for part in range(len(found) if parts is None else parts)
        ]
        if not found:
            raise MissingDataError(f"{directory}: holds no finished parts to join")
        if found != expected:
            missing = [path.name for path in expected if path not in found]
            surplus = [path.name for path in found if path not in expected]
            raise MissingDataError(
                f"{directory}: the parts are not complete: missing {missing[:5]}, "
                f"not expected {surplus[:5]}; write the missing parts, then finish again"
            )
        manifests = [stream.read_manifest(directory, part.name) for part in found]
        head = replace(manifests[0], shards=())
        for part, manifest in zip(found, manifests, strict=True):
            if replace(manifest, shards=()) != head:
                raise FormatError(
                    f"{part}: fields, vocab_size, tokenizer, bos_id, eos_id or split differ from "
                    f"those of {found[0].name}; all parts of a dataset share them"
                )
        shards = tuple(shard for manifest in manifests for shard in manifest.shards)
        text = stream.manifest_to_json(replace(head, shards=shards))
        publish_checked(directory / stream.MANIFEST_NAME, text)
        for part in found:
            part.unlink()
