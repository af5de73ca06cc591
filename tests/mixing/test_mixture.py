"""`Mixture`: turns, changes, sources that run out, descriptions, and what is refused."""

import math
import pickle
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import UsageError
from tests.helpers.datasets import write_documents
from tests.helpers.mixtures import windows_of

SIZES = {"web": 100, "code": 37, "math": 8, "one": 1}


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    return windows_of(tmp_path_factory.mktemp("views"), SIZES)


def turns(mixture, positions):
    """(name, sample) at each position."""
    sources, samples = mixture.locate(positions)
    return [(mixture.names[k], int(sample)) for k, sample in zip(sources, samples, strict=True)]


def served(mixture, positions):
    """The samples of each source, in the order in which they come."""
    found = {name: [] for name in mixture.names}
    for name, sample in turns(mixture, positions):
        found[name].append(sample)
    return found


def bound_of(sources):
    """What the counts of a stage stay within."""
    return 1 if len(sources) <= 2 else 4


weights = st.one_of(
    st.integers(1, 9),
    st.floats(1e-3, 1e3),
    st.fractions(Fraction(1, 1000), 1000),
    st.decimals(Decimal("0.001"), 1000, places=3),
)
several = st.dictionaries(st.sampled_from(list(SIZES)), weights, min_size=1)
shuffles = st.sampled_from([True, False, millstream.BlockShuffle(4), millstream.Bands(3)])


@given(several, st.integers(0, 2**64 - 1), st.data())
def test_a_source_gives_its_samples_in_its_own_order_whatever_the_others_are(
    views, chosen, seed, data
):
    shuffle = data.draw(shuffles)
    sources = {
        name: millstream.MixtureSource(views[name], weight, shuffle=shuffle)
        for name, weight in chosen.items()
    }
    mixture = millstream.mix(sources, seed=seed)
    found = served(mixture, range(300))
    for name, source in sources.items():
        alone = millstream.mix({name: source}, seed=seed)
        assert found[name] == [sample for _, sample in turns(alone, range(len(found[name])))]


@pytest.mark.slow
@given(several, st.integers(0, 10))
def test_at_every_prefix_each_source_has_its_share(views, chosen, seed):
    mixture = millstream.mix({name: (views[name], w) for name, w in chosen.items()}, seed=seed)
    exact = {
        name: Fraction(str(weight)) if isinstance(weight, float) else Fraction(weight)
        for name, weight in chosen.items()
    }
    bound, counts = bound_of(chosen), Counter()
    for position, (name, _) in enumerate(turns(mixture, range(300))):
        counts[name] += 1
        for each, weight in exact.items():
            share = weight / sum(exact.values()) * (position + 1)
            assert abs(counts[each] - share) < bound + Fraction(1, 10**12)


