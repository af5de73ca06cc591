"""`BatchTransform`: the user's function of a finished batch, and what is told when it fails."""

from collections.abc import Callable
from functools import partial
from inspect import (
    Parameter,
    Signature,
    isasyncgenfunction,
    iscoroutinefunction,
    isgeneratorfunction,
    signature,
)
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.reprs import counted

Transform = Callable[..., Any]
"""`transform(batch)` or `transform(batch, positions)`; returns what is handed out instead"""

_SHOWN_ROWS = 3


class BatchTransform:
    """A `transform=`, checked; it gets the positions of the rows if it has a parameter for them.

    >>> double = BatchTransform(lambda batch, positions: {"x": batch["x"] * 2 + positions})
    >>> double.run({"x": np.array([5, 6])}, np.array([0, 100]), str)
    {'x': array([ 10, 112])}
    """

    def __init__(self, function: Transform) -> None:
        if not callable(function):
            raise UsageError(f"transform is {function!r:.60}; it must be a function of a batch")
        if _is_deferred(function) or _is_deferred(type(function).__call__):
            raise UsageError(
                f"transform={_name(function)} is a generator or async, so a call returns no batch; "
                "use a plain function that returns the batch"
            )
        self._function = function
        self.takes_positions = False
        try:
            own = signature(function)
        except (TypeError, ValueError):  # of a compiled function
            return
        self.takes_positions = _takes_positions(own) and not _binds_positions(function)
        try:
            own.bind(None, **dict.fromkeys(["positions"] * self.takes_positions))
        except TypeError as error:
            raise UsageError(
                f"transform={_name(function)} takes {own}, but is called as transform(batch), or "
                f"transform(batch, positions=…) if it has such a parameter: {error}"
            ) from None

    def run(
        self,
        batch: dict[str, Any],
        positions: NDArray[np.int64],
        name_rows: Callable[[NDArray[np.int64]], str],
    ) -> Any:
        """Return the transformed batch; an error gets a note that names the first rows.

        `name_rows` takes some of the positions, which the function may write to.
        """
        shown = positions[:_SHOWN_ROWS].copy()
        try:
            return self._call(batch, positions)
        except BaseException as error:
            rows = f"{counted(positions.size, 'row')}, beginning with {name_rows(shown)}"
            error.add_note(f"in the transform of a batch of {rows}")
            raise

    def _call(self, batch: dict[str, Any], positions: NDArray[np.int64]) -> Any:
        try:
            if self.takes_positions:
                result = self._function(batch, positions=positions)
            else:
                result = self._function(batch)
        except StopIteration as error:  # it would end the loop over the loader
            raise RuntimeError("a transform raised StopIteration") from error
        if result is None:
            raise UsageError(
                f"transform={_name(self._function)} returned None; return the batch, also if you "
                "changed it in place"
            )
        return result


def transformed(
    transform: Transform | None,
    batch: Any,
    positions: NDArray[np.int64],
    name_rows: Callable[[NDArray[np.int64]], str],
) -> Any:
    """Return a batch as a transform returns it; the same batch if there is none."""
    if transform is None:
        return batch
    return BatchTransform(transform).run(batch, positions, name_rows)


def check_picklable(argument: str, function: Any) -> None:
    """Raise if a function cannot be sent to a process that multiprocessing starts anew."""
    try:
        ForkingPickler.dumps(function)
    except (AttributeError, TypeError, PicklingError) as error:
        raise UsageError(
            f"{argument}={_name(function)} cannot be sent to another process: {error}. Use a "
            "function at the top level of a module, or a functools.partial of one"
        ) from None


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _is_deferred(function: Any) -> bool:
    """Whether a call returns a generator or a coroutine."""
    kinds = (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
    return any(is_kind(function) for is_kind in kinds)


def _binds_positions(function: Transform) -> bool:
    return isinstance(function, partial) and "positions" in function.keywords


def _takes_positions(own: Signature) -> bool:
    found = own.parameters.get("positions")
    return found is not None and found.kind in (
        Parameter.POSITIONAL_OR_KEYWORD,
        Parameter.KEYWORD_ONLY,
    )
