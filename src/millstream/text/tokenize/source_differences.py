"""How the source of a job differs from the one it was begun with."""

import json
from collections.abc import Iterator
from typing import Any


def relax_source(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The source that was found, with bad rows treated as in this one, where that may change.

    Tasks that are done while bad rows are refused met none. From then on bad rows may be skipped,
    and documents that were too long may be allowed.
    """
    there = dict(theirs)
    if there["bad_rows"] == "refuse":
        there["bad_rows"] = mine["bad_rows"]
        there["max_document_bytes"] = max(mine["max_document_bytes"], there["max_document_bytes"])
    return there


def source_differences(mine: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """Each difference between two sources, in words."""
    here, there = json.loads(json.dumps(mine)), theirs
    if here.get("iterable"):
        yield "documents that come from Python cannot be read a second time"
    for name in sorted({*here, *there} - {"files"}):
        if here.get(name) == there.get(name):
            continue
        if name == "chat":
            yield "other conversations: another chat template, columns, loss_on or variables"
        else:
            yield f"{name} is {there.get(name)} there, {here.get(name)} here"
    my_files, their_files = _by_path(here), _by_path(there)
    for path in sorted({*my_files, *their_files}):
        if path not in their_files:
            yield f"{path} was not among the files"
        elif path not in my_files:
            yield f"{path} is no longer among the files"
        elif my_files[path] != their_files[path]:
            yield f"{path} has changed since"


def _by_path(source: dict[str, Any]) -> dict[str, Any]:
    return {file["path"]: file for file in source.get("files", [])}