def test_in_an_epoch_of_its_own_a_source_gives_every_sample_once(views):
    mixture = millstream.mix({name: (view, len(view)) for name, view in views.items()})
    found = served(mixture, range(5 * len(mixture)))
    for name, samples in found.items():
        size = SIZES[name]
        for epoch in range(len(samples) // size):
            assert sorted(samples[epoch * size : (epoch + 1) * size]) == list(range(size))
    code = found["code"]
    assert code[: SIZES["code"]] != code[SIZES["code"] : 2 * SIZES["code"]], "shuffled anew"


@given(several, st.data())
def test_samples_are_found_where_they_come(views, chosen, data):
    mixture = millstream.mix({name: (views[name], weight) for name, weight in chosen.items()})
    name = data.draw(st.sampled_from(list(chosen)))
    samples = data.draw(st.lists(st.integers(0, SIZES[name] - 1), max_size=9))
    epoch = data.draw(st.integers(0, 1000))
    positions = mixture.positions_of(name, samples, epoch)
    assert turns(mixture, positions) == [(name, sample) for sample in samples]
    order = mixture.order
    _, numbers = order.numbers_at(positions)
    assert (numbers // SIZES[name] == epoch).all()


def test_a_seed_changes_turns_and_shuffles_and_a_source_may_have_its_own(views):
    def mixture(seed, own):
        return millstream.mix(
            {
                "web": millstream.MixtureSource(views["web"], 1, seed=own),
                "code": (views["code"], 1),
            },
            seed=seed,
        )

    one, other = (served(mixture(seed, 5), range(60)) for seed in (1, 2))
    assert one["web"] == other["web"][: len(one["web"])]
    assert one["code"] != other["code"][: len(one["code"])]
    assert turns(mixture(1, 5), range(60)) != turns(mixture(2, 5), range(60))
    assert served(mixture(1, None), range(60))["web"] != one["web"]


def test_sources_of_the_same_view_are_shuffled_differently(views):
    found = served(millstream.mix({"a": (views["web"], 1), "b": (views["web"], 1)}), range(60))
    assert found["a"] != found["b"]


changes = st.lists(
    st.tuples(
        st.integers(1, 80),
        st.integers(0, 60),
        st.dictionaries(st.sampled_from(list(SIZES)), st.integers(0, 9)).filter(
            lambda given: any(given.values())
        ),
    ),
    max_size=4,
)


def apply_changes(mixture, views, given_changes):
    """Change after change, each a while after the one before; sources are added when named."""
    at, mixtures = 0, [mixture]
    for wait, over, new_weights in given_changes:
        at += wait
        known = {name: weight for name, weight in new_weights.items() if name in mixture.names}
        added = {
            name: (views[name], weight)
            for name, weight in new_weights.items()
            if name not in mixture.names and weight
        }
        mixture = mixture.change(at, known, over=over, sources=added)
        mixtures.append(mixture)
        at += over
    return mixtures, at


@settings(max_examples=60)
@given(several, changes)
def test_a_change_moves_nothing_before_it_and_nothing_inside_a_source(views, chosen, given_changes):
    first = millstream.mix({name: (views[name], weight) for name, weight in chosen.items()})
    mixtures, end = apply_changes(first, views, given_changes)
    for before, after in pairwise(mixtures):
        at = after.weight_changes[-1].at
        assert turns(before, range(at)) == turns(after, range(at))
    last = mixtures[-1]
    for name, samples in served(last, range(end + 100)).items():
        alone = served(millstream.mix({name: (views[name], 1)}), range(len(samples)))
        assert samples == alone[name]


@pytest.mark.slow
@settings(max_examples=60)
@given(several, changes)
def test_after_a_change_shares_are_the_new_ones_and_during_a_ramp_between(
    views, chosen, given_changes
):
    first = millstream.mix({name: (views[name], weight) for name, weight in chosen.items()})
    *_, mixture = apply_changes(first, views, given_changes)[0]
    stages = [(0, 0, first.changes[0].shares), *((c.at, c.over, c.shares) for c in mixture.changes)]
    bound = 2 * bound_of(mixture.names) + 3
    for (_, _, old), (at, over, new) in pairwise(stages):
        for length in {over, over // 2, over // 3} if over else ():
            during = mixture.order.counts_at(at + length) - mixture.order.counts_at(at)
            for source in range(len(new)):
                old_share = (old[source] if source < len(old) else 0) / 10**18
                num_new = length * length / (2 * over)
                expected = old_share * (length - num_new) + new[source] / 10**18 * num_new
                assert abs(during[source] - expected) < bound


def test_a_source_with_weight_0_pauses_and_goes_on_where_it_was(views):
    mixture = millstream.mix({"web": (views["web"], 1), "code": (views["code"], 1)})
    paused = mixture.change(50, {"web": 1, "code": 0}).change(90, {"web": 1, "code": 1})
    left_out = mixture.change(50, {"web": 1}).change(90, {"web": 1, "code": 1})
    assert turns(paused, range(200)) == turns(left_out, range(200))
    assert {name for name, _ in turns(paused, range(50, 90))} == {"web"}
    code = served(paused, range(200))["code"]
    assert code == served(millstream.mix({"code": (views["code"], 1)}), range(len(code)))["code"]


def test_adding_a_source_by_a_change_is_as_if_it_always_had_been_there(views):
    both = {"web": (views["web"], 3), "code": (views["code"], 1)}
    later = millstream.mix({"web": both["web"]}).change(
        40, {"web": 3}, sources={"code": both["code"]}
    )
    at_once = served(millstream.mix(both), range(300))["code"]
    code = served(later, range(300))["code"]
    assert 60 <= len(code) <= 70
    assert code == at_once[: len(code)]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda m: m.change(0, {"web": 1}), "at is 0"),
        (lambda m: m.change(1.5, {"web": 1}), "at is 1.5"),
        (lambda m: m.change(1 << 61, {"web": 1}), "at is"),
        (lambda m: m.change(5, {"web": 1}, over=-1), "over is -1"),
        (lambda m: m.change(5, {"web": 1}, over=1 << 48), "over is"),
        (lambda m: m.change(5), "change takes weights="),
        (lambda m: m.change(5, {"web": 0}), "all weights are 0"),
        (lambda m: m.change(5, 5), "weights is 5; write"),
        (lambda m: m.change(5, "web"), "weights is 'web'; write"),
        (lambda m: m.change(5, {"wbe": 1}), "no source 'wbe'.*did you mean 'web'"),
        (lambda m: m.change(5, {"web": -1}), "the weight of 'web' is -1; it must be positive"),
        (lambda m: m.change(5, {"web": True}), "the weight of 'web' is True, not a finite"),
        (lambda m: m.change(5, {"web": float("nan")}), "the weight of 'web' is nan"),
        (lambda m: m.change(5, {"web": 1}, sources=[1]), "takes a dict of sources"),
        (lambda m: m.change(9, {"web": 1}).change(9, {"code": 1}), "too early.*use at=10 or later"),
        (lambda m: m.change(9, {"web": 1}).change(8, {"code": 1}), "too early: .* is at 9"),
        (
            lambda m: m.change(9, {"web": 1}, over=10).change(18, {"code": 1}),
            "too early: the one before it ends at 19; use at=19 or later",
        ),
    ],
)
def test_changes_that_make_no_sense_are_refused(views, make, match):
    mixture = millstream.mix({"web": (views["web"], 1), "code": (views["code"], 1)})
    with pytest.raises(UsageError, match=match):
        make(mixture)


