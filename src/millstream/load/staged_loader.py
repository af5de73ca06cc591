"""`StagedLoader`: stages of a run with different row lengths and batch sizes, one after another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from types import TracebackType
from typing import Any, Self

from millstream.arguments import integer
from millstream.errors import StateError, UsageError
from millstream.load.base_loader import LoaderStep
from millstream.load.batch_sizes import MAX_POSITION, GlobalBatchSize
from millstream.load.loader import Loader
from millstream.load.state import HEADER, State, check_keys
from millstream.load.stats import LoaderStats
from millstream.mixing.mixture import Mixture
from millstream.reprs import one_line
from millstream.views.view import View


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderStage:
    """A stage of a run: what is read, in batches of which size, up to which position."""

    view: View | Mixture
    batch_size: int
    """rows per rank"""
    until: int | None = None
    """the position where the next stage starts; None, for the last stage, if it has no end"""
    global_batch_size: GlobalBatchSize | None = None
    """as for a `Loader`; positions of a schedule count from the start of the stage"""


class StagedLoader:
    """Reads stages one after another: longer rows in smaller batches at the end of a run, say.

    Positions count rows, whatever their length, over all stages and ranks. A stage reads its views
    from their beginning. Its rows that do not fill a step are dropped, or with `tail="keep"` make a
    short one, so that every stage starts exactly at its position, on any number of ranks. A view is
    read as a mixture of one source: batches have `source_ids`.

    `options` are those of a `Loader`, for all stages: ranks, output, device and so on.

    >>> short, long = data.windows(4), data.windows(9)
    >>> loader = millstream.StagedLoader(
    ...     [
    ...         millstream.LoaderStage(view=short, batch_size=4, until=8),
    ...         millstream.LoaderStage(view=long, batch_size=2),
    ...     ],
    ...     output="numpy",
    ... )
    >>> [batch["input_ids"].shape for batch in loader]
    [(4, 4), (4, 4), (2, 9), (2, 9), (2, 9), (2, 9), (2, 9)]
    >>> loader.position
    19
    """

    def __init__(self, stages: Sequence[LoaderStage], **options: Any) -> None:
        self.stages = (stages,) if isinstance(stages, LoaderStage) else tuple(stages)
        self.starts = _starts(self.stages)
        """the position that each stage starts at"""
        for name in ("batch_size", "global_batch_size"):
            if name in options:
                raise UsageError(f"{name} belongs to a LoaderStage; set it for each stage")
        for name in ("seed", "shuffle"):
            if name in options:
                raise UsageError(
                    f"{name} belongs to a mixture; use millstream.mix(…) in the stages"
                )
        if "endless" in options or options.get("tail") == "wrap":
            raise UsageError(
                "stages have ends; leave out endless, and use tail='drop' or tail='keep'"
            )
        self._loaders: list[Loader] = []
        for number, (stage, start) in enumerate(zip(self.stages, self.starts, strict=True)):
            try:
                self._loaders.append(_new_loader(stage, start, options))
            except UsageError as error:
                raise UsageError(f"stage {number}: {error}") from error
        self._current = 0

    @one_line
    def __repr__(self) -> str:
        return f"in stage {self.stage} of {len(self.stages)}; {self.loader!r}"

    @property
    def stage(self) -> int:
        """The number of the stage that the last batch was of."""
        return self._current

    @property
    def loader(self) -> Loader:
        """The loader of the current stage."""
        return self._loaders[self._current]

    @property
    def position(self) -> int:
        """How many rows of all stages all ranks together have been handed."""
        return self.starts[self._current] + self.loader.position

    @property
    def stats(self) -> LoaderStats:
        """Counts of the current stage."""
        return self.loader.stats

    def __len__(self) -> int:
        """Steps of all stages; of a last stage without an end, those of an epoch."""
        return sum(len(loader) for loader in self._loaders)

    @property
    def remaining(self) -> int:
        """How many steps the next `iter` gives; the same on every rank."""
        later = sum(len(loader) for loader in self._loaders[self._current + 1 :])
        return later + (0 if self._is_over() else self.loader.remaining)

    def _is_over(self) -> bool:
        """Whether the current stage has an end, and has got there."""
        until = self.stages[self._current].until
        return until is not None and self.position >= until

    def __iter__(self) -> Iterator[LoaderStep]:
        """Iterate over the rest of the stages; a last one without an end goes on by epochs."""
        if self._is_over() and self._current + 1 == len(self.stages):
            raise UsageError(f"all stages are over, at position {self.position:,}")
        return _StagedIteration(self)

    def advance(self) -> bool:
        """Go on to the next stage; False if this is the last one."""
        if self._current + 1 == len(self.stages):
            return False
        self.loader.close()
        self._current += 1
        return True

    def state_dict(self) -> State:
        """What to save: the state of every stage up to the current one."""
        reached = self._loaders[: self._current + 1]
        return HEADER | {
            "position": self.position,
            "stages": [loader.state_dict() for loader in reached],
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where `state` was saved; later stages may differ from what they were then."""
        check_keys(state, ("position", "stages"), "StagedLoader")
        saved = state["stages"]
        if not isinstance(saved, list) or not 0 < len(saved) <= len(self.stages):
            raise StateError(
                f"the state was saved in stage {len(saved) - 1 if isinstance(saved, list) else '?'}"
                f", and this loader has stages 0 to {len(self.stages) - 1}"
            )
        for number, (loader, each) in enumerate(zip(self._loaders, saved, strict=False)):
            try:
                loader.check_state(each)
            except StateError as error:
                raise StateError(f"stage {number}: {error}") from error
            until = self.stages[number].until
            if number + 1 < len(saved) and self.starts[number] + each["position"] != until:
                raise StateError(
                    f"stage {number} ended after {each['position']!r:.40} rows and now ends at "
                    f"position {until}; what has been read cannot change"
                )
        for loader, each in zip_longest(self._loaders, saved):
            loader.load_state_dict(each or loader.state_dict() | {"position": 0})
            loader.close()
        self._current = len(saved) - 1

    def samples(self) -> Any:
        """Which samples of the stage's view the rows of the last step are, on this rank."""
        return self.loader.samples()

    def digest(self) -> str:
        """Hash which samples the last step holds on all ranks together."""
        return self.loader.digest()

    def token_digest(self) -> str:
        """Hash the tokens of the last step on this rank; needs `digest_tokens=True`."""
        return self.loader.token_digest()

    def close(self) -> None:
        """End all threads; iterating again starts them again."""
        for loader in self._loaders:
            loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _StagedIteration:
    """The steps of the rest of the stages."""

    def __init__(self, loader: StagedLoader) -> None:
        self._loader, self._stage = loader, -1
        self._steps: Iterator[LoaderStep] = iter(())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LoaderStep:
        while True:
            if self._stage != self._loader.stage:
                self._stage = self._loader.stage
                if not self._loader._is_over():
                    self._steps = iter(self._loader.loader)
            step = next(self._steps, None)
            if step is not None:
                return step
            if not self._loader.advance():
                raise StopIteration


