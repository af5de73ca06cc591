"""A transform of a `TextLoader`: in the packing thread, exact, and honest when it fails."""

import threading
import traceback
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import UsageError
from millstream.testing import assert_resumes_exactly, assert_same
from tests.helpers.live_text import write_text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Six row groups of very different size, so that lanes end at different rows."""
    sizes = [40, 3, 25, 1, 12, 30]
    groups = [
        [f"document {n} of group {k}" * (1 + n % 3) for n in range(size)]
        for k, size in enumerate(sizes)
    ]
    return write_text(tmp_path_factory.mktemp("corpus"), [groups[:3], groups[3:]])


def new_loader(corpus, batch_size=4, **options):
    options = {"output": "numpy", "rank": 0, "ranks": 1} | options
    return millstream.TextLoader(corpus, "bytes", batch_size, 16, **options)


def marked(batch, positions):
    """Change a batch in place, by random numbers that the positions decide."""
    for row, position in enumerate(positions):
        batch["input_ids"][row] += np.random.default_rng([5, position]).integers(1 << 30)
    return batch | {"positions": positions}


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    lanes=st.sampled_from([(0, 1, 1), (0, 1, 4), (1, 2, 2), (0, 2, 6)]),
    batch_size=st.integers(1, 6),
    tail=st.sampled_from(["drop", "keep"]),
    prefetch=st.sampled_from([1, 4]),
    skip=st.integers(0, 9),
)
def test_batches_are_those_of_the_plain_loader_transformed(
    corpus, lanes, batch_size, tail, prefetch, skip
):
    rank, ranks, lanes = lanes
    options = {"rank": rank, "ranks": ranks, "lanes": lanes, "tail": tail, "prefetch": prefetch}
    with (
        new_loader(corpus, batch_size, **options) as plain,
        new_loader(corpus, batch_size, transform=marked, **options) as loader,
    ):
        for _ in islice(plain, skip):
            pass
        loader.load_state_dict(plain.state_dict())
        before = plain.stats.tokens
        for expected, found in zip(plain, loader, strict=True):
            position = plain.position - batch_size * ranks
            positions = found["positions"]
            rows = len(expected["input_ids"])
            assert len(positions) == rows
            if rows == batch_size:
                whole = position + rank + np.arange(rows) * ranks
                assert positions.tolist() == whole.tolist()
            assert_same(found, marked(expected, positions))
            assert loader.state_dict() == plain.state_dict()
            assert loader.stats.tokens == plain.stats.tokens - before


def test_rows_have_the_same_positions_in_batches_of_any_size(corpus):
    """Also where lanes have ended, and rows of a batch are not at consecutive positions."""
    found = []
    for batch_size in (1, 3, 4, 8):
        rows = {}
        with new_loader(corpus, batch_size, lanes=4, tail="keep", transform=marked) as loader:
            for batch in loader:
                rows |= zip(batch["positions"].tolist(), batch["labels"].tolist(), strict=True)
        found.append(rows)
    assert max(found[0]) + 1 > len(found[0])  # there are holes
    assert found[1:] == found[:1] * 3


def test_random_rows_are_the_same_after_a_resume(corpus):
    assert_resumes_exactly(lambda: new_loader(corpus, lanes=2, transform=marked), steps=6)
    size = {"global_batch_size": 8, "transform": marked}
    assert_resumes_exactly(lambda: new_loader(corpus, **size), steps=4)


class BrokenError(Exception):
    """Raised by a transform."""


@pytest.mark.parametrize("error", [BrokenError, StopIteration, SystemExit])
def test_a_transform_that_raises_does_so_in_its_turn_and_the_position_stays(corpus, error):
    broken = {12}

    def fail_at(batch, positions):
        if broken & set(positions.tolist()):
            raise error("by hand")
        return positions.tolist()

    got = []
    with new_loader(corpus, transform=fail_at) as loader:
        for _ in range(2):
            with pytest.raises((error, RuntimeError)) as failure:
                for rows in loader:
                    got += rows
            assert loader.position == 12
        if error is not StopIteration:
            assert traceback.extract_tb(failure.value.__traceback__)[-1].name == "fail_at"
        (note,) = failure.value.__notes__
        assert note.endswith("of 4 rows, beginning with positions 12, 13, 14 of the epoch")
        broken.clear()
        for rows in loader:
            got += rows
    assert got == list(range(len(got)))
    assert len(got) > 40


@pytest.mark.parametrize("use", ["next", "state", "close"])
def test_a_transform_that_uses_its_own_loader_is_an_error_and_no_hang(corpus, use):
    def meddle(batch):
        if use == "next":
            next(iter(loader))
        elif use == "state":
            loader.state_dict()
        else:
            loader.close()
        return batch

    loader = new_loader(corpus, transform=meddle)
    with loader, pytest.raises(RuntimeError, match="must not use the loader that calls it"):
        next(iter(loader))


def test_a_transform_runs_in_another_thread_and_never_on_what_is_dropped(corpus):
    threads, rows = set(), []

    def note(batch):
        threads.add(threading.get_ident())
        rows.append(len(batch["input_ids"]))
        return batch

    with new_loader(corpus, 7, transform=note) as loader:
        num_batches = len(list(loader))
    assert rows == [7] * num_batches
    assert threading.get_ident() not in threads


def test_what_is_no_transform_is_refused_at_once(corpus):
    with pytest.raises(UsageError, match="must be a function"):
        new_loader(corpus, transform="upper")
    with pytest.raises(UsageError, match="a transform makes its own"):
        new_loader(corpus, transform=marked, output="torch", static_addresses=True)


def test_results_are_moved_to_a_device(corpus, monkeypatch):
    meta = torch.device("meta")
    monkeypatch.setattr("millstream.load.base_loader.find_device", lambda *_, **__: meta)
    transform = lambda batch: [batch["input_ids"], "x"]  # noqa: E731
    with new_loader(corpus, output="torch", device="meta", transform=transform) as loader:
        inputs, text = next(iter(loader))
        assert (inputs.device, inputs.shape, text) == (meta, (4, 16), "x")
        assert loader.stats.uploaded_bytes == 4 * 16 * 8
