"""Checks for your own pipeline: does a loader resume exactly, do ranks divide the data exactly?

Each check takes a function that makes a loader: any iterable with `state_dict` and
`load_state_dict`. Batches may be arrays, tensors, numbers, texts, or dicts, lists and tuples of
these.

>>> make_loader = lambda: millstream.Loader(data.windows(4), batch_size=2, output="numpy")
>>> assert_resumes_exactly(make_loader, steps=6)
>>> assert_ranks_share_exactly(
...     lambda rank, ranks, batch_size: millstream.Loader(
...         data.windows(4), batch_size, rank=rank, ranks=ranks, output="numpy"
...     ),
...     splits=[(1, 12), (2, 6), (3, 4)],
... )
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError, VerificationError


class Stateful(Protocol):
    """A loader that `assert_resumes_exactly` can check."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue from a saved state."""


def assert_same(found: Any, expected: Any, where: str = "batch") -> None:
    """Raise `VerificationError` with the first difference unless two batches are equal."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or list(found) != list(expected):
            raise VerificationError(f"{where}: keys {list(found)}, expected {list(expected)}")
        for key, value in expected.items():
            assert_same(found[key], value, f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        if len(found) != len(expected):
            raise VerificationError(f"{where}: {len(found)} items, expected {len(expected)}")
        for i, value in enumerate(expected):
            assert_same(found[i], value, f"{where}[{i}]")
    elif isinstance(expected, bytes | str):  # as arrays, b"" and b"\0" would be equal
        if found != expected:
            raise VerificationError(f"{where}: {found!r:.80}, expected {expected!r:.80}")
    else:
        one, other = _as_array(found), _as_array(expected)
        if one.shape != other.shape or one.dtype != other.dtype:
            raise VerificationError(
                f"{where}: {one.dtype}{one.shape}, expected {other.dtype}{other.shape}"
            )
        if not np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"):
            first = tuple(np.argwhere(one != other)[0].tolist())
            raise VerificationError(
                f"{where}: differs first at {first}: {one[first]}, expected {other[first]}"
            )


def assert_resumes_exactly(make_loader: Callable[[], Stateful], *, steps: int = 20) -> None:
    """Save the state before each of `steps` batches, resume from each state, compare what follows.

    States pass through JSON, as in a checkpoint. If an epoch ends earlier, the next one follows.
    """
    loader = make_loader()
    states = [_through_json(loader.state_dict())]
    batches: list[Any] = []
    for batch in islice(_endless(loader), steps):
        batches.append(_copy(batch))
        states.append(_through_json(loader.state_dict()))
    for start, state in enumerate(states[:-1]):
        resumed = make_loader()
        resumed.load_state_dict(state)
        for i, batch in enumerate(islice(_endless(resumed), steps - start), start):
            assert_same(batch, batches[i], f"resumed at step {start}: batch {i}")
            after = _through_json(resumed.state_dict())
            if after != states[i + 1]:
                raise VerificationError(
                    f"resumed at step {start}: state {after} after batch {i}, "
                    f"expected {states[i + 1]}"
                )


def assert_ranks_share_exactly(
    make_loader: Callable[[int, int, int], Iterable[Any]],
    *,
    splits: Sequence[tuple[int, int]],
) -> None:
    """Compare an epoch under several divisions `(ranks, batch_size)` of a step.

    Row k of rank r must be row r + k * ranks of the step, so all divisions give the same steps,
    and all ranks must take the same number of steps. The batches of a step that is a list of dicts
    are joined, so their rows may also be divided differently.

    Calls `make_loader(rank, ranks, batch_size)`.
    """
    expected: list[Any] | None = None
    for ranks, batch_size in splits:
        shares = [
            [_join(_copy(step)) for step in make_loader(rank, ranks, batch_size)]
            for rank in range(ranks)
        ]
        if len({len(share) for share in shares}) != 1:
            raise VerificationError(
                f"{ranks} ranks take different numbers of steps: {[len(s) for s in shares]}"
            )
        steps = [_interleave(parts) for parts in zip(*shares, strict=True)]
        if expected is None:
            expected = steps
        assert_same(steps, expected, f"{ranks} ranks of {batch_size} rows: steps")


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        count = 0
        for batch in loader:
            count += 1
            yield batch
        if count == 0:
            raise VerificationError("the loader yielded no batch in an epoch")


def _join(step: Any) -> Any:
    """Join the batches of a step that is a list of dicts."""
    if not isinstance(step, list) or not step or not isinstance(step[0], dict):
        return step
    joined = dict[str, Any]()
    for key, first in step[0].items():
        parts = [batch[key] for batch in step]
        is_list = isinstance(first, list)
        joined[key] = list(chain.from_iterable(parts)) if is_list else np.concatenate(parts)
    return joined


def _interleave(parts: Sequence[Any]) -> Any:
    """Put the rows of all ranks back into the order of the step."""
    if isinstance(parts[0], dict):
        return {
            key: _interleave_rows(f"batch[{key!r}]", parts, [part[key] for part in parts])
            for key in parts[0]
        }
    if isinstance(parts[0], list | tuple):
        rows: list[Any] = [None] * sum(map(len, parts))
        for rank, part in enumerate(parts):
            rows[rank :: len(parts)] = part
        return rows
    arrays = [_as_array(part) for part in parts]
    step = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    for rank, array in enumerate(arrays):
        step[rank :: len(arrays)] = array
    return step


def _interleave_rows(where: str, batches: Sequence[Any], parts: Sequence[Any]) -> Any:
    """Interleave one value of the batches; it must have an entry for every row."""
    for batch, part in zip(batches, parts, strict=True):
        rows = len(next(iter(batch.values())))
        found = len(part) if isinstance(part, list | tuple) else _as_array(part).shape[:1]
        if found not in (rows, (rows,)):
            raise UsageError(
                f"{where} does not have one entry for each of the {rows} rows, so the values of "
                "several ranks cannot be joined; leave it out of the comparison"
            )
    return _interleave(parts)


def _through_json(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state))


def _copy(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _copy(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [_copy(value) for value in batch]
    if isinstance(batch, bytes | str):
        return batch
    return _as_array(batch).copy()


def _as_array(value: Any) -> NDArray[Any]:
    """Return an array, a number or a tensor on any device as a NumPy array."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
