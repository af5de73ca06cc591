"""`Excerpts`: runs of records, one a row."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.batches.view_state import ViewKind, ViewState
from penstock.views.view import View


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Excerpts(View):
    """Runs of `seq_len` records each, one a row."""

    runs: NDArray[np.int64]
    """the start, length and document of each run"""

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def fingerprint(self) -> str:
        """Names the excerpts; no loader saves a position in them."""
        return f"{len(self)} excerpts of {self.dataset.fingerprint}"

    @property
    def max_segments(self) -> int:
        """The most segments that a row has: a row is one run."""
        return 1

    def for_kernels(self) -> ViewState:
        """The view as kernels take it."""
        return self._state(ViewKind.ROWS, pieces=self.runs)
