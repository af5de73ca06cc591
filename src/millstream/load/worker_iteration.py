"""The iterators of a torch DataLoader worker: its share of an epoch's steps, or an error."""

from typing import Any, Self

from millstream.errors import StateError
from millstream.load.plan import StepPlan
from millstream.load.walk import Walk
from millstream.load.workers import Board, Worker


class WorkerIteration:
    """A worker's share of the steps, of an epoch or endless; StatefulDataLoader can save it."""

    def __init__(self, worker: Worker, board: Board, walk: Walk, plan: StepPlan) -> None:
        self._worker, self._board, self._walk, self._plan = worker, board, walk, plan
        self._end = plan.end_of_epoch(walk.position)
        self._is_over, self._num_steps = False, 0
        walk.take_every(worker.num_workers, skip=worker.number)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._is_over or not self._has_step():
            self._finish()
            raise StopIteration
        self._num_steps += 1
        return self._walk.take()

    def _has_step(self) -> bool:
        position = self._walk.position
        if self._plan.endless:
            return True
        return position < self._end and self._walk.skip < self._plan.num_steps(position)

    def _finish(self) -> None:
        if not self._is_over:
            self._board.end(self._worker, self._end, self._num_steps)
            self._walk.jump_to(self._end)
            self._is_over = True

    def state_dict(self) -> dict[str, Any]:
        """Return how many steps to skip before this worker's next one, and where the epoch ends."""
        return {
            "skip": self._walk.skip,
            "num_workers": self._worker.num_workers,
            "step_size": self._plan.sizes.to_json(),
            "end": None if self._plan.endless else self._end,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue as the worker that saved `state`; its loader's state must be loaded first."""
        here = self.state_dict()
        for name in ("num_workers", "step_size"):
            if state[name] != here[name]:
                raise StateError(
                    "a worker's state needs the same number of workers and the same number of rows "
                    f"per step over all ranks: {name} was {state[name]} and is {here[name]}; only "
                    "states saved with num_workers=0 can be resumed with others"
                )
        end = state["end"]
        if end is not None:
            self._end = end
        self._walk.take_every(self._worker.num_workers, skip=state["skip"])
        if not self._has_step():
            self._finish()


class FailedIteration:
    """Raises at the first step: an error in `iter` would end a persistent worker silently."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        raise self._error
