from typing import Self

from penstock.batches.sample_reader import SampleReader
from penstock.load.announcing import Announcer
from penstock.load.fetch_ahead import FetchAhead
from penstock.load.plan import StepPlan
from penstock.order.shuffling import OrderState

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
