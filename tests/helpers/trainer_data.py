"""Loaders of tokens and of text with the same number of steps, for tests of trainers."""

import numpy as np

import millstream

SEQ_LEN, ROWS, STEPS = 8, 4, 43


def write_view(path):
    with millstream.Writer(path, vocab_size=60_000) as writer:
        writer.append(np.arange(STEPS * ROWS * SEQ_LEN + 10, dtype=np.uint16))
    return millstream.open(path).windows(SEQ_LEN)


def make(view, **options):
    return millstream.Loader(view, ROWS, seed=3, **options)


def write_text(path):
    path.write_text("".join(f"{number:08}\n" for number in range(STEPS * ROWS + 1)))
    return path


def make_text(text, **options):
    packing = millstream.Packing(policy="flat", add="none")
    return millstream.TextLoader(
        text, "bytes", ROWS, SEQ_LEN, packing, **({"endless": False} | options)
    )
