"""`proportional`: weights from sizes, temperatures and caps."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream
from millstream.errors import UsageError
from tests.helpers.mixtures import windows_of

SIZES = {"small": 10, "middle": 40, "large": 150}


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    return windows_of(tmp_path_factory.mktemp("views"), SIZES)


def shares_of(weighted):
    total = sum(weight for _, weight in weighted.values())
    return {name: weight / total for name, (_, weight) in weighted.items()}


def test_by_default_all_views_are_read_equally_often(views):
    mixture = millstream.mix(millstream.proportional(views))
    assert [source.epochs for source in mixture.describe(200).sources] == [1, 1, 1]


@pytest.mark.parametrize("temperature", [0.5, 2, 5, Fraction(3, 2)])
def test_a_temperature_flattens_the_sizes(views, temperature):
    shares = shares_of(millstream.proportional(views, temperature=temperature))
    powers = {name: size ** (1 / float(temperature)) for name, size in SIZES.items()}
    for name, power in powers.items():
        assert float(shares[name]) == pytest.approx(power / sum(powers.values()))


def test_a_very_high_temperature_gives_equal_weights(views):
    assert set(shares_of(millstream.proportional(views, temperature=1e300)).values()) == {
        Fraction(1, 3)
    }


@pytest.mark.parametrize("temperature", [0, -1, float("nan"), float("inf"), "hot", True, None])
def test_what_is_no_temperature_is_refused(views, temperature):
    with pytest.raises(UsageError, match="temperature is"):
        millstream.proportional(views, temperature=temperature)


@pytest.mark.parametrize("temperature", [1e-3, 1e-300, 1e-310, Fraction(1, 10**400)])
def test_a_temperature_whose_weights_no_number_holds_is_refused(views, temperature):
    with pytest.raises(UsageError, match=r"temperature is .* out of range .* 150 samples"):
        millstream.proportional(views, temperature=temperature)


@given(
    st.integers(1, 3000),
    st.dictionaries(st.sampled_from(list(SIZES)), st.fractions(Fraction(1, 20), 30)),
    st.sampled_from([1, 2, 7]),
)
def test_no_view_is_read_more_often_than_its_cap(views, length, caps, temperature):
    room = sum(caps[name] * size if name in caps else length for name, size in SIZES.items())
    options = {"temperature": temperature, "max_epochs": caps, "num_samples": length}
    if room < length:
        with pytest.raises(UsageError, match="allow more epochs, or make the run shorter"):
            millstream.proportional(views, **options)
        return
    plain = shares_of(millstream.proportional(views, temperature=temperature))
    shares = shares_of(millstream.proportional(views, **options))
    capped = {name for name in caps if shares[name] * length >= caps[name] * SIZES[name]}
    for name, share in shares.items():
        assert share * length <= caps.get(name, length) * SIZES[name]
        assert share >= plain[name] or name in capped
    free = [name for name in shares if name not in capped]
    assert len({shares[name] / plain[name] for name in free}) <= 1, "the others keep their ratio"


def test_a_mixture_with_caps_reads_each_view_as_often_as_allowed(views):
    weighted = millstream.proportional(views, temperature=100, max_epochs=4, num_samples=400)
    report = millstream.mix(weighted).describe(400)
    assert [round(source.epochs, 1) for source in report.sources] == [4, 4, 1.3]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_epochs": 2}, "max_epochs needs num_samples"),
        ({"max_epochs": 2, "num_samples": 0}, "num_samples is 0"),
        ({"max_epochs": {"smal": 2}, "num_samples": 9}, "max_epochs names 'smal'"),
        ({"max_epochs": {"small": None}, "num_samples": 9}, "max_epochs of 'small' is None"),
        ({"max_epochs": 0, "num_samples": 9}, "max_epochs of 'small' is 0"),
        ({"max_epochs": float("nan"), "num_samples": 9}, "max_epochs of 'small' is nan"),
        ({"max_epochs": 1, "num_samples": 201}, "only 0.995 of the samples"),
    ],
)
def test_caps_that_cannot_be_kept_are_refused(views, options, match):
    with pytest.raises(UsageError, match=match):
        millstream.proportional(views, **options)


@pytest.mark.parametrize("given_views", [None, {}, 5, [], {"a": 5}, {"a": (1, 2)}])
def test_what_has_no_views_is_refused(given_views):
    with pytest.raises(UsageError, match=r"proportional takes views by name|not a view"):
        millstream.proportional(given_views)


def test_an_empty_view_is_refused(views):
    with pytest.raises(UsageError, match="'none' has no samples"):
        millstream.proportional({"none": views["small"].slice(0, 0)})
