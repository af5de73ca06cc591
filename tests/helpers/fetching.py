"""`fetch` with short waits, and the partial files that it leaves."""

import random

import millstream

BODY = random.Random(0).randbytes(3_000_000)
OTHER = random.Random(1).randbytes(3_000_000)


def fetch(urls, out, **options):
    """With short waits, and the notes."""
    notes = []
    options = {"backoff_s": 0.01, "timeout_s": 20} | options
    report = millstream.fetch(urls, out, progress=lambda p: notes.extend(p.notes), **options)
    return report, notes


def parts(directory):
    return sorted(directory.glob(".fetch/*.part"))
