"""Timings: `make bench`, or `python -m benchmarks [topic ...]`.

    topic       one question, one file: throughput, grid, gil, scale, cold, memory, order, …
    contender   one way to do the work, timed against the others
    round       every contender once, in random order; a noisy minute hits them all alike
    spread      the median of a contender's rounds, with the least and the most
    target      a ratio or a limit that Penstock promises, met or missed

Ratios within a run mean something; absolute numbers are this machine's, at that hour. `rounds`
times, `report` shows, `corpora` makes the data (in bench-data/, kept for the next run), `consumer`
uses the batches, `reference.c` is what the hardware can do without a loader.
"""
