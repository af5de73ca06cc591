"""`batches.batch_transform`: which functions are a transform, and what views do with one."""

import functools

import numpy as np
import pytest
import torch

import millstream
from millstream.batches.batch_transform import BatchTransform
from millstream.errors import UsageError
from tests.helpers.datasets import write_dataset


@pytest.fixture
def data(tmp_path):
    return write_dataset(tmp_path / "d", np.arange(100), cuts=range(10, 100, 10))


def scaled(batch, factor, positions=None):
    return batch["x"] * factor, positions


class Scaling:
    def __call__(self, batch):
        return batch["x"] * 2


class AtPositions(torch.nn.Module):
    def forward(self, batch):
        return batch["x"] + 1


@pytest.mark.parametrize(
    ("function", "takes_positions"),
    [
        (lambda batch: batch, False),
        (lambda batch, p=0.5: batch, False),
        (lambda *args: args, False),
        (lambda batch, positions: batch, True),
        (lambda batch, *, positions: batch, True),
        (functools.partial(scaled, factor=2), True),
        (functools.partial(scaled, factor=2, positions=7), False),
        (Scaling(), False),
        (AtPositions(), False),
        (dict, False),  # a compiled function without a signature
        (len, False),
    ],
)
def test_a_function_gets_positions_if_it_has_a_parameter_for_them(function, takes_positions):
    transform = BatchTransform(function)
    assert transform.takes_positions is takes_positions
    assert transform.run({"x": np.arange(3)}, np.arange(3), str) is not None


@pytest.mark.parametrize(
    "function", [lambda: 1, lambda batch, other: batch, lambda *, positions: 1, scaled, 5, "x"]
)
def test_what_cannot_be_called_with_a_batch_is_refused_at_once(data, function):
    with pytest.raises(UsageError, match="transform"):
        data.windows(4, transform=function)
    with pytest.raises(UsageError, match="transform"):
        millstream.mix({"a": (data.windows(4), 1)}, transform=function)


async def awaited(batch):
    return batch


def generated(batch):
    yield batch


class Awaited:
    async def __call__(self, batch):
        return batch


@pytest.mark.parametrize("function", [awaited, generated, Awaited(), functools.partial(awaited)])
def test_what_returns_no_batch_when_called_is_refused(data, function):
    with pytest.raises(UsageError, match=r"is a generator or async.*use a plain function"):
        data.windows(4, transform=function)


def test_a_value_that_is_bound_to_positions_stays(data):
    view = data.windows(4, transform=functools.partial(bound, positions=7))
    assert view[0] == 7
    assert next(iter(millstream.Loader(view, 2))) == 7


def bound(batch, positions):
    return positions


def test_a_view_reads_transformed_batches_with_sample_numbers_as_positions(data):
    view = data.windows(4, transform=lambda batch, positions: (positions, batch["input_ids"]))
    plain = view.with_transform(None)
    for index, samples in [([7, 2, 7], [7, 2, 7]), (slice(3, 9, 2), [3, 5, 7]), (-1, [23])]:
        got = view.read(index) if isinstance(index, list) else view[index]
        assert got[0].tolist() == samples
        assert got[1].tolist() == plain.read(samples)["input_ids"].tolist()
    assert [int(rows[0, 0]) for _, rows in view.take(3)] == [0, 4, 8]


@pytest.mark.parametrize("kind", ["windows", "documents", "packed"])
def test_slices_splits_and_sorted_views_keep_the_transform(data, kind):
    def double(batch):
        return batch["input_ids"] * 2

    view = getattr(data, kind)(10, transform=double)
    parts = [view.take(3), view.slice(2), view.sorted_by("length"), *view.split(every=3)]
    for part in [*parts, view.without(documents=[0])]:
        plain = part.with_transform(None)
        assert part[:].tolist() == (plain[:]["input_ids"] * 2).tolist()
        assert (part.fingerprint, len(part)) == (plain.fingerprint, len(plain))


def test_what_a_transform_does_to_positions_and_indices_stays_with_it(data):
    def shift(batch, positions):
        positions += 1000
        raise KeyError("lost")

    indices = np.array([3, 1])
    with pytest.raises(KeyError) as failure:
        data.windows(4, transform=shift).read(indices)
    assert indices.tolist() == [3, 1]
    assert failure.value.__notes__ == [
        "in the transform of a batch of 2 rows, beginning with samples 3, 1"
    ]


def test_a_transform_that_returns_nothing_is_told_so(data):
    def forgets(batch):
        batch["input_ids"] += 1

    with pytest.raises(UsageError, match=r"forgets.*returned None; return the batch"):
        data.windows(4, transform=forgets)[0]


def test_a_mixture_reads_transformed_batches_at_their_positions(data):
    def keep(batch, positions):
        return positions.tolist(), batch["source_ids"].tolist()

    mixture = millstream.mix({"a": (data.windows(4), 1), "b": (data.packed(4), 1)})
    transformed = mixture.with_transform(keep)
    sources, _ = mixture.locate([5, 0, 5])
    assert transformed.read([5, 0, 5]) == ([5, 0, 5], sources.tolist())
    later = transformed.change(at=10, weights={"a": 1}).take(40)
    assert later.read([12]) == ([12], [0])

    def fail(batch):
        raise KeyError

    _, samples = mixture.locate([5, 0])
    with pytest.raises(KeyError) as failure:
        mixture.with_transform(fail).read([5, 0])
    named = ", ".join(f"{'ab'[k]} {n}" for k, n in zip(sources, samples, strict=False))
    (note,) = failure.value.__notes__
    assert note.endswith(f"of 2 rows, beginning with positions 5, 0 (samples {named})")


def test_a_transform_of_a_source_is_refused_with_the_remedy(data):
    view = data.windows(4, transform=lambda batch: batch)
    with pytest.raises(
        UsageError, match=r"source 'a' has a transform.*millstream.mix\(…, transform="
    ):
        millstream.mix({"a": (view, 1)})


def test_a_mixture_from_a_file_takes_a_transform(data, tmp_path):
    file = tmp_path / "mixture.json"
    file.write_text(
        '{"sources": {"a": {"data": "d", "weight": 1, "view": "windows", "seq_len": 4}}}'
    )
    mixture = millstream.mix(file, transform=lambda batch: batch["input_ids"].shape)
    assert mixture.read([0, 1]) == (2, 4)
