"""Benchmarks: `make bench`, or `python -m benchmarks [topic ...]`.

    topic       one question, one file: throughput, grid, gil, scale, cold, memory, order, …
    contender   one way to do the work, timed against the others
    round       every contender once, in random order; a noisy minute affects all of them
    spread      the median of a contender's rounds, with the minimum and the maximum
    target      a ratio or a limit that Millstream promises, met or missed

Compare ratios within a run; absolute numbers depend on the machine and the hour. `rounds` times,
`report` prints, `corpora` generates the data (in bench-data/, kept for the next run), `consumer`
uses the batches, and `reference.c` shows what the hardware can do without a loader.
"""

import warnings

from millstream.errors import WaitingWarning

warnings.simplefilter("ignore", WaitingWarning)  # to wait is all that many of them do