def _starts(stages: Sequence[LoaderStage]) -> list[int]:
    if not stages or not all(isinstance(stage, LoaderStage) for stage in stages):
        raise UsageError("a StagedLoader takes a list of millstream.LoaderStage(view=…, …)")
    ends = [stage.until for stage in stages]
    if any(end is None for end in ends[:-1]):
        raise UsageError("every stage but the last needs until=…, the position where it ends")
    known = [integer("until", end, 1, MAX_POSITION) for end in ends if end is not None]
    for before, after in pairwise(known):
        if after <= before:
            raise UsageError(f"a stage ends at {after:,}, and the one before it at {before:,}")
    return [0, *known][: len(stages)]


def _new_loader(stage: LoaderStage, start: int, options: dict[str, Any]) -> Loader:
    """A loader of which an epoch is the whole stage."""
    mixture = stage.view
    if isinstance(mixture, View):
        view = mixture.with_transform(None)
        mixture = Mixture({"data": (view, 1)}, transform=mixture.transform)
    if not isinstance(mixture, Mixture):
        raise UsageError(f"it takes a view or a mixture, not {mixture!r:.60}")
    if stage.until is not None:
        length = stage.until - start
        end = mixture.order.end
        if end is not None and end < length:
            raise UsageError(
                f"it has {length:,} rows, but its mixture ends after {end:,}; allow its sources "
                "more epochs, or pass when_exhausted='redistribute' to millstream.mix"
            )
        mixture = mixture.take(length)
    return Loader(mixture, stage.batch_size, global_batch_size=stage.global_batch_size, **options)
