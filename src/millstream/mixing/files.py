"""Mixtures in files: TOML or JSON that says what `millstream.mix` is to make.

    seed = 0                      # and by, when_exhausted, num_samples, check_tokenizers
    view = "windows"              # what sources do not say themselves: view, seq_len and options
    seq_len = 2048

    [sources.web]
    data = "data/web"             # a path, a pattern, a URL or a list, relative to this file
    weight = 0.7                  # and shuffle, seed, max_epochs

    [sources.code]
    data = "data/code"
    view = "packed"
    weight = 0.3

    [[changes]]
    at = 1_000_000
    over = 100_000
    weights = { web = 0.4, code = 0.6 }

A source with weight 0 begins at the first change that names it. What else a source says goes to its
view, such as `policy` or `mask_ends`; `format`, `split`, `eos_id`, `bos_id`, `access` and
`allow_outside` go to `millstream.open`. `slice = [start, stop]`, `without = "ids.txt"` and
`holdout = { every = 1000 }` leave samples or documents out.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from millstream.arguments import one_of
from millstream.dataset import Dataset
from millstream.errors import FormatError, MillstreamError, MissingDataError, UsageError
from millstream.formats.files import open_regular
from millstream.mixing.mixture import Mixture
from millstream.mixing.source import MixtureSource
from millstream.opening import open
from millstream.order.shuffle_text import parse_shuffle
from millstream.remote.options import Remote
from millstream.remote.urls import is_remote
from millstream.suggestions import closest, did_you_mean
from millstream.views.view import View

SUFFIXES = (".toml", ".json")
_MAX_BYTES = 1 << 24
_MIXTURE = ("seed", "by", "when_exhausted", "num_samples", "check_tokenizers")
_SOURCE = ("weight", "shuffle", "seed", "max_epochs")
_OPENING = ("format", "split", "eos_id", "bos_id", "access", "allow_outside")
_VIEWS = ("windows", "packed", "documents")
_SLICING = ("slice", "without", "holdout")
_HOLDOUT = ("every", "first", "folds", "fold")
_CHANGE = ("at", "over", "weights")
_OF_VIEWS = {
    option: None
    for kind in _VIEWS
    for option in signature(getattr(Dataset, kind)).parameters
    if option != "self"
}
_OF_SOURCES = ("data", "view", *_SOURCE, *_OPENING, *_SLICING, *_OF_VIEWS)


def is_mixture_file(path: str | Path) -> bool:
    """Whether a path names a file that describes a mixture; of JSON, by its content."""
    place = Path(path)
    if place.suffix not in SUFFIXES or not place.is_file():
        return False
    if place.suffix == ".toml":
        return True
    try:
        content = _parse(place)
    except MillstreamError:
        return False
    return isinstance(content, dict) and isinstance(content.get("sources"), dict)


def read_mixture(path: str | Path, *, remote: Remote | None = None, **view_options: Any) -> Mixture:
    """Open what a file describes; `view_options` are more options of all views.

    `remote` says how the URLs of all sources are reached.
    """
    place = Path(path)
    content = _parse(place)
    try:
        return _build(content, place.parent, remote, view_options)
    except MissingDataError as error:
        raise MissingDataError(f"{place}: {error}") from error
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def _parse(path: Path) -> Any:
    if path.suffix not in SUFFIXES or "\0" in str(path):
        raise UsageError(f"{path}: expected the path of a .toml or .json file")
    with open_regular(path) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise FormatError(f"{path}: more than {_MAX_BYTES:,} bytes are too many for a mixture")
    try:
        text = content.decode()
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise FormatError(f"{path}: not valid {kind}: {error}") from None


def _build(
    content: Any, directory: Path, remote: Remote | None, view_options: Mapping[str, Any]
) -> Mixture:
    table = _table("the file", content)
    if "sources" not in table:
        raise UsageError("no sources found; write [sources.NAME] before each of them")
    sources = _table("sources", table.pop("sources"))
    changes = table.pop("changes", [])
    settings = {name: table.pop(name) for name in _MIXTURE if name in table}
    if not isinstance(changes, list):
        raise UsageError(f"changes is {changes!r:.60}; write [[changes]] before each")
    for name, value in table.items():  # what sources do not say themselves
        if isinstance(value, dict):
            hint = did_you_mean(name, ["sources", "changes"])
            raise UsageError(f"there is a table {name!r}; expected sources and changes{hint}")
    _check_names("the file", table, (*_OF_SOURCES, *_MIXTURE, "sources", "changes"))
    named = dict[str, MixtureSource]()
    for name, each in sources.items():
        own = _table(f"sources.{name}", each)
        _check_names(f"source {name!r}", own, _OF_SOURCES)
        try:
            named[name] = _source({**table, **own, **view_options}, directory, remote)
        except MissingDataError as error:
            raise MissingDataError(f"source {name!r}: {error}") from error
        except UsageError as error:
            raise UsageError(f"source {name!r}: {error}") from error
    later = {name: source for name, source in named.items() if source.weight == 0}
    mixture = Mixture({name: named[name] for name in named if name not in later}, **settings)
    for each in changes:
        change = _table("a change", each)
        _check_names("a change", change, _CHANGE)
        if "at" not in change or "weights" not in change:
            raise UsageError("a change needs at = … and weights = { … }")
        weights = _table("weights of a change", change["weights"])
        added = {
            name: replace(later.pop(name), weight=weights.pop(name))
            for name in list(weights)
            if name in later
        }
        mixture = mixture.change(change["at"], weights, over=change.get("over", 0), sources=added)
    if later:
        raise UsageError(f"source {next(iter(later))!r} has weight 0, and no change raises it")
    return mixture


def _source(table: dict[str, Any], directory: Path, remote: Remote | None) -> MixtureSource:
    for needed in ("data", "weight", "seq_len"):
        if needed not in table:
            found = closest(needed, table)
            hint = f"; is {found!r} misspelt?" if found else ""
            raise UsageError(f"{needed} is missing{hint}")
    given = table.pop("data")
    paths = given if isinstance(given, list) else [given]
    if not paths or not all(map(_is_path, paths)):
        raise UsageError(f"data is {given!r:.60}; it must be a path, or several")
    for key in ("format", "split"):
        if not isinstance(table.get(key, ""), str):
            raise UsageError(f"{key} is {table[key]!r:.60}; it must be a text")
    opening = {key: table.pop(key) for key in _OPENING if key in table}
    settings = {key: table.pop(key) for key in _SOURCE if key in table}
    if isinstance(settings.get("shuffle"), str):
        settings["shuffle"] = parse_shuffle(settings["shuffle"])
    kind = one_of("view", table.pop("view", "windows"), _VIEWS)
    slicing: dict[str, Any] = {key: table.pop(key) for key in _SLICING if key in table}
    located = [path if is_remote(path) else str(_located(path, directory)) for path in paths]
    data = open(located, remote=remote, **opening)
    try:
        view: View = getattr(data, kind)(**table)
    except TypeError as error:
        raise UsageError(str(error)) from None
    return MixtureSource(_sliced(view, slicing, directory), **settings)


def _sliced(view: View, slicing: Mapping[str, Any], directory: Path) -> View:
    if "holdout" in slicing:
        options = _table("holdout", slicing["holdout"])
        _check_names("holdout", options, _HOLDOUT)
        view, _ = view.split(**options)
    if "without" in slicing:
        path = slicing["without"]
        if not _is_path(path):
            raise UsageError(f"without is {path!r:.60}; it must be the path of a file")
        view = view.without(documents=_located(path, directory))
    if "slice" in slicing:
        bounds = slicing["slice"]
        if not isinstance(bounds, list) or [type(each) for each in bounds] != [int, int]:
            raise UsageError(f"slice is {bounds!r:.60}; write [start, stop]")
        view = view.slice(*bounds)
    return view


def _located(path: str, directory: Path) -> Path:
    """A path of the file; relative ones start at its directory."""
    return directory / Path(path).expanduser()


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _table(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{what} is {value!r:.60}; expected a table")
    return dict(value)


def _check_names(what: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in table:
        if name not in known:
            hint = did_you_mean(name, known) or f"; it takes {', '.join(known)}"
            raise UsageError(f"{what} has no {name!r}{hint}")
