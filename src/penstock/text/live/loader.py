"""`TextLoader`: batches of text that is tokenized and packed while a model trains."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from penstock.arguments import integer, one_of
from penstock.errors import PenstockError, StateError, UsageError
from penstock.load.batch_maker import BatchMaker
from penstock.load.batch_memory import Pool
from penstock.load.closable import Closable
from penstock.load.frameworks import check_caller
from penstock.load.rank_agreement import check_agreement
from penstock.load.ranks import find_rank
from penstock.load.state import HEADER, State
from penstock.load.tensors import (
    check_output,
    from_numpy,
    new_pinned,
    plain_dtype,
    register_as_dataset,
)
from penstock.load.workers import find_worker
from penstock.reprs import counted, one_line
from penstock.system.processors import num_processors
from penstock.text.live.block_dealing import Dealing, Lanes
from penstock.text.live.handover import BatchIterator
from penstock.text.live.loader_state import check_state, join_states
from penstock.text.live.packing import LivePolicy, Packing
from penstock.text.live.stats import LiveCounts, Seconds, SkippedRows, TextLoaderStats
from penstock.text.sources import Source
from penstock.text.sources.listing import Paths
from penstock.text.tokenizers.adapter import adapt
from penstock.text.tokenizers.loading import load_tokenizer
from penstock.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from penstock.text.live.lane_state import LaneState, Snapshot
    from penstock.text.live.lane_text import LaneText
    from penstock.text.live.pipeline import PackedBatch, Pipeline
    from penstock.text.live.row_counts import RowCounts

_READ_BYTES, _LEAST_READ_BYTES = 1 << 18, 1 << 16

Batch = dict[str, Any]


class LoaderPosition(NamedTuple):
    """What was handed out: replaced as a whole, so that an interrupt leaves no half of it."""

    epoch: int
    position: int
    states: "dict[int, LaneState]"
    """of this rank's lanes"""
    snapshots: "tuple[Snapshot, ...]" = ()
    """or these, in the order of the lanes, if a batch was handed out since"""
    counts: LiveCounts = LiveCounts()
    """since the loader was made"""


