"""Mixtures in files: TOML or JSON that says what `penstock.mix` is to make.

    seed = 0                      # and by, when_exhausted, num_samples, check_tokenizers
    view = "windows"              # what sources do not say themselves: view, seq_len and options
    seq_len = 2048

    [sources.web]
    data = "data/web"             # a path, a pattern or a list, relative to this file
    weight = 0.7                  # and shuffle, seed, max_epochs

    [sources.code]
    data = "data/code"
    view = "packed"
    weight = 0.3

    [[changes]]
    at = 1_000_000
    over = 100_000
    weights = { web = 0.4, code = 0.6 }

What else a source says goes to its view, such as `policy` or `mask_ends`; `format`, `split`,
`eos_id`, `bos_id`, `access` and `allow_outside` go to `penstock.open`. `slice = [start, stop]`,
`without = "ids.txt"` and `holdout = { every = 1000 }` leave samples or documents out.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.arguments import one_of
from penstock.errors import FormatError, MissingDataError, ReadError, UsageError
from penstock.mixing.mixture import Mixture
from penstock.mixing.source import MixtureSource, check_sources
from penstock.opening import open
from penstock.order.shuffle_text import parse_shuffle
from penstock.suggestions import did_you_mean
from penstock.views.view import View

SUFFIXES = (".toml", ".json")
_MAX_BYTES = 1 << 24
_MIXTURE = ("seed", "by", "when_exhausted", "num_samples", "check_tokenizers")
_SOURCE = ("weight", "shuffle", "seed", "max_epochs")
_OPENING = ("format", "split", "eos_id", "bos_id", "access", "allow_outside")
_VIEWS = ("windows", "packed", "documents")
_SLICING = ("slice", "without", "holdout")
_CHANGE = ("at", "over", "weights")


def is_mixture_file(path: str | Path) -> bool:
    """Whether a path names a file that describes a mixture; of JSON, by its content."""
    place = Path(path)
    if place.suffix not in SUFFIXES or not place.is_file():
        return False
    if place.suffix == ".toml":
        return True
    try:
        content = _parse(place)
    except (FormatError, ReadError):
        return False
    return isinstance(content, dict) and isinstance(content.get("sources"), dict)


def read_mixture(path: str | Path, **view_options: Any) -> Mixture:
    """Open what a file describes; `view_options` are more options of all views."""
    place = Path(path)
    content = _parse(place)
    try:
        return _build(content, place.parent, view_options)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def _parse(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise FormatError(f"{path}: {path.stat().st_size:,} bytes are too many for a mixture")
        content = path.read_bytes().decode()
        return tomllib.loads(content) if path.suffix == ".toml" else json.loads(content)
    except FileNotFoundError:
        raise MissingDataError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise FormatError(f"{path}: not valid {kind}: {error}") from None


def _build(content: Any, directory: Path, view_options: Mapping[str, Any]) -> Mixture:
    table = _table("the file", content)
    sources = _table("sources", table.pop("sources", None))
    changes = table.pop("changes", [])
    settings = {name: table.pop(name) for name in _MIXTURE if name in table}
    if not isinstance(changes, list):
        raise UsageError(f"changes is {changes!r:.60}; write [[changes]] before each")
    for name, value in table.items():  # what sources do not say themselves
        if isinstance(value, dict):
            hint = did_you_mean(name, ["sources", "changes"])
            raise UsageError(f"there is a table {name!r}; expected sources and changes{hint}")
    named = {
        name: _source(name, _table(f"sources.{name}", each), table, directory, view_options)
        for name, each in sources.items()
    }
    mixture = Mixture(check_sources(named), **settings)
    for each in changes:
        change = _table("a change", each)
        _check_names("a change", change, _CHANGE)
        if "at" not in change or "weights" not in change:
            raise UsageError("a change needs at = … and weights = { … }")
        weights = _table("weights of a change", change["weights"])
        mixture = mixture.change(change["at"], weights, over=change.get("over", 0))
    return mixture


def _source(
    name: str,
    table: dict[str, Any],
    defaults: Mapping[str, Any],
    directory: Path,
    view_options: Mapping[str, Any],
) -> MixtureSource:
    table = {**defaults, **table, **view_options}
    for needed in ("data", "weight", "seq_len"):
        if needed not in table:
            raise UsageError(f"source {name!r} has no {needed}")
    given = table.pop("data")
    paths = given if isinstance(given, list) else [given]
    if not paths or not all(isinstance(path, str) for path in paths):
        raise UsageError(f"source {name!r}: data is {given!r:.60}; it must be a path, or several")
    opening = {key: table.pop(key) for key in _OPENING if key in table}
    settings = {key: table.pop(key) for key in _SOURCE if key in table}
    if isinstance(settings.get("shuffle"), str):
        settings["shuffle"] = parse_shuffle(settings["shuffle"])
    kind = one_of(f"source {name!r}: view", table.pop("view", "windows"), _VIEWS)
    slicing: dict[str, Any] = {key: table.pop(key) for key in _SLICING if key in table}
    data = open([str(directory / path) for path in paths], **opening)
    try:
        view: View = getattr(data, kind)(**table)
    except TypeError as error:
        raise UsageError(f"source {name!r}: {error}") from None
    return MixtureSource(_sliced(name, view, slicing, directory), **settings)


def _sliced(name: str, view: View, slicing: Mapping[str, Any], directory: Path) -> View:
    if "holdout" in slicing:
        options = _table(f"source {name!r}: holdout", slicing["holdout"])
        view, _ = view.split(**options)
    if "without" in slicing:
        view = view.without(documents=directory / str(slicing["without"]))
    if "slice" in slicing:
        bounds = slicing["slice"]
        if not isinstance(bounds, list) or len(bounds) != 2:
            raise UsageError(f"source {name!r}: slice is {bounds!r:.60}; write [start, stop]")
        view = view.slice(*bounds)
    return view


def _table(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{what} is {value!r:.60}; expected a table")
    return dict(value)


def _check_names(what: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in table:
        if name not in known:
            hint = did_you_mean(name, known) or f"; it takes {', '.join(known)}"
            raise UsageError(f"{what} has no {name!r}{hint}")
