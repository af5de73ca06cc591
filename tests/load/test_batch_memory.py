"""A batch keeps its memory as long as anything refers to it, and no longer."""

import copy
import pickle
from itertools import islice

import numpy as np
import pytest
import torch

import millstream

SEQ_LEN, ROWS = 6, 3

# Ways to keep a part of the labels of a batch: all but the last few hold no array that we made.
OF_ARRAYS = {
    "the array": lambda array: array,
    "a row": lambda array: array[1],
    "a column of a slice": lambda array: array[1:, 2],
    "a transpose": lambda array: array.T,
    "a reshaped flat view": lambda array: array.reshape(-1)[::2],
    "another type": lambda array: array.view(np.int32),
    "a field of a view": lambda array: array.view([("low", "<u4"), ("high", "<u4")])["low"],
    "broadcast": lambda array: np.broadcast_to(array, (2, *array.shape)),
    "strides": lambda array: np.lib.stride_tricks.sliding_window_view(array[0], 2),
    "a memoryview": lambda array: memoryview(array),
    "a slice of a memoryview": lambda array: memoryview(array)[1:],
    "bytes of a memoryview": lambda array: memoryview(array).cast("B"),
    "frombuffer": lambda array: np.frombuffer(array, np.int64),
    "DLPack to NumPy": lambda array: np.from_dlpack(array),
    "DLPack to torch": lambda array: torch.from_dlpack(array),
    "a tensor": lambda array: torch.from_numpy(array),
    "a row of a tensor": lambda array: torch.from_numpy(array)[2],
    "a flat iterator": lambda array: list(array.flat)[:4],
    "a pickle": lambda array: pickle.loads(pickle.dumps(array)),
    "a copy": lambda array: copy.deepcopy(array),
}
OF_TENSORS = {
    "the tensor": lambda tensor: tensor,
    "a row": lambda tensor: tensor[1],
    "a transpose": lambda tensor: tensor.T,
    "a flat view": lambda tensor: tensor.view(-1),
    "a narrowed view": lambda tensor: tensor.narrow(1, 2, 3),
    "a view of another type": lambda tensor: tensor.view(torch.int32),
    "detached": lambda tensor: tensor.detach(),
    "unbound": lambda tensor: tensor.unbind()[2],
    "an alias by as_strided": lambda tensor: tensor.as_strided((2, 2), (1, 3)),
    "the storage": lambda tensor: tensor.untyped_storage(),
    "an array": lambda tensor: tensor.numpy(),
    "a row of an array": lambda tensor: tensor.numpy()[0],
    "DLPack": lambda tensor: torch.from_dlpack(tensor),
    "a DLPack capsule": lambda tensor: tensor.__dlpack__(),
    "DLPack to NumPy": lambda tensor: np.from_dlpack(tensor),
    "a pickle": lambda tensor: pickle.loads(pickle.dumps(tensor)),
}


def content(kept):
    """The numbers in it, by whatever it has for that."""
    if isinstance(kept, torch.UntypedStorage):
        return kept.tolist()
    if type(kept).__name__ == "PyCapsule":
        return None  # may be opened only once
    return kept if isinstance(kept, list) else kept.tolist()


CASES = [("numpy", name) for name in OF_ARRAYS] + [("torch", name) for name in OF_TENSORS]


@pytest.mark.parametrize(("output", "way"), CASES)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_is_kept_of_a_batch_stays_as_it_was(data, output, way, prefetch):
    keep = (OF_ARRAYS if output == "numpy" else OF_TENSORS)[way]
    loader = millstream.Loader(
        data.windows(SEQ_LEN), ROWS, endless=True, output=output, prefetch=prefetch
    )
    held = []
    for batch in islice(loader, 12):
        kept = keep(batch["labels"])
        held.append((kept, content(kept), batch["labels"].tolist()))
        del batch, kept
    loader.close()
    # Others take whatever memory was given back, and write to it.
    with millstream.Loader(data.windows(SEQ_LEN), ROWS, output=output, prefetch=prefetch) as other:
        later = [batch["labels"].tolist() for batch in islice(other, 30)]
    for batch in islice(loader, 30):
        batch["labels"][:] = -1
    del loader
    for kept, expected, labels in held:
        if expected is None:
            assert torch.from_dlpack(kept).tolist() == labels
        else:
            assert content(kept) == expected
    assert len(later) == 30


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_inputs_and_labels_keep_each_other_and_other_batches_do_not(data, output):
    loader = millstream.Loader(
        data.windows(SEQ_LEN), ROWS, endless=True, output=output, prefetch=2, shuffle=False
    )
    batches = iter(loader)
    first = next(batches)
    address = address_of(first["labels"])
    inputs = first["input_ids"]
    del first
    assert address not in {address_of(next(batches)["labels"]) for _ in range(20)}
    del inputs
    assert address in {address_of(next(batches)["labels"]) for _ in range(20)}
    loader.close()


def address_of(values):
    return values.__array__().__array_interface__["data"][0]


def test_batches_are_new_objects_every_time(data):
    loader = millstream.Loader(
        data.windows(SEQ_LEN), ROWS, endless=True, output="numpy", prefetch=2
    )
    seen = set()
    for batch in islice(loader, 50):
        array = batch["labels"]
        array.flags.writeable = False  # concerns this object alone
        seen.add(address_of(array))
    assert len(seen) <= 4
    assert next(iter(loader))["labels"].flags.writeable
    loader.close()


def test_the_memory_is_at_the_root_of_every_view(data):
    loader = millstream.Loader(data.windows(SEQ_LEN), ROWS, output="numpy", prefetch=0)
    row = next(iter(loader))["labels"][0]
    root = row
    while isinstance(root.base, np.ndarray):
        root = root.base
    assert type(root.base).__name__ == "BatchMemory"


def test_a_loader_that_is_held_up_by_its_consumer_gets_more_memory_and_gives_it_back(data):
    loader = millstream.Loader(
        data.windows(SEQ_LEN), ROWS, endless=True, output="numpy", prefetch=2
    )
    held = list(islice(loader, 100))
    assert len({address_of(batch["labels"]) for batch in held}) == 100
    held.clear()
    assert len({address_of(batch["labels"]) for batch in islice(loader, 100)}) <= 4 + 1
    loader.close()
