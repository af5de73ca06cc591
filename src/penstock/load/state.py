"""Versions of saved states: what is read, and how states may grow.

1   exactly the keys that its kind of loader had; read for ever
2   these, and any others. A key that is not known here was written by a later Penstock, and is
ignored, unless the state names it in the list `requires`: then it changes what follows, and
the state is refused.
"""

from collections.abc import Sequence
from typing import Any

from penstock._version import __version__
from penstock.errors import StateError

State = dict[str, Any]

# What all states begin with; `penstock` says who wrote it, for people who look for a mistake.
HEADER: State = {"version": 2, "penstock": __version__}


def check_keys(state: Any, keys: Sequence[str], kind: str) -> None:
    """Refuse what is not a state of a `kind`, all of which have `keys`."""
    if not isinstance(state, dict):
        raise StateError(f"not a state of a {kind}: found a {type(state).__name__}, not a dict")
    version, found = state.get("version"), sorted(map(str, state))
    expected = sorted(["version", *keys])
    if not set(expected) <= set(found) or (version == 1 and found != expected):
        raise StateError(
            f"not a state of a {kind}: expected the keys {expected}, found {found!s:.200}"
        )
    if type(version) is not int or version not in (1, 2):
        raise StateError(
            f"the state has version {version!r:.40}; this Penstock ({__version__}) reads versions "
            "1 and 2, and a later one may read this"
        )
    required = state.get("requires", [])
    if not isinstance(required, list) or any(key not in keys for key in required):
        raise StateError(
            f"the state requires {required!r:.100}, not all of which this Penstock ({__version__}) "
            f"knows; penstock {state.get('penstock', '(a later one)')!s:.40} has written it"
        )


def list_differences(state: State, identity: State) -> str:
    """What a state says of itself that is not so here; empty if all is."""
    return "; ".join(
        f"{key}: saved {state[key]!r}, here {value!r}"
        for key, value in identity.items()
        if state[key] != value
    )
