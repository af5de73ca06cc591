"""Reads with the real datatrove, in its own environment; driven by `datatrove`.

Each input line is a request, "name count": read that many items of one of the datasets. The reply
is a line. For "check" it is a digest of the items, to compare both implementations.
"""

import itertools
import sys
from importlib.metadata import version

import numpy as np
from datatrove.utils.dataset import DatatroveFileDataset  # type: ignore[import-not-found]


def main() -> None:
    """Reply to requests until the input ends."""
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
    print("datatrove", version("datatrove"), flush=True)
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