def test_a_source_cannot_be_added_twice(views):
    mixture = millstream.mix({"web": (views["web"], 1)})
    with pytest.raises(UsageError, match="there is a source 'web' already"):
        mixture.change(5, sources={"web": (views["web"], 1)})
    with pytest.raises(UsageError, match="the weight of 'code' is given twice"):
        mixture.change(5, {"code": 1}, sources={"code": (views["code"], 1)})


def test_changes_may_follow_each_other_without_a_gap(views):
    mixture = millstream.mix({"web": (views["web"], 1), "code": (views["code"], 1)})
    mixture = mixture.change(10, {"web": 1}, over=20).change(30, {"code": 1}, over=5)
    mixture = mixture.change(35, {"web": 1}).change(36, {"code": 1})
    assert turns(mixture, [35])[0][0] == "web"
    assert {name for name, _ in turns(mixture, range(36, 60))} == {"code"}


def limited(views, limits, **options):
    sources = {
        name: millstream.MixtureSource(views[name], weight, max_epochs=epochs)
        for name, (weight, epochs) in limits.items()
    }
    return millstream.mix(sources, **options)


limits = st.dictionaries(
    st.sampled_from(list(SIZES)),
    st.tuples(
        st.integers(1, 5),
        st.none() | st.sampled_from([1, 1.5, 2, Fraction(7, 4), Decimal("1.25"), np.float64(3.5)]),
    ),
    min_size=1,
)


def most(name, epochs):
    return math.inf if epochs is None else math.floor(Fraction(str(epochs)) * SIZES[name])


@settings(max_examples=60)
@given(limits)
def test_a_mixture_stops_after_the_last_sample_of_the_first_source_that_runs_out(
    views, given_limits
):
    mixture = limited(views, given_limits)
    end = mixture.order.end
    if all(epochs is None for _, epochs in given_limits.values()):
        assert end is None
        assert len(mixture) == sum(SIZES[name] for name in given_limits)
        return
    assert len(mixture) == end
    counts = Counter(name for name, _ in turns(mixture, range(end)))
    ((_, last),) = mixture.order.exhausted
    name = mixture.names[last]
    assert counts[name] == most(name, given_limits[name][1])
    assert turns(mixture, [end - 1])[0][0] == name
    for each, (_, epochs) in given_limits.items():
        assert counts[each] < most(each, epochs) or each == name
    with pytest.raises(IndexError, match="no position"):
        mixture.locate([end])
    endless = millstream.mix({k: (views[k], weight) for k, (weight, _) in given_limits.items()})
    assert turns(endless, range(end)) == turns(mixture, range(end))


