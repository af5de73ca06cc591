"""Reads with the real datatrove, in an environment of its own; `datatrove` talks to it.

A line on its input is a request, "name count": read that many items of one of the datasets. The
answer is a line. For "check" it is a digest of the items, so that both can be seen to be equal.
"""

import itertools
import sys
from importlib.metadata import version

import numpy as np
from datatrove.utils.dataset import DatatroveFileDataset  # type: ignore[import-not-found]


def main() -> None:
    """Answer requests until the input ends."""
    path, seq_len = sys.argv[1], int(sys.argv[2])
    datasets = {
        positions: DatatroveFileDataset(path, seq_len, return_positions=positions)
        for positions in (False, True)
    }
    num_items = len(datasets[False])
    items = {
        order: itertools.cycle(indices.tolist())
        for order, indices in {
            "random": np.random.default_rng(0).permutation(num_items),
            "sequential": np.arange(num_items),
        }.items()
    }
    print(version("datatrove"), flush=True)
    for request in sys.stdin:
        order, positions, count = request.split()
        data = datasets[positions == "positions"]
        if order == "check":
            print(*(int(value.sum()) for value in data[int(count)].values()), flush=True)
            continue
        for item in itertools.islice(items[order], int(count)):
            data[item]
        print("done", flush=True)


if __name__ == "__main__":
    main()
