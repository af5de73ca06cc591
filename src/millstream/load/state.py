"""The versions of saved states, and the checks that all loaders share.

1   exactly the keys of its loader; still readable
2   these keys and possibly more. An unknown key was written by a later Millstream and is ignored,
    unless the state lists it in `requires`: then it affects the rows, and the state is rejected.
"""

from collections.abc import Callable, Sequence
from typing import Any

from millstream._version import __version__
from millstream.errors import StateError

State = dict[str, Any]

# The start of every state; `millstream` is the version that wrote it, for debugging.
HEADER: State = {"version": 2, "millstream": __version__}


def check_keys(state: Any, keys: Sequence[str], kind: str) -> None:
    """Raise unless `state` is a state of a loader of this `kind`, with these `keys`."""
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
            f"the state has version {version!r:.40}, but Millstream {__version__} reads versions 1 "
            "and 2; a later Millstream may read it"
        )
    required = state.get("requires", [])
    if not isinstance(required, list) or any(key not in keys for key in required):
        raise StateError(
            f"the state requires {required!r:.100}, and Millstream {__version__} does not know all "
            f"of these; it was written by Millstream "
            f"{state.get('millstream', '(a later one)')!s:.40}"
        )


def check_identity(state: State, identity: State, argument_for: Callable[[str, Any], str]) -> None:
    """Raise if the state is of different rows; name the arguments that would continue it."""
    differing = [key for key, value in identity.items() if state[key] != value]
    if not differing:
        return
    found = "; ".join(
        f"{key} was {state[key]!r:.200} and is {identity[key]!r:.200}" for key in differing
    )
    arguments = [argument_for(key, state[key]) for key in differing]
    remedy = ""
    if all(arguments):
        remedy = f"; to continue it, create the loader with {', '.join(arguments)}"
    raise StateError(f"the state was saved by a loader of different rows: {found}{remedy}")