@pytest.mark.slow
@settings(max_examples=60)
@given(limits)
def test_sources_that_run_out_leave_their_share_to_the_others(views, given_limits):
    mixture = limited(views, given_limits, when_exhausted="redistribute")
    length = 700 if mixture.order.end is None else mixture.order.end
    counts, left = Counter(), {name: Fraction(w) for name, (w, _) in given_limits.items()}
    since, before = 0, Counter()
    for position, (name, _) in enumerate(turns(mixture, range(length))):
        counts[name] += 1
        bound = bound_of(given_limits) + 1e-9
        for each, weight in left.items():
            share = weight / sum(left.values()) * (position + 1 - since)
            assert abs(counts[each] - before[each] - share) < bound
        if counts[name] == most(name, given_limits[name][1]):
            del left[name]
            since, before = position + 1, counts.copy()
    assert all(counts[name] <= most(name, epochs) for name, (_, epochs) in given_limits.items())
    if mixture.order.end is not None:
        assert not left
        assert length == sum(most(name, epochs) for name, (_, epochs) in given_limits.items())


def has_no_change_after_its_end(mixture):
    try:
        return len(mixture) > 0
    except UsageError:
        return False


@settings(max_examples=60)
@given(limits, changes, st.sampled_from(["stop", "redistribute"]))
def test_limits_hold_through_changes_and_ramps(views, given_limits, given_changes, when_exhausted):
    mixture = limited(views, given_limits, when_exhausted=when_exhausted)
    mixtures, _ = apply_changes(mixture, views, given_changes)
    mixtures = [*takewhile(has_no_change_after_its_end, mixtures)]
    for before, after in pairwise(mixtures):
        at = after.weight_changes[-1].at
        length = min(at, *(m.order.end for m in (before, after) if m.order.end is not None), at)
        assert turns(before, range(length)) == turns(after, range(length))
    mixture = mixtures[-1]
    end = mixture.order.end
    length = 900 if end is None else end
    found = served(mixture, range(length))
    for name, samples in found.items():
        limit = most(name, given_limits.get(name, (1, None))[1])
        assert len(samples) <= limit
        alone = served(millstream.mix({name: (views[name], 1)}), range(len(samples)))
        assert samples == alone[name]
        far = mixture.positions_of(name, [0], epoch=5)
        assert far[0] == -1 or limit == math.inf
    described = {source.name: source.samples for source in mixture.describe(length).sources}
    assert described == {name: len(samples) for name, samples in found.items()}


def test_a_source_that_runs_out_exactly_at_a_change(views):
    mixture = limited(views, {"web": (1, None), "math": (1, 1)}, when_exhausted="redistribute")
    ((at, _),) = mixture.order.exhausted
    for there in (at - 1, at, at + 1):
        changed = mixture.change(there, {"web": 1, "math": 1})
        found = served(changed, range(100))
        assert len(found["math"]) == 8
        if there >= at:
            assert changed.order.exhausted == ((at, 1),)
            assert turns(changed, range(at)) == turns(mixture, range(at))
    stopped = limited(views, {"web": (1, None), "math": (1, 1)})
    assert stopped.order.end == at
    assert stopped.change(at, {"web": 1}).order.end is None


def test_a_mixture_that_changes_before_a_source_runs_out_goes_on(views):
    mixture = limited(views, {"web": (1, None), "math": (1, 1)})
    changed = mixture.change(10, {"web": 1})
    assert changed.order.end is None
    assert len(served(changed, range(100))["math"]) < 8


