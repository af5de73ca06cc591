from typing import Self

from penstock.load.announcing import Announcer
from penstock.load.plan import Plan
from penstock.order.evaluation import OrderState
from penstock.views.reading import SampleReader

def num_step_readers() -> int: ...

class StepReader:
    sample_reader: SampleReader
    decodes: bool
    def __new__(
        cls,
        plan: Plan,
        order: OrderState,
        announcer: Announcer,
        sample_reader: SampleReader,
    ) -> Self: ...
