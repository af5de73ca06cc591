"""`ReadAhead`: how a loader reads its steps ahead, and with how many threads."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.batches.layout import BatchLayout
from penstock.batches.sample_reader import SampleReader
from penstock.load.announcing import Announcer
from penstock.load.batch_memory import BatchMemory
from penstock.load.file_caching import pass_over_files
from penstock.load.file_pass import FilePass
from penstock.load.plan import Step, StepPlan
from penstock.load.step_queue import StepQueue
from penstock.load.step_reader import StepReader, num_step_readers
from penstock.load.tensors import as_tensors
from penstock.load.token_digest import token_digest
from penstock.order.digests import digest_text
from penstock.order.order import Order
from penstock.views.view import View


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadAhead:
    """A view, its order, and how it is read ahead."""

    view: View
    order: Order
    layout: BatchLayout
    plan: StepPlan
    prefetch: int
    threads: int
    announce: int
    cache_files: bool | None
    output: str
    pin_memory: bool
    digests_tokens: bool

    def new_queue(self, position: int, skip: int, every: int) -> StepQueue:
        """Return a queue of every `every`-th step from `position` on, after `skip` steps."""
        file_pass = None
        if self.announce:
            file_pass = pass_over_files(self.view, self.layout, self.plan.ranks, self.cache_files)
        # A mapped file needs no announcing: on a page fault the system reads ahead by itself.
        announces = file_pass is not None or self.view.dataset.access == "pread"
        num_threads = self.threads if self.prefetch else 0
        return StepQueue(
            self.plan,
            [self._new_reader(file_pass) for _ in range(num_threads + 1)],  # one is the consumer's
            position=position,
            skip=skip,
            every=every,
            depth=self.prefetch,
            announce=self.announce if announces else 0,
        )

    def _new_reader(self, file_pass: FilePass | None) -> StepReader:
        num_sharers = max(num_step_readers() + 1, self.threads)
        reader = SampleReader(self.view, self.layout, num_sharers)
        announcer = Announcer(self.order.new_state(), reader.batches, self.layout.rows, file_pass)
        return StepReader(self.plan, self.order.new_state(), announcer, reader)

    @property
    def finishes(self) -> bool:
        """True if batches need `finish`."""
        return self.digests_tokens or self.view.metadata is not None

    def finish(
        self,
        batch: dict[str, Any],
        memory: BatchMemory,
        step: Step,
        decoded: dict[str, Any] | None,
    ) -> str | None:
        """Add decoded metadata to a batch; return the digest of its tokens, if one is kept."""
        if decoded:
            batch |= as_tensors(decoded, self.output)
        return self._digest(memory, step) if self.digests_tokens else None

    def _digest(self, memory: BatchMemory, step: Step) -> str:
        content = np.frombuffer(memoryview(memory), np.uint8)
        places, counts = self.layout.places(), self.layout.counts(content)
        inputs, labels = (
            np.ascontiguousarray(places[name].of(content, step.rows, counts), np.int64)
            for name in ("input_ids", "labels")
        )
        lengths = self.layout.row_lengths(content, step.rows)
        first = step.position + self.plan.rank
        return digest_text(token_digest(inputs, labels, lengths, first, self.plan.ranks))
