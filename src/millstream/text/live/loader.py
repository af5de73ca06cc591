"""`TextLoader`: batches of text that is tokenized and packed while a model trains."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from millstream.arguments import integer
from millstream.batches.batch_transform import Transform
from millstream.errors import MillstreamError, StateError, UsageError
from millstream.load.base_loader import BaseLoader, LoaderStep
from millstream.load.batch_sizes import GlobalBatchSize
from millstream.load.frameworks import check_state_caller
from millstream.load.ranks import find_process_group
from millstream.load.state import State
from millstream.load.stats import LoaderTotals
from millstream.load.tensors import plain_dtype, register_as_dataset
from millstream.load.thread_counts import num_tokenizing_threads, tokenizing_depth
from millstream.load.workers import Worker
from millstream.reprs import counted
from millstream.text.chats.chat import Chat
from millstream.text.chats.loading import renderer_of
from millstream.text.live.block_dealing import Dealing, Lanes
from millstream.text.live.handover import BatchIterator
from millstream.text.live.lane_state import LaneState
from millstream.text.live.live_walk import LivePlan, LiveWalk
from millstream.text.live.loader_state import (
    STATE_KEYS,
    argument_for,
    check_types,
    join_states,
)
from millstream.text.live.packing import LivePolicy, Packing
from millstream.text.live.stats import TextLoaderStats
from millstream.text.sources import Source
from millstream.text.sources.blocks import TextBlocks
from millstream.text.sources.listing import Paths
from millstream.text.tokenizers.adapter import find_tokenizer


class TextLoader(BaseLoader):
    r"""Batches of text that is tokenized and packed in the background, one epoch per `iter`.

    Arguments:
        source: a `Source`, or what one is made of: a file, a directory, a pattern, a list.
        tokenizer: what `load_tokenizer` takes or returns, or any object that has `encode`, such as
            one of tiktoken, tokenizers or transformers.
        batch_size: rows per rank.
        global_batch_size: rows of a step on all ranks, for gradient accumulation: a multiple of
            batch_size * ranks, or with endless=True a schedule [(position, rows), …] of such. The
            loader then gives a list of batches for each step.
        seq_len: inputs in a row.
        packing: how documents become rows: "flat", "best_fit", "bos_best_fit" (as nanochat),
            "full_best_fit", or a `Packing` with all options.
        seed: decides the shuffle, together with the epoch.
        shuffle: True for another order of blocks in every epoch, False for the order of the files.
        rank, ranks: this process's share; None takes it from torch.distributed or the environment.
        parallel: instead of them, a `Parallel`, or a torch `DeviceMesh` with the usual names.
        lanes: a multiple of ranks, fixed for a run: it can be resumed on any number of ranks that
            divides it. None for as many as ranks, or as the state has that is loaded. More lanes
            also mix more: neighbouring rows of one lane may come from one long document.
        tail: what becomes of the rest of an epoch: 'drop' ends it before the first batch that is
            short on any rank, 'keep' after every row was handed out.
        endless: never stop at the end of an epoch.
        output: 'torch' or 'numpy'.
        dtype: of token ids, NumPy's or torch's; None for the smallest that holds the vocabulary.
        pin_memory: put batches into page-locked memory, for copies of your own to a device.
        device: where batches arrive, such as "cuda"; None for the host.
        static_addresses: hand out all batches in the same tensors, for CUDA graphs: each
            overwrites the one before.
        prefetch: how many batches are made ahead; None for 4.
        threads: how many threads tokenize, besides one that reads; None for one per processor that
            this rank has, from 1 to 4.
        check_ranks: compare the loader with those of other ranks when it begins, where
            torch.distributed is initialized (see `load.rank_agreement`).
        gather_states: `state_dict()` gathers the states of all ranks into one, by a collective of
            torch.distributed: every rank must call it. For frameworks that save one state for all.
        transform: a function of each batch, which returns what is handed out instead, as that of a
            view; it runs in the packing thread.
        chat: if rows have conversations, how they become text. Batches then have a `loss_mask`, and
            labels are -100 where nothing is trained on.

    `state_dict()` may be taken after any step. It describes what was handed out, never what was
    packed ahead, and loads into a loader with any other batch sizes, tail or prefetch.

    Several ranks must end an epoch at the same step, so each of them counts its rows first: all
    text is tokenized once, and the lengths of documents are cached. `len()` and `remaining` count,
    too. One rank iterates without counting, and so do ranks with endless=True.

    >>> _ = (tmp / "text.txt").write_text("one\ntwo\nthree\n" * 9)
    >>> loader = TextLoader(tmp / "text.txt", "bytes", batch_size=2, seq_len=8, output="numpy")
    >>> batch = next(iter(loader))
    >>> batch["input_ids"].shape, loader.state_dict()["position"]
    ((2, 8), 2)
    >>> loader.close()
    """

    kind = "TextLoader"
    tails = ("drop", "keep")
    state_keys = STATE_KEYS
    dealing: ClassVar[Dealing] = "stride"
    """how blocks are dealt out to lanes: a loader built on this one may have another way"""
    read_bytes: ClassVar[int] = 1 << 18
    """about how much text a rank reads at a time: half of it costs 5 % of the speed"""

    def __init__(
        self,
        source: Source | Paths,
        tokenizer: Any,
        batch_size: int,
        seq_len: int,
        packing: LivePolicy | Packing = "full_best_fit",
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        ranks: int | None = None,
        parallel: Any = None,
        lanes: int | None = None,
        tail: Literal["drop", "keep"] = "drop",
        endless: bool = False,
        output: Literal["torch", "numpy"] = "torch",
        dtype: Any = np.int64,
        pin_memory: bool = False,
        device: Any = None,
        static_addresses: bool = False,
        prefetch: int | None = None,
        threads: int | None = None,
        check_ranks: bool = True,
        global_batch_size: GlobalBatchSize | None = None,
        gather_states: bool = False,
        transform: Transform | None = None,
        chat: Chat | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            seed=seed,
            rank=rank,
            ranks=ranks,
            parallel=parallel,
            tail=tail,
            endless=endless,
            output=output,
            pin_memory=pin_memory,
            device=device,
            static_addresses=static_addresses,
            check_ranks=check_ranks,
            global_batch_size=global_batch_size,
            transforms=transform is not None,
        )
        self._check_global_batch_size()
        self.source = source if isinstance(source, Source) else Source(source)
        self.packing = packing if isinstance(packing, Packing) else Packing(policy=packing)
        if chat is not None:
            self._read_chats(chat, tokenizer)
        self.tokenizer = find_tokenizer(tokenizer, spells_specials=chat is not None)
        self.seq_len = integer("seq_len", seq_len, 1, 1 << 27)
        self._text_fingerprint = self.source.fingerprint  # takes 70 ms for 6,500 files
        self._lanes_asked = lanes
        if not isinstance(shuffle, bool):
            raise UsageError(
                f"shuffle is {shuffle!r}; here it is True or False, as whole blocks are shuffled "
                "(millstream repack --shuffle shuffles documents, once)"
            )
        self.shuffle = shuffle
        num_lanes = self.ranks if lanes is None else integer("lanes", lanes, 1, 1 << 31)
        self._marks = self.packing.marks(self.tokenizer)
        plan = LivePlan(
            source=self.source,
            tokenizer=self.tokenizer,
            packing=self.packing,
            layout=self.packing.layout(
                self.tokenizer,
                self.seq_len,
                self.batch_size,
                plain_dtype(dtype),
                self.parallel.row_slice,
                masks_loss=self.source.masks_loss,
            ),
            rank=self.rank,
            ranks=self.ranks,
            tail=tail,
            endless=endless,
            output=output,
            pin_memory=pin_memory,
            prefetch=tokenizing_depth(prefetch),
            threads=num_tokenizing_threads(threads),
            read_bytes=self.read_bytes,
            device=self.device,
            static_addresses=static_addresses,
            global_batch_size=self.global_batch_size,
            transform=transform,
        )
        self.walk = LiveWalk(plan, self._new_lanes(self.source.blocks(), num_lanes, UsageError))
        """the rows of this rank, for loaders that are built on this one"""
        self._gathers_states = gather_states and self.ranks > 1
        self._rest_may_be_empty = False
        register_as_dataset(BaseLoader)

    def _read_chats(self, chat: Chat, tokenizer: Any) -> None:
        renderer = renderer_of(chat, tokenizer)
        if renderer.group_size > 1:
            raise UsageError(
                "pairs (chosen, rejected) stay together only in stored datasets: write one with "
                "millstream.tokenize(…, chat=…), and load it with a Loader"
            )
        self.source = self.source.as_chats(renderer)
        self.source.check_columns()
        packing = self.packing
        if packing.add is None:
            packing = replace(packing, add=chat.default_add)
        if packing.mask_ends is None:  # the next document may be the rest of a conversation
            packing = replace(packing, mask_ends=True)
        self.packing = packing

    def _check_global_batch_size(self) -> None:
        sizes, span = self.global_batch_size, self.batch_size * self.ranks
        if sizes is None:
            return
        if sizes.is_schedule and not self.endless:
            raise UsageError(
                "a schedule of global_batch_size needs endless=True: otherwise positions of a "
                "TextLoader begin again with every epoch"
            )
        for _, rows in sizes.stages:
            if rows % span:
                works = [near for near in (rows - rows % span, rows - rows % span + span) if near]
                raise UsageError(
                    f"global_batch_size={rows:,} is not a multiple of the {span:,} rows that "
                    f"{counted(self.ranks, 'rank')} of batch_size={self.batch_size:,} have "
                    f"together; use {' or '.join(f'{near:,}' for near in works)}"
                )

    def _new_lanes(self, blocks: TextBlocks, count: int, refusal: type[MillstreamError]) -> Lanes:
        lanes = Lanes(  # refuses more than there are blocks
            blocks=blocks, count=count, shuffle=self.shuffle, seed=self.seed, dealing=self.dealing
        )
        if count % self.ranks:
            works = [str(ranks) for ranks in range(1, count + 1) if count % ranks == 0]
            raise refusal(
                f"{counted(count, 'lane')} cannot be shared by {counted(self.ranks, 'rank')}; "
                f"numbers of ranks that work are {', '.join(works)} (a new run may have other "
                "lanes: lanes=…)"
            )
        return lanes

    @property
    def lanes(self) -> Lanes:
        """The lanes of all ranks, and the blocks of each."""
        return self.walk.lanes

    def _content(self) -> str:
        return (
            f"{self.packing.policy} in rows of {self.seq_len:,}, "
            f"{counted(self.lanes.count, 'lane')}; {self.source!r}, {self.tokenizer!r}"
        )

    def _iterate(self) -> Iterator[LoaderStep]:
        has_begun, self._rest_may_be_empty = self._rest_may_be_empty, False
        return BatchIterator(self.walk, has_begun=has_begun)

    def _iterate_as_worker(self, worker: Worker) -> Iterator[LoaderStep]:
        raise UsageError(
            "a TextLoader has threads of its own, and its state is in this process: iterate over "
            "it directly, or with DataLoader(loader, batch_size=None, num_workers=0)"
        )

    def _num_steps(self, *, of_epoch: bool) -> int:
        return self.walk.num_steps(of_epoch=of_epoch)

    def _standing(self) -> State:
        reached = self.walk.reached
        return {"position": reached.position, "epoch": reached.epoch, "lanes": self.lanes.count}

    def _identity(self) -> State:
        bos_id, eos_id = self._marks
        order = f"shuffle-{self.seed}" if self.shuffle else "sequential"
        masked = " masked" if self.source.masks_loss else ""
        return {
            "text": f"{self._text_fingerprint}{masked} {self.dealing} {order}",
            "tokenizer": f"{self.tokenizer.fingerprint} bos {bos_id} eos {eos_id}",
            "packing": self.packing.fingerprint(self.seq_len),
            "endless": self.endless,
        }

    def _argument_for(self, key: str, saved: Any) -> str:
        return argument_for(key, saved, self._identity()[key])

    def state_dict(self) -> State:
        """What to save: where the loader stands, what decides its rows, and this rank's lanes.

        Every rank has lanes of its own: save one state for each rank, or one for all that
        `TextLoader.join_states` makes of them. With `gather_states=True` it is the one for all.
        """
        check_state_caller()
        self.walk.notice_fork()
        with self.walk.lock:
            states = self.walk.states()
            lane_states = {str(lane): state.to_json() for lane, state in states.items()}
            state = super().state_dict() | {"lane_states": lane_states}
        return _gather(state) if self._gathers_states else state

    @property
    def has_common_state(self) -> bool:
        """Whether `state_dict()` is for all ranks."""
        return self.ranks == 1 or self._gathers_states

    @staticmethod
    def join_states(states: Sequence[State]) -> State:
        """Join the states of all ranks into one, which any number of ranks that works can load."""
        return join_states(states)

    def _restore(self, state: State) -> None:
        check_types(state)
        lanes = self._lanes_of(state)
        position, saved = state["position"], state["lane_states"]
        wanted = self.walk.lanes_of_rank(position, lanes.count)
        if position and not set(map(str, wanted)) <= set(saved):
            raise StateError(
                f"rank {self.rank} of {self.ranks} needs lanes {wanted}, and this state has "
                f"lanes {list(saved)!s:.100}: load the state that this rank saved, or one that "
                "TextLoader.join_states made of the states of all ranks"
            )
        most, num_blocks = self.packing.max_waiting, len(lanes.blocks)
        states = {
            lane: LaneState.from_json(saved[str(lane)], most, num_blocks)
            for lane in wanted
            if position
        }
        self.walk.jump_to(state["epoch"], position, states, lanes)
        self._rest_may_be_empty = False

    def _lanes_of(self, state: State) -> Lanes:
        count, blocks = state["lanes"], self.lanes.blocks
        if count == self.lanes.count:
            return self.lanes
        if count > len(blocks):
            raise StateError(
                f"the state has {count:,} lanes, and the text {len(blocks):,} blocks to share"
            )
        if self._lanes_asked is not None:
            raise StateError(
                f"the state has {counted(count, 'lane')}, and this loader was made with "
                f"lanes={self._lanes_asked}; leave that out, and it takes those of the state"
            )
        return self._new_lanes(blocks, count, StateError)

    def _begin_epoch(self, epoch: int) -> bool:
        if self.endless:
            raise UsageError("an endless TextLoader has no epochs to set; make it endless=False")
        before = self.walk.reached
        self._rest_may_be_empty = self.walk.set_epoch(epoch)
        return self.walk.reached is not before

    @property
    def position(self) -> int:
        """How many rows all ranks together have been handed: of this epoch, or if endless, ever."""
        return self.walk.reached.position

    @property
    def epoch(self) -> int:
        """The epoch of the last batch, until the next `iter` or `set_epoch` begins another.

        If endless, the epoch that this rank reads its next document in.
        """
        if not self.endless:
            return self.walk.reached.epoch
        epochs = (
            self.lanes.block_at(lane, state.place.ordinal)[0]
            for lane, state in self.walk.states().items()
        )
        return min(epochs, default=0)  # there are no states before the first batch

    @property
    def stats(self) -> TextLoaderStats:
        """Counts since this loader was made."""
        return self.walk.stats()

    def _totals(self) -> LoaderTotals:
        return self.walk.totals()

    def close(self) -> None:
        """End all threads; iterating again starts them again."""
        self.walk.close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        register_as_dataset(BaseLoader)


def _gather(state: State) -> State:
    """Join this rank's state with those of all others."""
    group = find_process_group()
    if group is None:
        raise UsageError("gather_states=True needs torch.distributed, which is not initialized")
    states = [state] * group.get_world_size()
    group.all_gather_object(states, state)
    return join_states(states)
