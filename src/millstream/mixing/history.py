"""What a saved state says about a mixture, and whether a mixture can continue it.

A state lists the shares from position 0 on and every change of them, the sources that had run out,
and what each source is. Another mixture may continue it if all of that is the same as far as the
state got; what comes later may differ.
"""

from operator import index
from typing import Any, NamedTuple

from millstream.errors import StateError
from millstream.mixing.mixture import Mixture
from millstream.order.mixing import DENOMINATOR

_VERSION = 1


class _Past(NamedTuple):
    """What decided the rows before a position."""

    changes: list[Any]
    exhausted: list[Any]
    sources: dict[str, str]


def order_in_state(mixture: Mixture) -> dict[str, Any]:
    """What a state says about the order: `[name, share]` of each source with a share, by change."""
    names = mixture.names
    return {
        "mixture": _VERSION,
        "changes": [
            [
                change.at,
                change.over,
                [[name, share] for name, share in zip(names, change.shares, strict=True) if share],
            ]
            for change in mixture.changes
        ],
        "exhausted": [[at, names[source]] for at, source in mixture.order.exhausted],
    }


def sources_in_state(mixture: Mixture) -> dict[str, str]:
    """What a state says about the views: for each source, its view and its order."""
    views, orders = mixture.sources, mixture.order.orders
    return {
        name: f"{view.fingerprint}; {order.fingerprint}, seed {order.seed}"
        for name, view, order in zip(mixture.names, views, orders, strict=True)
    }


def check_past(mixture: Mixture, position: int, order: Any, sources: Any) -> None:
    """Raise unless a mixture has the past of a state that was saved at a position."""
    then = _past(position, order, sources)
    now = _past(position, order_in_state(mixture), sources_in_state(mixture))
    for name, source in then.sources.items():
        found = now.sources.get(name)
        if found != source:
            raise StateError(
                f"source {name!r} of the mixture was {source!r:.200} and is {found!r:.200}, but "
                f"it has been read before position {position:,}"
            )
    if then.changes != now.changes:
        raise StateError(
            f"the mixture does not match the saved run before position {position:,}: its weights "
            f"were {_shown(then.changes)!s:.300} and are {_shown(now.changes)!s:.300}; use the "
            "mixture of that run, and mixture.change(at=…) from that position on"
        )
    if then.exhausted != now.exhausted:
        raise StateError(
            f"the mixture does not match the saved run before position {position:,}: sources ran "
            f"out at {then.exhausted!r:.200}, and now run out at {now.exhausted!r:.200}; use the "
            "max_epochs of that run"
        )


def _shown(changes: list[Any]) -> str:
    """Changes in words: `from 0: web 70 %, code 30 %; from 500 over 100: …`."""
    words = []
    for at, over, shares in changes:
        ramp = f" over {over}" if over else ""
        listed = ", ".join(f"{name} {share / DENOMINATOR:.4g}" for name, share in shares)
        words.append(f"from {at}{ramp}: {listed}")
    return "; ".join(words)


def _past(position: int, order: Any, sources: Any) -> _Past:
    """Read what decided the rows before a position; whatever a file may hold is refused."""
    version = order.get("mixture", 0) if isinstance(order, dict) else _VERSION
    if version != _VERSION:
        raise StateError(
            f"the state has a mixture of version {version!r:.40}; this Millstream reads version "
            f"{_VERSION}"
        )
    try:
        changes: list[Any] = [
            [index(at), index(over), [[str(name), index(share)] for name, share in shares]]
            for at, over, shares in order["changes"]
            if at < position or at == 0
        ]
        exhausted = [[index(at), str(name)] for at, name in order["exhausted"] if at < position]
        used = {name for _, _, shares in changes for name, share in shares if share}
        return _Past(changes, exhausted, {name: str(sources[name]) for name in sorted(used)})
    except (TypeError, ValueError, KeyError, IndexError):
        raise StateError(
            f"not a state of this mixture: its order is {order!r:.200}; it may have been saved by "
            "a loader of a single view"
        ) from None