def test_when_all_sources_of_a_stage_have_run_out_the_mixture_ends(views):
    mixture = limited(
        views, {"math": (1, 1), "one": (1, 1), "web": (1, None)}, when_exhausted="redistribute"
    )
    without_web = mixture.change(4, {"math": 1, "one": 1})
    found = served(without_web, range(len(without_web)))
    assert (len(found["math"]), len(found["one"])) == (8, 1)
    assert without_web.order.end == sum(map(len, found.values()))


@pytest.mark.parametrize("epochs", [1e300, 10**30, 1 << 70, Fraction(10**40, 3)])
def test_epochs_that_never_end_are_no_limit(views, epochs):
    mixture = limited(views, {"web": (1, epochs), "math": (1, None)})
    assert mixture.order.end is None


@pytest.mark.parametrize(
    "epochs", [0, -1, float("nan"), float("inf"), "2", True, [], Decimal("NaN")]
)
def test_what_is_no_number_of_epochs_is_refused(views, epochs):
    with pytest.raises(UsageError, match="max_epochs is"):
        millstream.MixtureSource(views["web"], 1, max_epochs=epochs)


@pytest.mark.parametrize("when_exhausted", ["stop", "redistribute"])
def test_epochs_without_a_single_sample_are_refused(views, when_exhausted):
    """Such a source would be absent from states too, which another could then load."""
    with pytest.raises(UsageError, match=r"'math' has 8 samples, and max_epochs=0.1 allows"):
        limited(views, {"web": (1, None), "math": (1, 0.1)}, when_exhausted=when_exhausted)


def test_a_description_says_what_a_run_reads(views):
    mixture = limited(
        views, {"web": (3, None), "math": (1, 1)}, when_exhausted="redistribute"
    ).change(1000, {"web": 1})
    report = mixture.describe(steps=25, step_size=8)
    web, math_ = report.sources
    assert (web.samples, math_.samples, report.positions) == (192, 8, 200)
    assert (web.epochs, math_.epochs, web.tokens) == (1.92, 1, 768)
    assert math_.exhausted_at == mixture.order.exhausted[0][0]
    assert (web.exhausted_at, report.ends_after) == (None, None)
    assert "math runs out at position" in str(report)


def test_a_description_of_a_mixture_that_ends_says_where(views):
    mixture = limited(views, {"web": (3, None), "math": (1, 1)})
    end = len(mixture)
    report = mixture.describe(end + 1)
    assert (report.positions, report.ends_after) == (end, end)
    assert f"the mixture ends after {end} positions" in str(report)
    assert mixture.describe(end).ends_after is None
    assert mixture.describe(0).sources[0].samples == 0
    for steps, step_size in ((-1, 1), (1, 0), (1.5, 1), (1 << 61, 1), (1 << 40, 1 << 40)):
        with pytest.raises(UsageError, match=r"steps is|step_size is|steps \\* step_size is"):
            mixture.describe(steps, step_size)


def test_weights_by_tokens_divide_tokens_not_rows(tmp_path):
    long = write_documents(tmp_path / "long", [range(20)] * 40)
    short = write_documents(tmp_path / "short", [range(4)] * 40)
    views = {"long": long.documents(20), "short": short.documents(20)}
    mixture = millstream.mix({name: (view, 1) for name, view in views.items()}, by="tokens")
    report = mixture.describe(600)
    assert [source.samples for source in report.sources] == [100, 500]
    assert [source.tokens for source in report.sources] == [2000, 2000]
    batch = mixture.read(range(600))
    tokens = batch["attention_mask"].sum(axis=1)
    assert tokens[batch["source_ids"] == 0].sum() == tokens[batch["source_ids"] == 1].sum()
    later = mixture.change(600, {"long": 3, "short": 1}).describe(1000)
    assert [source.samples for source in later.sources] == [250, 750]


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data.documents(30, by_length=True),
        lambda data: data.documents(30, by_length=True).slice(0, 12),
        lambda data: data.documents(30, overflow="split").slice(-9),
        lambda data: data.documents(30).sorted_by("length").slice(20),
        lambda data: data.packed(30, extras="attention_mask").slice(2, 7),
        lambda data: data.packed(30, extras="attention_mask").without(documents=range(9)).slice(3),
        lambda data: data.windows(30, extras="attention_mask").without(documents=[3]).slice(1),
        lambda data: data.windows(30, extras="attention_mask").slice(2),
    ],
)
def test_the_mean_length_of_rows_is_that_of_the_rows_that_are_read(tmp_path, make):
    """Else weights by tokens are off: slices of sorted documents are unlike the rest."""
    view = make(write_documents(tmp_path / "d", [range(length) for length in range(1, 60)]))
    num_tokens = int(view.read(range(len(view)))["attention_mask"].sum())
    assert view.mean_tokens == Fraction(num_tokens, len(view))
    full = write_documents(tmp_path / "full", [range(30)] * 9).documents(30)
    mixture = millstream.mix({"some": (view, 1), "full": (full, 1)}, by="tokens")
    report = mixture.describe(1000 * len(view))
    assert report.sources[0].tokens == pytest.approx(report.sources[1].tokens, rel=0.01)


