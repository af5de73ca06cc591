from typing import Self

from millstream.batches.sample_reader import SampleReader
from millstream.load.announcing import Announcer
from millstream.load.fetch_ahead import FetchAhead
from millstream.load.plan import StepPlan
from millstream.order.shuffling import OrderState

class StepReader:
    sample_reader: SampleReader
    decodes: bool
    def __new__(
        cls,
        plan: StepPlan,
        order: OrderState,
        announcer: Announcer,
        sample_reader: SampleReader,
        ahead: FetchAhead | None = None,
    ) -> Self: ...
