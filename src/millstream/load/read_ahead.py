"""`ReadAhead`: how a loader reads its steps ahead, and with how many threads."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from millstream.batches.batch_transform import BatchTransform
from millstream.batches.layout import BatchLayout
from millstream.batches.object_decoding import DOCUMENTS, CollatedBatch
from millstream.batches.object_memory import ObjectPool
from millstream.batches.outputs import SOURCE_IDS
from millstream.batches.sample_reader import SampleReader
from millstream.formats.shard import TOKEN
from millstream.load.announcing import Announcer
from millstream.load.batch_maker import BatchMaker
from millstream.load.batch_memory import BatchMemory, Pool
from millstream.load.devices import crosses_compactly, new_feed
from millstream.load.fetch_ahead import FetchAhead
from millstream.load.file_caching import pass_over_files
from millstream.load.file_pass import FilePass
from millstream.load.next_use import NextUse
from millstream.load.plan import Step, StepPlan
from millstream.load.ranks import num_rank_processors
from millstream.load.source_counter import SourceCounter
from millstream.load.stats import LoaderTotals
from millstream.load.step_queue import StepQueue
from millstream.load.step_ranges import StepRanges
from millstream.load.step_reader import StepReader
from millstream.load.tensors import as_tensors, from_numpy, new_pinned
from millstream.load.token_digest import token_digest
from millstream.load.waiting import check_waiting, reading_advice
from millstream.load.walk import Walk
from millstream.load.workers import find_worker
from millstream.metadata.span_decoding import check_decoder
from millstream.mixing.mixture import Mixture
from millstream.order.digests import digest_text
from millstream.order.mixture_order import MixtureOrder
from millstream.order.order import Indices, Order
from millstream.order.shuffling import OrderKind
from millstream.read.local_reader import Access
from millstream.reprs import listed
from millstream.views.view import View

if TYPE_CHECKING:
    import torch

StepTransform = Callable[[BatchMemory, Step, dict[str, Any] | None], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadAhead:
    """A view, its order, and how it is read ahead."""

    view: View | Mixture
    order: Order | MixtureOrder
    layout: BatchLayout
    """of the batches that are handed out"""
    plan: StepPlan
    prefetch: int
    threads: int
    announce: int
    cache_files: bool | None
    output: str
    pin_memory: bool
    digests_tokens: bool
    device: "torch.device | None"
    static_addresses: bool

    @property
    def memory_layout(self) -> BatchLayout:
        """The layout that batches are read in: compact, if a device makes the outputs."""
        return self.layout.compact() if self._is_compact else self.layout

    @property
    def _is_compact(self) -> bool:
        has_form = self.layout.has_compact_form and self.view.transform is None
        return crosses_compactly(self.device) and has_form

    @property
    def _num_memories(self) -> int:
        """How many batches have memory of their own at once."""
        # Two besides those read ahead: the step in the user's hands, and the one that comes next.
        return self.prefetch + 2 * self.plan.max_batches

    def new_walk(self) -> Walk:
        """Return a walk over all steps."""
        layout, feeds = self.memory_layout, self._is_compact
        pool = Pool(
            layout.num_bytes,
            self._num_memories,
            new_pinned if self.pin_memory or feeds else None,
            reuses_tensors=feeds,
        )
        maker = BatchMaker(self.layout.places(), layout.rows, from_numpy(self.output))
        as_tensor = from_numpy(self.output) if self._hands_out_bytes else None
        finish = partial(self._finish, as_tensor)
        feed = None
        if self.device is not None:
            feed = new_feed(
                self.device,
                self.layout,
                maker,
                static_addresses=self.static_addresses,
                transforms=self.view.transform is not None,
            )
        counter = None
        if SOURCE_IDS in layout.places():
            start = layout.places()[SOURCE_IDS].offset
            counter = SourceCounter(len(self.view.sources), start)
        transform = None
        if self.view.transform is not None:
            made = BatchTransform(self.view.transform)
            transform = partial(self._transform, maker, finish, made)
        return Walk(
            self.plan,
            pool,
            maker,
            partial(self._new_queue, transform),
            finish if self._finishes else None,
            feed,
            self._check_waiting,
            counter,
            transforms=transform is not None,
        )

    def _new_queue(
        self, transform: StepTransform | None, position: int, skip: int, every: int
    ) -> StepQueue:
        """Return a queue of every `every`-th step from `position` on, after `skip` steps."""
        file_pass = None
        fetch_ahead = self._new_fetch_ahead(position, skip, every)
        if self.announce and fetch_ahead is None:
            layout = self.memory_layout
            file_pass = pass_over_files(
                self.view.sources, layout, self.plan.ranks, self.cache_files
            )
        # A mapped file needs no announcing: on a page fault the system reads ahead by itself.
        announces = file_pass is not None or "pread" in self._accesses
        num_readers = (self.threads if self.prefetch else 0) + 1  # one is the consumer's
        object_pool = ObjectPool(self._num_memories)
        return StepQueue(
            self.plan,
            [
                self._new_reader(file_pass, num_left, object_pool, fetch_ahead)
                for num_left in range(num_readers, 0, -1)
            ],
            position=position,
            skip=skip,
            every=every,
            depth=self.prefetch,
            announce=self.announce if announces else 0,
            transform=transform,
        )

    def new_step_ranges(self, position: int, skip: int = 0, every: int = 1) -> StepRanges:
        """Return the bytes that steps read, from a position on."""
        batches = SampleReader(self.view, self.memory_layout).batches
        order = self.order.new_state()
        return StepRanges(self.plan, order, batches, position=position, skip=skip, every=every)

    def _new_fetch_ahead(self, position: int, skip: int, every: int) -> FetchAhead | None:
        """What fetches the files of the view from other machines; None if all are local."""
        readers = [source.dataset.reader for source in self.view.sources]
        if not any(reader.has_remote_files for reader in readers):
            return None
        new_ranges = partial(self.new_step_ranges, position, skip, every)
        next_use = partial(NextUse, self.view, self.order, self.plan)
        order, block_of = self.order, None
        if isinstance(order, Order) and order.block_size > 1:
            block_of = partial(_block_of, order)
        orders = [order] if isinstance(order, Order) else order.orders
        is_scattered = all(each.kind == OrderKind.SHUFFLED for each in orders)
        return FetchAhead(new_ranges, readers, next_use, block_of, is_scattered=is_scattered)

    def _new_reader(
        self,
        file_pass: FilePass | None,
        num_left: int,
        object_pool: ObjectPool,
        fetch_ahead: FetchAhead | None,
    ) -> StepReader:
        reader = SampleReader(self.view, self.memory_layout, num_left, object_pool)
        # Announcing may be an epoch ahead of reading, and a state remembers one epoch. With many
        # sources that matters little, and their tables would take too much memory.
        order = self.order.new_state()
        later = order if len(self.view.sources) > 1 else self.order.new_state()
        announcer = Announcer(later, reader.batches, self.layout.rows, file_pass)
        return StepReader(self.plan, order, announcer, reader, fetch_ahead)

    def _check_waiting(self, first: LoaderTotals, now: LoaderTotals, is_uncached: bool) -> float:
        if find_worker() is not None:  # a DataLoader has batches in store
            return math.inf
        return check_waiting(first, now, lambda: self._advice(is_uncached))

    def _advice(self, is_uncached: bool) -> str:
        decoders = [view.metadata for view in self.view.sources if view.metadata is not None]
        inputs = self.memory_layout.places().get("input_ids")
        return reading_advice(
            prefetch=self.prefetch,
            threads=self.threads,
            num_processors=num_rank_processors(),
            transforms=self.view.transform is not None,
            decodes=any(callable(check_decoder(decoder)) for decoder in decoders)
            or any(view.coding is not None for view in self.view.sources),
            is_remote=any(view.dataset.reader.misses_remote_files for view in self.view.sources),
            is_uncached=is_uncached,
            cache_files=self.cache_files,
            widens=inputs is not None
            and inputs.dtype.itemsize
            > max(view.dataset.fields[TOKEN].itemsize for view in self.view.sources),
            access="pread" if "pread" in self._accesses else "mmap",
        )

    @property
    def _accesses(self) -> set[Access]:
        return {view.dataset.access for view in self.view.sources}

    @property
    def _hands_out_bytes(self) -> bool:
        """Whether documents of objects are arrays, not decoded ones."""
        codings = [view.coding for view in self.view.sources]
        return all(coding is not None and coding.decode is None for coding in codings)

    @property
    def _finishes(self) -> bool:
        decodes = any(view.metadata is not None or view.coding for view in self.view.sources)
        return self.digests_tokens or decodes

    def _finish(
        self,
        as_tensor: Callable[[Any], Any] | None,
        batch: dict[str, Any],
        memory: BatchMemory,
        step: Step,
        decoded: dict[str, Any] | None,
    ) -> str | None:
        """Add decoded metadata to a batch; return the digest of its tokens, if one is kept.

        `as_tensor` is for documents that are arrays.
        """
        if decoded:
            batch |= as_tensors(decoded, self.output)
            if as_tensor is not None:
                batch[DOCUMENTS] = list(map(as_tensor, decoded[DOCUMENTS]))
        return self._digest(memory, step) if self.digests_tokens else None

    def _transform(
        self,
        maker: BatchMaker,
        finish: Callable[..., str | None],
        transform: BatchTransform,
        memory: BatchMemory,
        step: Step,
        decoded: dict[str, Any] | CollatedBatch | None,
    ) -> tuple[Any, str | None]:
        """Make a batch and transform it; return it with what `finish` returned before."""
        batch: Any
        finished = None
        if isinstance(decoded, CollatedBatch):
            batch = decoded.batch
        else:
            batch = maker.make(memory, step.rows)
            finished = finish(batch, memory, step, decoded)
        # Rows are counted later, and the user may write to these.
        if isinstance(batch, dict) and SOURCE_IDS in batch:
            batch[SOURCE_IDS] = deepcopy(batch[SOURCE_IDS])
        rows = np.arange(step.rows, dtype=np.int64)
        positions = step.position + self.plan.rank + rows * self.plan.ranks
        return transform.run(batch, positions, self._name_rows), finished

    def _name_rows(self, positions: Indices) -> str:
        """Return which rows are at positions, for messages."""
        if isinstance(self.view, Mixture):
            return self.view.name_rows(positions)
        return f"positions {listed(positions)} (samples {listed(self.order.samples_at(positions))})"

    def _digest(self, memory: BatchMemory, step: Step) -> str:
        content = np.frombuffer(memoryview(memory), np.uint8)
        if self._is_compact:
            from millstream.load.widening import widen

            outputs = widen(self.layout, content, step.rows)
        else:
            outputs = self.layout.outputs_in(content, step.rows)
        inputs, labels = (
            np.ascontiguousarray(outputs[name], np.int64) for name in ("input_ids", "labels")
        )
        lengths = self.layout.row_lengths(content, step.rows)
        first = step.position + self.plan.rank
        return digest_text(token_digest(inputs, labels, lengths, first, self.plan.ranks))


def _block_of(order: Order, position: int) -> int:
    """The block of samples that an order has at a position."""
    return int(order.samples_at([position])[0]) // order.block_size