def test_num_samples_is_the_length_of_an_epoch(views):
    sources = {"web": (views["web"], 1), "code": (views["code"], 1)}
    assert len(millstream.mix(sources)) == 137
    mixture = millstream.mix(sources, num_samples=50)
    assert len(mixture) == 50
    assert turns(mixture, range(200)) == turns(millstream.mix(sources), range(200))
    assert len(mixture.change(9, {"web": 1})) == 50
    with pytest.raises(UsageError, match=r"num_samples is 50, but the mixture ends at "):
        limited(views, {"web": (1, 1)}, num_samples=50)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": 1 << 64}, "seed is"),
        ({"by": "rows"}, "by is 'rows'; it must be 'samples' or 'tokens'"),
        ({"when_exhausted": "halt"}, "when_exhausted is 'halt'"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"num_samples": 1 << 61}, "num_samples is"),
        ({"check_tokenizers": 1}, "check_tokenizers is 1; it must be True or False"),
    ],
)
def test_wrong_settings_are_refused(views, options, match):
    with pytest.raises(UsageError, match=match):
        millstream.mix({"web": (views["web"], 1)}, **options)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda view: None, "takes a dict of sources"),
        (lambda view: {}, "takes a dict of sources"),
        (lambda view: [("a", view)], "takes a dict of sources"),
        (lambda view: {"a": view}, "write \\(view, weight\\)"),
        (lambda view: {"a": (view,)}, "write \\(view, weight\\)"),
        (lambda view: {"a": (view, 1, True)}, "write \\(view, weight\\)"),
        (lambda view: {"a": (view.dataset, 1)}, "a source of a mixture is a view"),
        (
            lambda view: {"a": (millstream.mix({"b": (view, 1)}), 1)},
            "a source of a mixture is a view",
        ),
        (lambda view: {"a": (view.slice(0, 0), 1)}, "source 'a' has no samples"),
        (lambda view: {1: (view, 1)}, "the name of a source is 1"),
        (lambda view: {"": (view, 1)}, "the name of a source is ''"),
        (lambda view: {"a\n": (view, 1)}, "the name of a source is"),
        (lambda view: {"\ud800": (view, 1)}, "the name of a source is"),
        (lambda view: {"a": (view, 0)}, "the weight of 'a' is 0; leave the source out"),
        (lambda view: {"a": (view, -1)}, "the weight of 'a' is -1; it must be positive"),
        (lambda view: {"a": (view, "1")}, "the weight of 'a' is '1', not a finite number"),
        (lambda view: {"a": (view, 1), "b": (view, 1e-30)}, "the weight of 'b' is 1e-30 of the"),
        (
            lambda view: {"a": millstream.MixtureSource(view, 1, shuffle="yes")},
            "source 'a': shuffle is 'yes'",
        ),
        (
            lambda view: {
                "a": millstream.MixtureSource(view, 1, shuffle=millstream.LengthBuckets(4))
            },
            "source 'a': LengthBuckets shuffles samples that are sorted by length",
        ),
    ],
)
def test_what_is_no_dict_of_weighted_views_is_refused(views, make, match):
    with pytest.raises(UsageError, match=match):
        millstream.mix(make(views["web"]))