class TextLoader(Closable):
    r"""Batches of text, tokenized and packed in the background, resumed exactly.

    Arguments:
        source: a `Source`, or what one is made of: a file, a directory, a pattern, a list.
        tokenizer: what `load_tokenizer` takes or gives, or any object that has `encode`, such as
            one of tiktoken, tokenizers or transformers.
        batch_size: rows per rank.
        seq_len: inputs in a row.
        packing: how documents become rows: "flat", "best_fit", "bos_best_fit" (as nanochat),
            "bos_best_fit_keep", or a `Packing` with all options.
        seed: with the epoch it decides the order of blocks.
        shuffle: whether blocks have another order in every epoch.
        rank, ranks: this process's share; found in torch.distributed or the environment.
        lanes: a multiple of ranks, fixed for a run: it can be resumed on any number of ranks that
            divides it. As many as ranks by default, or as the state has that is loaded. More lanes
            also mix more: neighbouring rows of one lane may be of one long document.
        endless: go on for ever; else `iter` gives one epoch, with equally many steps on all ranks.
        tail: of an epoch: 'drop' ends it before the first batch that is short on any rank, 'keep'
            goes on until every row was handed out.
        output: 'torch' or 'numpy'.
        dtype: of token ids, NumPy's or torch's; None for the smallest that holds the vocabulary.
        pin_memory: batches in page-locked memory, for copies to the accelerator.
        prefetch: how many batches are packed ahead.
        threads: how many tokenize, beside one that reads; up to 4, as there are processors.
        check_ranks: compare the loader with that of other ranks when it begins, where
            torch.distributed is up (see `load.agreement`).

    >>> _ = (tmp / "text.txt").write_text("one\ntwo\nthree\n" * 9)
    >>> loader = TextLoader(tmp / "text.txt", "bytes", batch_size=2, seq_len=8, output="numpy")
    >>> batch = next(iter(loader))
    >>> batch["input_ids"].shape, loader.state_dict()["position"]
    ((2, 8), 2)
    >>> loader.close()
    """

    _dealing: ClassVar[Dealing] = "stride"

    def __init__(
        self,
        source: Source | Paths,
        tokenizer: Any,
        batch_size: int,
        seq_len: int,
        packing: LivePolicy | Packing = "bos_best_fit_keep",
        *,
        seed: int = 0,
        shuffle: bool = False,
        rank: int | None = None,
        ranks: int | None = None,
        lanes: int | None = None,
        endless: bool = True,
        tail: Literal["drop", "keep"] = "drop",
        output: Literal["torch", "numpy"] = "torch",
        dtype: Any = np.int64,
        pin_memory: bool = False,
        prefetch: int = 4,
        threads: int | None = None,
        check_ranks: bool = True,
    ) -> None:
        self._finds_rank = rank is None
        self._has_to_agree = self._checks_ranks = check_ranks
        rank, ranks = find_rank(rank, ranks)
        self.ranks = integer("ranks", ranks, 1, 1 << 31)
        self.rank = integer("rank", rank, 0, self.ranks - 1)
        self.source = source if isinstance(source, Source) else Source(source)
        self.tokenizer: Tokenizer = (
            load_tokenizer(tokenizer)
            if isinstance(tokenizer, str | os.PathLike)
            else adapt(tokenizer)
        )
        self.packing = packing if isinstance(packing, Packing) else Packing(policy=packing)
        self.batch_size = integer("batch_size", batch_size, 1, 1 << 31)
        self.seq_len = integer("seq_len", seq_len, 1, 1 << 27)
        self.endless = endless
        one_of("tail", tail, ("drop", "keep"))
        self._tail = tail
        check_output(output, pin_memory=pin_memory)
        self._output, self._pin_memory = output, pin_memory
        self._prefetch = integer("prefetch", prefetch, 1, 1 << 16)
        if threads is None:
            threads = min(4, num_processors())
        self._threads = integer("threads", threads, 1, 64)
        self._blocks = self.source.blocks()
        self._text_fingerprint = self.source.fingerprint  # takes 70 ms for 6,500 files
        self._lanes_asked = lanes
        count = self.ranks if lanes is None else integer("lanes", lanes, 1, 1 << 31)
        if not isinstance(shuffle, bool):
            raise UsageError(
                f"shuffle is {shuffle!r}; here it is True or False, as whole blocks are shuffled "
                "(penstock repack --shuffle shuffles documents, once)"
            )
        self._shuffle, self._seed = shuffle, integer("seed", seed, 0, (1 << 64) - 1)
        self.lanes = self._new_lanes(count, UsageError)
        self.packing.marks(self.tokenizer)
        self._layout = self.packing.layout(
            self.tokenizer, self.seq_len, self.batch_size, plain_dtype(dtype)
        )
        self._reached = LoaderPosition(0, 0, {})
        self._counted: tuple[tuple[int, int], RowCounts] | None = None
        self._reset()

    def _new_lanes(self, count: int, refusal: type[PenstockError]) -> Lanes:
        lanes = Lanes(  # refuses more than there are blocks
            blocks=self._blocks,
            count=count,
            shuffle=self._shuffle,
            seed=self._seed,
            dealing=self._dealing,
        )
        if count % self.ranks:
            works = [str(ranks) for ranks in range(1, count + 1) if count % ranks == 0]
            raise refusal(
                f"{count} lanes cannot be shared by {self.ranks} ranks; numbers of ranks that work "
                f"are {', '.join(works)} (a new run may have other lanes: lanes=…)"
            )
        return lanes

    def _reset(self) -> None:
        """Forget what was handed out and started; the position stays."""
        self._engine: Pipeline | None = None
        self._lock = threading.RLock()
        # Beside those packed ahead: the one in the making, and some in the user's hands.
        new_tensor = new_pinned if self._pin_memory else None
        self._pool = Pool(self._layout.num_bytes, self._prefetch + 4, new_tensor)
        self._maker = BatchMaker(self._layout.places(), self._layout.rows, from_numpy(self._output))
        register_as_dataset(TextLoader)
        self._seconds, self._skipped = Seconds(), SkippedRows()
        self._reached = self._reached._replace(counts=LiveCounts())
        self._first: tuple[float, int] | None = None
        """when the first batch came, and its tokens"""
        self._pid = os.getpid()  # last: interrupted, a forked child begins again

    def __iter__(self) -> Iterator[Batch]:
        """All batches from the current position on: of the epoch, or without end."""
        expected = check_caller(self, endless=self.endless)
        if find_worker() is not None:
            raise UsageError(
                "a TextLoader has threads of its own, and its state is in this process: iterate "
                "over it directly, or with DataLoader(loader, batch_size=None, num_workers=0)"
            )
        if expected.state is not None:
            self.load_state_dict(expected.state)
        if expected.begins_epoch and not self.endless and self._reached.position:
            self._begin_next_epoch()
        if self._has_to_agree:
            self._compare_with_other_ranks()
        return BatchIterator(self)

    def _compare_with_other_ranks(self) -> None:
        facts = {
            "batch_size": self.batch_size,
            "ranks": self.ranks,
            "tail": self._tail,
            "lanes": self.lanes.count,
            "epoch": self._reached.epoch,
            "position": self._reached.position,
        }
        check_agreement(facts | self._identity(), self.rank, self.ranks, is_found=self._finds_rank)
        self._has_to_agree = False

    def __len__(self) -> int:
        """Steps of the whole epoch, wherever the loader stands in it; see `remaining`."""
        return self._count_steps(from_start=True)

    @property
    def remaining(self) -> int:
        """How many batches the next `iter` gives: on every rank the same."""
        return self._count_steps(from_start=False)

    def _count_steps(self, *, from_start: bool) -> int:
        if self.endless:
            raise TypeError("an endless loader has no length")
        self._start_epoch()
        return self._steps_from(0 if from_start else self._reached.position)

    def __bool__(self) -> bool:
        return True  # `if loader` must not ask an endless one for its length

    def _start_epoch(self) -> None:
        """Where the epoch has no more steps, go on to the next."""
        self._notice_fork()
        with self._lock:
            if self.endless or self._steps_from(self._reached.position):
                return
            if self._reached.position:
                self._begin_next_epoch()
            if self._steps_from(0):
                return
        raise UsageError(f"epoch {self._reached.epoch} is less than one step{self._why_no_step()}")

    def _why_no_step(self) -> str:
        """What an epoch lacks for a step, and what would help."""
        rows, count = self._rows_of_epoch(), self.lanes.count
        if rows.end == 0:
            fewer = ", fewer lanes" if count > self.ranks else ""
            return (
                f": the text fills no row of {self.seq_len:,} tokens in any of {count:,} lanes; "
                f"use a smaller seq_len{fewer}, or more text"
            )
        largest = rows.first_hole // self.ranks
        smaller = f"batch_size={largest:,}{' or less' if largest > 1 else ''}, " if largest else ""
        return (
            f" of {self.batch_size:,} rows on {self.ranks:,} ranks: it has {sum(rows.of_lanes):,} "
            f"rows in {count:,} lanes; use {smaller}tail='keep', or endless=True"
        )

    def _begin_next_epoch(self) -> None:
        self._notice_fork()
        with self._lock:
            self._stop_engine()
            self._reached = LoaderPosition(
                self._reached.epoch + 1, 0, {}, counts=self._reached.counts
            )

    def _steps_from(self, position: int) -> int:
        """Steps from a position of the epoch to its end."""
        return self._rows_of_epoch().steps_from(position, self.batch_size * self.ranks, self._tail)

    def _rows_of_epoch(self) -> "RowCounts":
        key = self._reached.epoch, self.lanes.count
        if self._counted is None or self._counted[0] != key:
            from penstock.text.live.row_counts import count_rows

            rows = count_rows(
                self._text(),
                self.tokenizer,
                self.packing,
                self.seq_len,
                self._reached.epoch,
                self._threads,
            )
            self._counted = key, rows
        return self._counted[1]

    def state_dict(self) -> State:
        """What to save: the position, and the lanes of this rank.

        On other ranks lanes are others: save one state for each rank, or one for all that
        `TextLoader.join_states` makes of them.
        """
        self._notice_fork()
        with self._lock:
            return HEADER | {
                "position": self._reached.position,
                "epoch": self._reached.epoch,
                "lanes": self.lanes.count,
                **self._identity(),
                "lane_states": {
                    str(lane): state.to_json() for lane, state in self._states().items()
                },
            }

    def _identity(self) -> State:
        """What a position is a position in."""
        bos_id, eos_id = self.packing.marks(self.tokenizer)
        order = f"shuffle-{self._seed}" if self._shuffle else "sequential"
        return {
            "text": f"{self._text_fingerprint} {self._dealing} {order}",
            "tokenizer": f"{self.tokenizer.fingerprint} bos {bos_id} eos {eos_id}",
            "packing": self.packing.fingerprint(self.seq_len),
            "endless": self.endless,
        }

    @staticmethod
    def join_states(states: Sequence[State]) -> State:
        """One state of those of all ranks, which every rank can load, of any number that works."""
        return join_states(states)

    def load_state_dict(self, state: State) -> None:
        """Go on where `state` was taken, or say why that cannot be."""
        check_state(state, self._identity())
        lanes = self._lanes_of(state)
        position, saved = state["position"], state["lane_states"]
        wanted = self._lanes_at(position, lanes.count)
        if position and not set(map(str, wanted)) <= set(saved):
            raise StateError(
                f"rank {self.rank} of {self.ranks} needs lanes {list(wanted)}, and this state has "
                f"lanes {list(saved)!s:.100}: load the state that this rank saved, or one that "
                "TextLoader.join_states made of the states of all ranks"
            )
        from penstock.text.live.lane_state import LaneState

        most = self.packing.max_waiting
        states = {
            lane: LaneState.from_json(saved[str(lane)], most, len(self._blocks))
            for lane in wanted
            if position
        }
        self._notice_fork()
        with self._lock:
            self._stop_engine()
            reached = LoaderPosition(state["epoch"], position, states, counts=self._reached.counts)
            # Between these two no signal handler runs.
            self.lanes, self._reached = lanes, reached
            self._has_to_agree = self._checks_ranks

    def _lanes_of(self, state: State) -> Lanes:
        count = state["lanes"]
        if count == self.lanes.count:
            return self.lanes
        if count > len(self._blocks):
            raise StateError(
                f"the state has {count:,} lanes, and the text {len(self._blocks):,} blocks to share"
            )
        if self._lanes_asked is not None:
            raise StateError(
                f"the state has {count} lanes, and this loader was made with "
                f"lanes={self._lanes_asked}; leave that out, and it takes those of the state"
            )
        return self._new_lanes(count, StateError)

    @property
    def position(self) -> int:
        """How many rows (of this epoch, if it is not endless) all ranks have been handed."""
        return self._reached.position

    @property
    def epoch(self) -> int:
        """The epoch that this rank reads its next document in."""
        if not self.endless:
            return self._reached.epoch
        epochs = (
            self.lanes.block_at(lane, state.place.ordinal)[0]
            for lane, state in self._states().items()
        )
        return min(epochs, default=0)  # there are no states before the first batch

    @property
    def stats(self) -> TextLoaderStats:
        """Counts since this loader was made."""
        engine = self._engine
        seconds = Seconds()
        seconds.add(self._seconds)
        if engine is not None:
            seconds.add(engine.seconds)
        began, tokens = self._first or (time.perf_counter(), 0)
        counts = self._reached.counts
        rate = (counts.tokens - tokens) / max(time.perf_counter() - began, 1e-9)
        return counts.to_stats(
            seconds,
            row_tokens=self.seq_len,
            tokens_per_second=rate,
            ready=engine.num_ready if engine else 0,
            skipped_rows=self._skipped.count,
        )

    @one_line
    def __repr__(self) -> str:
        return (
            f"of {self.batch_size:,} x {self.seq_len:,} ({self.packing.policy}), rank {self.rank} "
            f"of {self.ranks}, {counted(self.lanes.count, 'lane')}, at position "
            f"{self._reached.position:,}; {self.source!r}, {self.tokenizer!r}"
        )

    def _find_next(self) -> tuple[Batch, LoaderPosition] | None:
        """The next batch, and what is reached with it; None where the epoch has no more.

        Until that is stored, by `BatchIterator`, this finds the same batch again.
        """
        if not self.endless and not self._steps_from(self._reached.position):
            return None
        started = time.perf_counter()
        ready = self._get_ready()
        now = time.perf_counter()
        self._seconds.consumer_waiting += now - started
        reached, before, num_tokens = self._reached, self._reached.counts, ready.memory.num_tokens
        self._first = self._first or (now, num_tokens)
        return self._maker.make(ready.memory, ready.rows), LoaderPosition(
            reached.epoch,
            reached.position + self.batch_size * self.ranks,
            {},
            ready.snapshots,
            LiveCounts(
                batches=before.batches + 1,
                rows=before.rows + ready.rows,
                tokens=before.tokens + num_tokens,
                cropped=before.cropped + ready.num_cropped,
            ),
        )

    def _get_ready(self) -> "PackedBatch":
        ready = None
        while ready is None:  # a signal handler may close the engine that we wait for
            if self._engine is None or self._engine.is_closed:
                self._stop_engine()
                self._engine = self._new_engine()
            ready = self._get_checked(self._engine)
        return ready

    def _get_checked(self, engine: "Pipeline") -> "PackedBatch | None":
        try:
            ready = engine.get(self._reached.position)
            if not self.endless and ready is not None:
                first = self._reached.position + self.rank
                positions = range(first, first + self.batch_size * self.ranks, self.ranks)
                self._rows_of_epoch().check(positions, ready.rows)
        except Exception:  # not an interrupt, after which the engine goes on
            self._stop_engine()
            raise
        else:
            return ready

    def _lanes_at(self, position: int, count: int) -> list[int]:
        """The lanes of this rank, as its rows come from them; the first is not the next."""
        residue = (position + self.rank) % self.ranks
        return list(range(residue, count, self.ranks))

    def _states(self) -> "dict[int, LaneState]":
        """This rank's lanes after what was handed out; none at the start of an epoch."""
        reached = self._reached
        if not reached.snapshots:
            return reached.states
        lanes = self._lanes_at(reached.position, self.lanes.count)
        states = (snapshot.state() for snapshot in reached.snapshots)
        return dict(zip(lanes, states, strict=True))

    def _text(self) -> "LaneText":
        from penstock.text.live.lane_text import LaneText

        read_bytes = max(_READ_BYTES * self.ranks // self.lanes.count, _LEAST_READ_BYTES)
        return LaneText(
            source=self.source, lanes=self.lanes, batch_bytes=read_bytes, skipped=self._skipped
        )

    def _new_engine(self) -> "Pipeline":
        from penstock.text.live.lane_state import LaneState
        from penstock.text.live.lane_text import LanePosition
        from penstock.text.live.pipeline import Pipeline, RankWork

        lanes = self._lanes_at(self._reached.position, self.lanes.count)
        begin = {
            lane: LaneState(
                place=LanePosition(ordinal=self.lanes.first_ordinal(lane, self._reached.epoch))
            )
            for lane in lanes
        }
        states = begin | self._states()
        work = RankWork(
            text=self._text(),
            tokenizer=self.tokenizer,
            packing=self.packing,
            layout=self._layout,
            lanes=tuple(lanes),
            states=tuple(states[lane] for lane in lanes),
            position=self._reached.position,
            step_size=self.batch_size * self.ranks,
            first=(self._reached.position + self.rank) // self.ranks % len(lanes),
            epoch=None if self.endless else self._reached.epoch,
            num_threads=self._threads,
        )
        return Pipeline(work, self._pool, self._prefetch)

    def close(self) -> None:
        """End all threads; iterating again starts them again."""
        self._notice_fork()
        with self._lock:
            self._stop_engine()

    def _stop_engine(self) -> None:
        engine = self._engine
        if engine is not None:
            engine.close()  # interrupted, it stays here, to be closed by whoever comes next
            seconds = Seconds()
            seconds.add(self._seconds)
            seconds.add(engine.seconds)
            self._seconds, self._engine = seconds, None

    def _notice_fork(self) -> None:
        """Start anew in a forked child: it has no threads, and perhaps a lock one of them held."""
        if self._pid != os.getpid():
            self._stop_engine()
            self._reset()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for other processes: settings and position, no threads and no memory."""
        left_out = ("_engine", "_lock", "_maker", "_pool")
        state = {key: value for key, value in self.__dict__.items() if key not in left_out}
        epoch, position, *_ = self._reached
        return state | {"_reached": LoaderPosition(epoch, position, self._states())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
