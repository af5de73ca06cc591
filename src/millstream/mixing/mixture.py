"""`Mixture`: several views, read in exact proportions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from millstream.arguments import integer, one_of
from millstream.batches.batch_transform import BatchTransform, Transform, transformed
from millstream.batches.layout import BatchLayout
from millstream.batches.row_slice import RowSlice
from millstream.batches.sample_reader import SampleReader, read_batch
from millstream.errors import UsageError
from millstream.mixing import common_batch
from millstream.mixing.description import MixtureReport, SourceReport
from millstream.mixing.source import MixtureSource, check_sources
from millstream.order.mixing import DENOMINATOR
from millstream.order.mixture_order import MixtureOrder, ShareChange, WhenExhausted, check_changes
from millstream.order.order import Indices
from millstream.order.shares import Shares, Weight, exact, to_shares
from millstream.reprs import counted, listed, one_line
from millstream.suggestions import did_you_mean
from millstream.system.cached_property import cached_property
from millstream.views.view import Batch, View

By = Literal["samples", "tokens"]
_MAX_SOURCES = 1 << 20


@dataclass(frozen=True, slots=True)
class WeightChange:
    """From position `at` on, linearly over `over` positions: other weights.

    A source that `weights` does not name gets no more samples.
    """

    at: int
    weights: Mapping[str, Weight]
    over: int = 0


class Mixture:
    """Views that a `Loader` reads in exact proportions; made by `millstream.mix`.

    Position by position, the sources take turns by their weights: of the first n positions, for
    every n, each source has its share, give or take less than four samples, or less than one if
    there are two sources; changes and sources that run out add to that (`order.error_bound`). The
    turns are shuffled by the seed. The i-th sample of a source is the i-th of its own order,
    whatever the other sources are.

    >>> mixture = millstream.mix({"a": (data.windows(4), 0.75), "b": (data.packed(4), 0.25)})
    >>> loader = millstream.Loader(mixture, batch_size=8, output="numpy")
    >>> next(iter(loader))["source_ids"].tolist()
    [0, 1, 0, 0, 0, 0, 0, 1]
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[View, Weight] | MixtureSource],
        *,
        seed: int = 0,
        by: By = "samples",
        when_exhausted: WhenExhausted = "stop",
        num_samples: int | None = None,
        check_tokenizers: bool = True,
        changes: Sequence[WeightChange] | None = None,
        transform: Transform | None = None,
    ) -> None:
        self.named_sources = check_sources(sources)
        if len(sources) > _MAX_SOURCES:
            raise UsageError(f"there are {len(sources):,} sources; the maximum is {_MAX_SOURCES:,}")
        self.seed = integer("seed", seed, 0, (1 << 64) - 1)
        self.by: By = one_of("by", by, ("samples", "tokens"))
        self.when_exhausted: WhenExhausted = one_of(
            "when_exhausted", when_exhausted, ("stop", "redistribute")
        )
        if not isinstance(check_tokenizers, bool):
            raise UsageError(
                f"check_tokenizers is {check_tokenizers!r:.60}; it must be True or False"
            )
        self._checks_tokenizers, self._num_samples = check_tokenizers, num_samples
        self._num_taken: int | None = None
        if transform is not None:
            BatchTransform(transform)
        self.transform = transform
        """a function of each batch, as that of a view"""
        if num_samples is not None:
            self._num_samples = integer("num_samples", num_samples, 1, 1 << 60)
        views = {name: source.view for name, source in self.named_sources.items()}
        if check_tokenizers:
            common_batch.check_tokenizers(views)
        self.sources: tuple[View, ...] = tuple(common_batch.unify(views).values())
        """the views, as batches need them: all with the same extras"""
        self.left_out = common_batch.left_out_fields(views)
        """fields that only some sources have, and so are not in batches; with those sources"""
        initial = {name: source.weight for name, source in self.named_sources.items()}
        self.weight_changes = tuple(changes or [WeightChange(0, initial)])
        """the weights from position 0 on, and what becomes of them"""
        check_changes(self.changes)
        named = self.named_sources.items()
        self._orders = [source.order(name, self.seed) for name, source in named]
        if self._num_samples is not None and self.order.end is not None:
            raise UsageError(
                f"num_samples is {self._num_samples:,}, but the mixture ends at position "
                f"{self.order.end:,}, where a source has been read max_epochs times: that is its "
                "only epoch; leave num_samples out"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources; `source_ids` in batches are indices of it."""
        return tuple(self.named_sources)

    @one_line
    def __repr__(self) -> str:
        shares = self.changes[0].shares
        shown = [
            f"{name} {share / DENOMINATOR:.3g}"
            for name, share in zip(self.names[:8], shares, strict=False)
        ]
        more = [f"{len(shares) - 8:,} more"] if len(shares) > 8 else []
        then = f", {counted(len(self.changes) - 1, 'change')}" if self.changes[1:] else ""
        return f"of rows of {self.seq_len:,} tokens: {', '.join(shown + more)}{then}"

    @cached_property
    def changes(self) -> tuple[ShareChange, ...]:
        """The weights as exact shares."""
        return tuple(
            ShareChange(each.at, each.over, self._shares(each.weights))
            for each in self.weight_changes
        )

    @cached_property
    def mean_tokens(self) -> tuple[Fraction, ...]:
        """The mean number of tokens in a row of each source, without padding."""
        return tuple(view.mean_tokens for view in self.sources)

    def _check_name(self, name: Any) -> None:
        if name not in self.named_sources:
            hint = did_you_mean(str(name), self.names)
            listed = f"{list(self.names)!s:.200}"
            raise UsageError(f"there is no source {name!r:.60}; there are {listed}{hint}")

    def _shares(self, weights: Mapping[str, Weight]) -> Shares:
        for name in weights:
            self._check_name(name)
        parts = [
            exact(f"the weight of {name!r}", weights.get(name, 0), allows_zero=True)
            for name in self.names
        ]
        if self.by == "tokens":
            parts = [part / mean for part, mean in zip(parts, self.mean_tokens, strict=True)]
        return to_shares(parts, self.names)

    @cached_property
    def order(self) -> MixtureOrder:
        """Which source, and which of its samples, each position holds."""
        order = MixtureOrder(
            self._orders,
            self.changes,
            seed=self.seed,
            limits=[source.limit for source in self.named_sources.values()],
            when_exhausted=self.when_exhausted,
        )
        if self._num_taken is not None:
            order.stop_at(self._num_taken)
        last = self.changes[-1].at
        if order.end is not None and 0 < order.end <= last:
            raise UsageError(
                f"there is a change at position {last:,}, but the mixture ends at {order.end:,}"
            )
        return order

    def __len__(self) -> int:
        """Positions in an epoch of the mixture: by default all, if it ends, or one per sample."""
        if self._num_samples is not None:
            return self._num_samples
        return self.order.num_samples if self.order.end is None else self.order.end

    def take(self, num_samples: int) -> "Mixture":
        """Return a mixture of only the first positions: it ends after them.

        >>> mixture = millstream.mix({"a": (data.windows(4), 3), "b": (data.windows(4), 1)})
        >>> len(mixture.take(10)), mixture.take(10).order.end
        (10, 10)
        """
        first = self._with(num_samples=None)
        first._num_taken = integer("num_samples", num_samples, 1, 1 << 60)
        return first

    def with_transform(self, transform: Transform | None) -> "Mixture":
        """Return the same mixture with another transform, or with none."""
        return self._with(transform=transform)

    def _with(self, **settings: Any) -> "Mixture":
        """The same mixture with other settings."""
        own: dict[str, Any] = {
            "sources": self.named_sources,
            "seed": self.seed,
            "by": self.by,
            "when_exhausted": self.when_exhausted,
            "num_samples": self._num_samples,
            "check_tokenizers": self._checks_tokenizers,
            "changes": self.weight_changes,
            "transform": self.transform,
        }
        mixture = Mixture(**own | settings)
        mixture._num_taken = self._num_taken
        return mixture

    @property
    def seq_len(self) -> int:
        """Inputs in a row."""
        return self.sources[0].seq_len

    def change(
        self,
        at: int,
        weights: Mapping[str, Weight] | None = None,
        *,
        over: int = 0,
        sources: Mapping[str, Any] | None = None,
    ) -> "Mixture":
        """Return a mixture with other weights from position `at` on, linearly over `over` more.

        Nothing before `at` changes, and every source goes on where it is. `sources` adds sources,
        with their weights; a source that is named in neither gets no more samples. New sources
        make an epoch of the mixture longer, unless it has a `num_samples`.

        >>> mixture = millstream.mix({"a": (data.windows(4), 1), "b": (data.windows(4), 1)})
        >>> later = mixture.change(at=100, weights={"a": 1, "b": 9}, over=50)
        >>> later.describe(100).sources[1].samples, later.describe(1000).sources[1].samples
        (50, 850)
        """
        at, over = integer("at", at, 1, 1 << 60), integer("over", over, 0, 1 << 47)
        added = check_sources(sources) if sources else {}
        for name in added:
            if name in self.named_sources:
                raise UsageError(f"there is a source {name!r} already; name it in weights")
        if weights is None and not added:
            raise UsageError("change takes weights={'name': weight}, or sources={…} to add")
        if weights is not None and not isinstance(weights, Mapping):
            raise UsageError(f"weights is {weights!r:.60}; write {{'name': weight}}")
        all_weights = dict(weights or {})
        for name, source in added.items():
            if name in all_weights:
                raise UsageError(f"the weight of {name!r} is given twice")
            all_weights[name] = source.weight
        return self._with(
            sources=self.named_sources | added,
            changes=(*self.weight_changes, WeightChange(at, all_weights, over)),
        )

    def locate(self, positions: Sequence[int] | Indices) -> tuple[Indices, Indices]:
        """Return the source of each of `positions`, as an index of `names`, and its sample.

        >>> mixture = millstream.mix({"a": (data.windows(4), 1), "b": (data.windows(4), 1)})
        >>> sources, samples = mixture.locate([0, 1, 2])
        >>> sources.tolist(), samples.tolist()
        ([0, 1, 1], [7, 12, 3])
        >>> mixture.positions_of("b", [12, 3]).tolist()
        [1, 2]
        """
        return self.order.locate(positions)

    def positions_of(
        self, source: str, samples: Sequence[int] | Indices, epoch: int = 0
    ) -> Indices:
        """Return where samples of a source come, in an epoch of that source; -1 for never."""
        self._check_name(source)
        return self.order.positions_of(self.names.index(source), samples, epoch)

    def describe(self, steps: int, step_size: int = 1) -> MixtureReport:
        """Tell what the first `steps` steps of `step_size` rows on all ranks read of each source.

        >>> mixture = millstream.mix({"a": (data.windows(4), 3), "b": (data.packed(4), 1)})
        >>> print(mixture.describe(steps=100, step_size=8))
        source  samples  share  tokens  epochs
        a           600  0.750   2,400   25.00
        b           200  0.250     800    8.00
        """
        wanted = integer("steps", steps, 0) * integer("step_size", step_size, 1)
        end = self.order.end
        position = integer("steps * step_size", wanted, 0, 1 << 60)
        if end is not None:
            position = min(position, end)
        counts = self.order.counts_at(position).tolist()
        ran_out = {self.names[source]: at for at, source in self.order.exhausted if at <= position}
        return MixtureReport(
            position,
            tuple(
                SourceReport(
                    name=name,
                    samples=count,
                    share=count / max(1, position),
                    tokens=round(count * mean),
                    epochs=count / len(view),
                    exhausted_at=ran_out.get(name),
                )
                for name, view, mean, count in zip(
                    self.names, self.sources, self.mean_tokens, counts, strict=True
                )
            ),
            ends_after=end if end is not None and end < wanted else None,
        )

    def plot(self, path: str | PathLike[str], steps: int, step_size: int = 1) -> None:
        """Draw what share each source has over a run, as an SVG file.

        >>> mixture = millstream.mix({"a": (data.windows(4), 3), "b": (data.windows(4), 1)})
        >>> mixture.change(at=500, weights={"b": 1}, over=200).plot(tmp / "shares.svg", steps=1000)
        """
        from millstream.mixing.share_plot import plot_shares

        positions = self.describe(steps, step_size).positions
        if not positions:
            raise UsageError("a run of no steps has nothing to draw")
        Path(path).write_text(plot_shares(self, positions, step_size))

    def layout(
        self, rows: int, dtype: DTypeLike | None, row_slice: RowSlice | None = None
    ) -> BatchLayout:
        """The memory of a batch of `rows` rows, or slices of them, with tokens of type `dtype`."""
        return common_batch.mixed_layout(self.sources, rows, dtype, row_slice)

    def read(
        self, positions: Sequence[int] | Indices, *, dtype: DTypeLike | None = np.int64
    ) -> Batch:
        """Read the samples at `positions` as one NumPy batch; `dtype=None` keeps the stored type.

        A `transform` is applied, as in a loader.

        >>> mixture = millstream.mix({"a": (data.windows(4), 1), "b": (data.windows(4), 1)})
        >>> mixture.read([0, 1])["input_ids"].tolist()
        [[28, 29, 30, 31], [48, 49, 50, 51]]
        """
        samples = self.order.samples_at(positions).reshape(-1)
        layout = self.layout(samples.size, dtype)
        batch = read_batch(SampleReader(self, layout), layout, samples)
        read: Batch = transformed(
            self.transform, batch, np.array(positions, np.int64).reshape(-1), self.name_rows
        )
        return read

    def name_rows(self, positions: Indices) -> str:
        """Return where rows come from, for messages."""
        sources, samples = self.locate(positions)
        named = [
            f"{self.names[source]} {sample:,}"
            for source, sample in zip(sources.tolist(), samples.tolist(), strict=True)
        ]
        return f"positions {listed(positions)} (samples {', '.join(named)})"
