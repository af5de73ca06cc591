"""Windows: rows of equal length cut from the stream, blind to documents and shards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from penstock.arguments import integer
from penstock.formats.stream import TOKEN
from penstock.read.layout import BatchLayout, Output

if TYPE_CHECKING:
    from penstock.dataset import Dataset
    from penstock.views.kernels import WindowState

Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Windows(Sequence[Batch]):
    """Sample i is `seq_len + 1` records: `input_ids`, and `labels` one further on.

    With `overlap`, windows start `seq_len` records apart and share one: the last label of a
    window is the first input of the next, and every token but the stream's first is a label once.
    Without, they start `seq_len + 1` apart, as datatrove cuts them, and one token in `seq_len + 1`
    is never a label. What remains at the end of the stream, less than a window, is left out.

    Fields of the record other than the token arrive under their names, aligned with `input_ids`.

    >>> view = data.windows(4)
    >>> len(view), view[1]["input_ids"].tolist(), view[1]["labels"].tolist()
    (24, [4, 5, 6, 7], [5, 6, 7, 8])
    >>> view.read([23, 0])["input_ids"].tolist()
    [[92, 93, 94, 95], [0, 1, 2, 3]]
    """

    dataset: "Dataset"
    seq_len: int
    overlap: bool = True

    def __post_init__(self) -> None:
        seq_len = integer("seq_len", self.seq_len, 1, (1 << 40) - 1)
        object.__setattr__(self, "seq_len", seq_len)

    @property
    def stride(self) -> int:
        """How many records further the next window starts."""
        return self.seq_len if self.overlap else self.seq_len + 1

    @property
    def width(self) -> int:
        """How many records of a row are read."""
        return self.seq_len + 1

    @property
    def fingerprint(self) -> str:
        """What a saved position depends on: the cut, and the data under it."""
        return f"windows-v1 of {self.width} every {self.stride} in {self.dataset.fingerprint}"

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What arrives in a batch."""
        outputs: list[Output] = []
        for field in self.dataset.fields.names or ():
            if field == TOKEN:
                outputs.append(Output("input_ids", field, 0, self.seq_len))
                outputs.append(Output("labels", field, 1, self.seq_len + 1))
            else:
                outputs.append(Output(field, field, 0, self.seq_len))
        return tuple(outputs)

    def __len__(self) -> int:
        spare = self.dataset.num_records - self.width
        return spare // self.stride + 1 if spare >= 0 else 0

    def __getitem__(self, index: Any) -> Any:
        """One sample, or the samples of a slice as one batch."""
        if isinstance(index, slice):
            return self.read(np.arange(*index.indices(len(self))))
        try:
            position = range(len(self))[index]
        except IndexError:
            raise IndexError(f"no sample {index:,}: there are {len(self):,}") from None
        return {name: values[0] for name, values in self.read([position]).items()}

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def read(self, indices: ArrayLike, *, dtype: DTypeLike | None = np.int64) -> Batch:
        """Read the samples `indices` as one NumPy batch; `dtype=None` keeps the stored type."""
        from penstock.views.kernels import window_segments

        wanted = np.asarray(indices)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise TypeError(f"samples are chosen by integers, not {wanted.dtype}")
        samples = np.ascontiguousarray(wanted, np.int64).reshape(-1)
        if samples.size and not 0 <= samples.min() <= samples.max() < len(self):
            bad = samples.min() if samples.min() < 0 else samples.max()
            raise IndexError(f"no sample {bad:,}: there are {len(self):,}")
        segments = np.empty((samples.size, 4), np.int64)
        window_segments(self.for_kernels(), samples, segments)
        token_dtype = self.dataset.token_dtype_out(dtype)
        layout = BatchLayout(self.dataset.fields, samples.size, self.outputs, token_dtype)
        memory = np.empty(layout.num_bytes, np.uint8)
        self.dataset.reader.read(segments, layout, memory)
        return {name: place.of(memory, samples.size) for name, place in layout.places().items()}

    def for_kernels(self) -> "WindowState":
        """Describe this to kernels."""
        from penstock.views.kernels import WindowState

        return WindowState(np.int64(self.stride), np.int64(self.width))
