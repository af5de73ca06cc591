"""Batches in the form in which they cross to a device, widened on the CPU."""

import numpy as np

from millstream.batches.sample_reader import SampleReader
from millstream.load.widening import widen


def read_compactly(view, samples, dtype, row_slice=None):
    """Samples read in compact form, and widened."""
    layout = view.layout(len(samples), dtype, row_slice)
    memory = np.full(layout.compact().num_bytes, 0xA5, np.uint8)
    reader = SampleReader(view, layout.compact())
    reader.read(np.array(samples, np.int64), memory)
    reader.close()
    counts = layout.counts(memory)
    batch = widen(layout, memory, len(samples))
    if "cu_seqlens" in batch:
        batch["max_seqlen"] = int(counts["max_seqlen"])
    if "row_cu_seqlens" in batch:
        batch["row_max_seqlen"] = int(counts["row_max_seqlen"])
    return batch
