"""Audits of mixtures: what they prove, and that they find what is wrong."""

import numpy as np
import pytest

import millstream
from millstream.auditing import mixtures as auditing
from millstream.errors import UsageError, VerificationError
from tests.helpers.mixtures import windows_of

SIZES = {"web": 300, "code": 90, "math": 20}
SHAPES = [
    [millstream.RunShape(step=0, ranks=1, batch_size=8)],
    [millstream.RunShape(step=0, ranks=3, batch_size=5)],
    [
        millstream.RunShape(step=0, ranks=2, batch_size=4),
        millstream.RunShape(step=7, ranks=5, batch_size=1),
        millstream.RunShape(step=9, ranks=2, batch_size=3, global_batch_size=20),
    ],
]


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    return windows_of(tmp_path_factory.mktemp("views"), SIZES)


def mixture_of(views, **options):
    weights = {"web": 5, "code": 3, "math": 1}
    return millstream.mix({name: (views[name], weights[name]) for name in views}, **options)


@pytest.mark.parametrize("shape", range(3))
@pytest.mark.parametrize("tail", ["drop", "keep", "wrap"])
def test_a_run_on_any_ranks_is_exact(views, shape, tail):
    mixture = mixture_of(views)
    report = millstream.audit_mixture(mixture, SHAPES[shape], epochs=3, tail=tail)
    described = mixture.describe(3 * len(mixture))
    assert report.num_positions == 3 * len(mixture) == described.positions
    assert [source.served for source in report.sources] == [
        source.samples for source in described.sources
    ]
    assert [source.epochs for source in report.sources] == [
        source.epochs for source in described.sources
    ]
    assert (report.dropped > 0) == (tail == "drop")
    assert report.bound == 4
    assert all(source.largest_error < 2 for source in report.sources)


def test_changes_and_sources_that_run_out_are_within_the_bound_too(views):
    limited = millstream.MixtureSource(views["math"], 1, max_epochs=2)
    mixture = millstream.mix(
        {"web": (views["web"], 5), "math": limited}, when_exhausted="redistribute"
    )
    mixture = mixture.change(100, {"web": 1, "math": 3}, over=50)
    mixture = mixture.change(900, {"web": 2}, sources={"code": (views["code"], 1)})
    report = millstream.audit_mixture(mixture, SHAPES[1], epochs=4, tail="keep")
    (math,) = [source for source in report.sources if source.name == "math"]
    assert (math.served, math.epochs) == (40, 2)
    assert all(source.largest_error < report.bound for source in report.sources)


def test_a_mixture_that_ends_is_walked_to_its_end(views):
    limited = millstream.MixtureSource(views["code"], 1, max_epochs=1)
    mixture = millstream.mix({"web": (views["web"], 1), "code": limited})
    report = millstream.audit_mixture(mixture, SHAPES[0], tail="keep")
    assert report.num_positions == mixture.order.end
    assert report.sources[1].served == 90
    with pytest.raises(UsageError, match="it has one epoch"):
        millstream.audit_mixture(mixture, SHAPES[0], epochs=2)


def test_progress_is_reported(views):
    seen = []
    millstream.audit_mixture(mixture_of(views), SHAPES[0], progress=seen.append)
    assert seen[-1].done == seen[-1].total == 2 * 410


class Lying:
    """A mixture order that says something else at some positions."""

    def __init__(self, order, lies):
        self._order, self._lies = order, lies

    def __getattr__(self, name):
        return getattr(self._order, name)

    def numbers_at(self, positions):
        sources, numbers = self._order.numbers_at(positions)
        for position, (source, number) in self._lies.items():
            sources[positions == position], numbers[positions == position] = source, number
        return sources, numbers


def lying(views, lies):
    mixture = mixture_of(views)
    mixture.__dict__["order"] = Lying(mixture.order, lies)
    return mixture


def test_a_sample_that_is_skipped_or_repeated_is_found(views):
    mixture = mixture_of(views)
    (source,), (number,) = (each.tolist() for each in mixture.order.numbers_at([200]))
    for wrong in (number + 1, number - 1):
        with pytest.raises(VerificationError, match=r"skips or repeats samples of its order"):
            millstream.audit_mixture(lying(views, {200: (source, wrong)}), SHAPES[0])


def test_shares_that_are_off_are_found(views):
    """All of the first positions from one source, whose own samples are in order."""
    mixture = mixture_of(views)
    positions = np.arange(410)
    sources, _ = mixture.order.numbers_at(positions)
    sources = np.sort(sources)
    numbers = np.concatenate([np.arange(count) for count in np.bincount(sources)])
    lies = dict(enumerate(zip(sources.tolist(), numbers.tolist(), strict=True)))
    wrong = lying(views, lies)
    samples = numbers % np.array(list(SIZES.values()))[sources]
    wrong.order.locate = lambda wanted: (sources[wanted], samples[wanted])
    with pytest.raises(VerificationError, match=r"source '\w+' was .* samples off its share"):
        millstream.audit_mixture(wrong, SHAPES[0])


def test_a_sample_that_comes_twice_in_an_epoch_of_its_source_is_found(views):
    wrong = lying(views, {})
    locate = wrong.order.locate
    wrong.order.locate = lambda wanted: (locate(wanted)[0], locate(wanted)[1] * 0)
    with pytest.raises(
        VerificationError, match=r"source '\w+': sample 0 came twice in its epoch 0"
    ):
        millstream.audit_mixture(wrong, SHAPES[0])


def test_large_mixtures_are_walked_in_chunks(views, monkeypatch):
    monkeypatch.setattr(auditing, "_CHUNK", 64)
    small_chunks = millstream.audit_mixture(mixture_of(views), SHAPES[2], epochs=2)
    monkeypatch.undo()
    assert millstream.audit_mixture(mixture_of(views), SHAPES[2], epochs=2) == small_chunks


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        ([], {}),
        ([millstream.RunShape(step=1, ranks=1, batch_size=1)], {}),
        (SHAPES[0], {"epochs": 0}),
        (SHAPES[0], {"tail": "cut"}),
        ([millstream.RunShape(step=0, ranks=0, batch_size=1)], {}),
        ([millstream.RunShape(step=0, ranks=1000, batch_size=1)], {}),
    ],
)
def test_runs_that_cannot_be_walked_are_refused(views, shapes, options):
    with pytest.raises(UsageError, match=r"\w"):
        millstream.audit_mixture(mixture_of(views), shapes, **options)


def test_orders_and_mixtures_are_not_mistaken_for_each_other(views):
    """The samples of a mixture come again in an epoch of it, which is not an error."""
    with pytest.raises(UsageError, match=r"for mixtures use audit_mixture"):
        millstream.audit(mixture_of(views).order, SHAPES[0])
    with pytest.raises(UsageError, match=r"for views use audit"):
        millstream.audit_mixture(views["web"], SHAPES[0])
