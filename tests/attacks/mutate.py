"""Feeds mutated files to the parsers, without atheris: for builds that it cannot watch.

    python tests/attacks/mutate.py SECONDS [SEED]

Inputs are golden files and random bytes, changed in a few places. `make sanitize` runs it with
kernels that report every wrong access. An input that ends the run, or the process, is left in
`mutated-input`.
"""

import random
import sys
import time
from pathlib import Path

import fuzzing

# Numbers that sizes and offsets get wrong.
EDGES = [0, 1, 2, 127, 128, 255, 256, (1 << 16) - 1, 1 << 16, (1 << 31) - 1, 1 << 31]
EDGES += [(1 << 32) - 1, 1 << 32, (1 << 62) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
MAX_BYTES = 1 << 14


def mutated(data: bytearray, others: list[bytes], choose: random.Random) -> bytearray:
    """RunShape a few bytes, numbers or pieces of an input."""
    for _ in range(choose.choice([1, 1, 2, 3, 8])):
        at = choose.randrange(len(data) + 1)
        if choose.random() < 0.5:  # headers are at the start
            at = min(at, choose.randrange(64))
        size = choose.choice([1, 2, 4, 8])
        kind = choose.randrange(7)
        if kind == 0:
            data[at : at + 1] = bytes([choose.randrange(256)])
        elif kind == 1:
            number = choose.choice(EDGES) % (1 << 8 * size)
            data[at : at + size] = number.to_bytes(size, choose.choice(["little", "little", "big"]))
        elif kind == 2:
            number = int.from_bytes(data[at : at + size], "little") + choose.randrange(-9, 10)
            data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
        elif kind == 3:
            del data[at : at + choose.randrange(1, 40)]
        elif kind == 4:
            data[at:at] = choose.randbytes(choose.randrange(1, 40))
        elif kind == 5:
            other = choose.choice(others)
            first = choose.randrange(len(other))
            data[at:at] = other[first : first + choose.randrange(1, 200)]
        else:
            del data[choose.randrange(len(data) + 1) :]
    return data[:MAX_BYTES]


def main() -> None:
    """Run for as many seconds as the command line says."""
    seconds, seed = float(sys.argv[1]), int((sys.argv[2:] or [time.time_ns()])[0])
    choose, kept, num_inputs = random.Random(seed), Path.cwd() / "mutated-input", 0
    print(f"seed {seed}", flush=True)
    end = time.monotonic() + seconds
    with fuzzing.empty_directory():
        seeds = fuzzing.seeds()
        seeds += [bytes([kind]) + bytes(50) for kind in range(len(fuzzing.KINDS))]
        while time.monotonic() < end:
            data = bytes(mutated(bytearray(choose.choice(seeds)), seeds, choose))
            kept.write_bytes(data)
            fuzzing.read_input(data)
            num_inputs += 1
    kept.unlink()
    print(f"{num_inputs:,} inputs were read or refused as they should be")


if __name__ == "__main__":
    main()