def test_positions_and_samples_that_do_not_exist_are_refused(views):
    mixture = millstream.mix({"web": (views["web"], 1)})
    for positions in ([-1], [1 << 61], [(1 << 63) - 1]):
        with pytest.raises(IndexError, match="no position"):
            mixture.locate(positions)
        with pytest.raises(IndexError, match="no position"):
            mixture.read(positions)
    with pytest.raises(TypeError, match="must be integers"):
        mixture.locate([0.5])
    with pytest.raises(IndexError, match="no sample 100"):
        mixture.positions_of("web", [100])
    with pytest.raises(UsageError, match="did you mean 'web'"):
        mixture.positions_of("webb", [0])


def test_a_mixture_survives_pickling(views):
    mixture = limited(
        views, {"web": (2, None), "code": (1, 2)}, when_exhausted="redistribute", seed=5
    ).change(40, {"web": 1, "code": 3}, over=30)
    copy = pickle.loads(pickle.dumps(mixture))
    assert turns(copy, range(300)) == turns(mixture, range(300))
    assert copy.read(range(9))["input_ids"].tolist() == mixture.read(range(9))["input_ids"].tolist()
    later = copy.change(900, {"web": 1})
    assert turns(later, range(300)) == turns(mixture, range(300))


def test_a_mixture_says_what_it_is(views):
    many = millstream.mix({f"s{k}": (views["web"], 1) for k in range(12)})
    assert repr(many.change(5, {"s1": 1})) == (
        "<Mixture of rows of 4 tokens: s0 0.0833, s1 0.0833, s2 0.0833, s3 0.0833, s4 0.0833, "
        "s5 0.0833, s6 0.0833, s7 0.0833, 4 more, 1 change>"
    )


def test_changes_after_the_end_are_refused(views):
    ending = limited(views, {"web": (1, None), "math": (1, 1)})
    end = len(ending)
    with pytest.raises(UsageError, match=f"a change at position {end + 5}, but the mixture ends"):
        len(ending.change(end + 5, {"web": 1}))


def test_a_source_that_runs_out_where_it_is_no_longer_wanted_ends_nothing(views):
    ending = limited(views, {"web": (1, None), "math": (1, 1)})
    end = len(ending)
    longer = ending.change(end, {"web": 1})
    assert longer.order.end is None
    assert turns(longer, range(end)) == turns(ending, range(end))
    assert {name for name, _ in turns(longer, range(end, end + 50))} == {"web"}
    with pytest.raises(UsageError, match=f"a change at position {end}, but the mixture ends"):
        len(ending.change(end, {"web": 1, "math": 5}))


def test_the_first_positions_of_a_mixture_are_a_mixture(views):
    whole = millstream.mix({"web": (views["web"], 2), "math": (views["math"], 1)}, num_samples=40)
    first = whole.take(30)
    assert len(first) == first.order.end == 30
    assert turns(first, range(30)) == turns(whole, range(30))
    assert len(pickle.loads(pickle.dumps(first))) == 30
    assert len(first.change(20, {"web": 1})) == 30
    assert len(limited(views, {"web": (1, None), "math": (1, 1)}).take(10**6)) == 16
    with pytest.raises(IndexError, match="no position 30"):
        first.locate([30])
    with pytest.raises(UsageError, match="a change at position 30, but the mixture ends at 30"):
        len(first.change(30, {"web": 1}))


def test_golden_turns_and_samples(views):
    """Only change these if you know what you are doing: saved positions depend on them."""
    mixture = limited(
        views,
        {"web": (5, None), "code": (3, None), "math": (2, 1)},
        when_exhausted="redistribute",
        seed=3,
    ).change(24, {"web": 1, "code": 3}, over=12)
    found = "".join(name[0] for name, _ in turns(mixture, range(60)))
    assert found == GOLDEN_TURNS
    assert turns(mixture, range(8)) == GOLDEN_SAMPLES


GOLDEN_TURNS = "wccwmwcwwmcwmwcwcwmwwcmwmcwwccwcccwccwcccwcccwccccwccwccccwc"
GOLDEN_SAMPLES = [
    *(("web", 0), ("code", 8), ("code", 21), ("web", 85)),
    *(("math", 5), ("web", 50), ("code", 19), ("web", 88)),
]
