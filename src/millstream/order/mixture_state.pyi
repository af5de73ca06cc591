from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from millstream.order.mixing import MixtureTable
from millstream.order.shuffling import OrderState

class MixtureState(OrderState):
    def locate(
        self,
        positions: NDArray[np.int64],
        sources: NDArray[np.int64],
        samples: NDArray[np.int64],
    ) -> None: ...
    def __new__(
        cls,
        table: MixtureTable,
        orders: Sequence[OrderState],
        first_samples: NDArray[np.int64],
    ) -> Self: ...
