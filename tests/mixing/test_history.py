"""States of mixtures: which mixtures may continue them, and what is refused."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import StateError, UsageError
from tests.helpers.mixtures import windows_of

SIZES = {"web": 60, "code": 25, "math": 8}


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    return windows_of(tmp_path_factory.mktemp("views"), SIZES)


def new_loader(view, batch_size=5, **options):
    return millstream.Loader(
        view, batch_size, output="numpy", rank=0, ranks=1, prefetch=0, **options
    )


def state_at(mixture, position):
    """The state of a run of this mixture that has got to a position."""
    loader = new_loader(mixture, 1, tail="keep")
    state = loader.state_dict() | {"position": position}
    return json.loads(json.dumps(state))


def continues(mixture, state):
    """Whether a mixture takes a state."""
    loader = new_loader(mixture, 1, tail="keep")
    try:
        loader.load_state_dict(state)
    except StateError:
        assert loader.position == 0
        return False
    assert loader.position == state["position"]
    return True


def turns(mixture, stop):
    sources, samples = mixture.locate(range(stop))
    return [(mixture.names[k], int(n)) for k, n in zip(sources, samples, strict=True)]


def test_a_state_is_plain_json_and_its_form_is_pinned(views):
    mixture = millstream.mix({"web": (views["web"], 3), "code": (views["code"], 1)}, seed=4)
    limited = millstream.MixtureSource(views["math"], 1, max_epochs=1)
    mixture = mixture.change(10, {"web": 1}, over=5, sources={"math": limited})
    state = new_loader(mixture).state_dict()
    assert json.loads(json.dumps(state)) == state
    # A user's checkpoint outlives a release: change this only with a new version.
    assert state == {
        "version": 2,
        "millstream": millstream.__version__,
        "position": 0,
        "seed": 4,
        "order": {
            "mixture": 1,
            "changes": [
                [0, 0, [["web", 75 * 10**16], ["code", 25 * 10**16]]],
                [10, 5, [["web", 5 * 10**17], ["math", 5 * 10**17]]],
            ],
            "exhausted": [[29, "math"]],
        },
        "view": {
            name: f"windows-v1 of 5 every 4 in {data}; shuffle-v1 over {SIZES[name]}, seed {seed}"
            for name, data, seed in (
                ("web", "3f0b5866cda29d37", 7214984379331447745),
                ("code", "b872ae3db4d4420e", 7258858472621632278),
                ("math", "b406ea9e94306149", 9436028933776028352),
            )
        },
    }


@pytest.mark.parametrize("over", [0, 7])
def test_states_before_a_change_load_into_the_changed_mixture_and_later_ones_do_not(views, over):
    mixture = millstream.mix({"web": (views["web"], 3), "code": (views["code"], 1)})
    changed = mixture.change(20, {"web": 1, "code": 3}, over=over)
    for position in (0, 1, 19, 20):
        assert continues(changed, state_at(mixture, position))
        assert continues(mixture, state_at(changed, position))
    for position in (21, 1000):
        assert not continues(changed, state_at(mixture, position))
        assert not continues(mixture, state_at(changed, position))
        assert continues(changed, state_at(changed, position))


def test_a_refusal_says_what_differs(views):
    mixture = millstream.mix({"web": (views["web"], 3), "code": (views["code"], 1)})
    changed = mixture.change(20, {"web": 1, "code": 3})
    with pytest.raises(StateError, match=r"saved run before position 21: its weights were"):
        new_loader(changed, 1).load_state_dict(state_at(mixture, 21))
    other = millstream.mix({"web": (views["math"], 3), "code": (views["code"], 1)})
    with pytest.raises(StateError, match=r"source 'web' of the mixture was .* read before pos"):
        new_loader(other, 1).load_state_dict(state_at(mixture, 21))
    with pytest.raises(StateError, match=r"millstream.mix\(…, seed=0\)"):
        new_loader(millstream.mix({"web": (views["web"], 1)}, seed=3)).load_state_dict(
            state_at(mixture, 0)
        )


def test_what_comes_later_may_differ(views):
    first = millstream.mix({"web": (views["web"], 3), "code": (views["code"], 1)})
    one = first.change(30, {"web": 1}).change(50, {"code": 1}, over=9)
    other = first.change(30, {"web": 1}).change(
        45, {"web": 1}, sources={"math": (views["math"], 2)}
    )
    for position, is_past in ((30, True), (45, True), (46, False), (50, False)):
        assert continues(one, state_at(other, position)) == is_past
    assert continues(other, state_at(one, 45))


different = {
    "weights": lambda v: millstream.mix({"web": (v["web"], 2), "code": (v["code"], 1)}),
    "order of the sources": lambda v: millstream.mix(
        {"code": (v["code"], 1), "web": (v["web"], 3)}
    ),
    "fewer sources": lambda v: millstream.mix({"web": (v["web"], 3)}),
    "more sources": lambda v: millstream.mix({name: (v[name], 1) for name in v}),
    "names": lambda v: millstream.mix({"Web": (v["web"], 3), "code": (v["code"], 1)}),
    "views": lambda v: millstream.mix({"web": (v["web"], 3), "code": (v["math"], 1)}),
    "samples": lambda v: millstream.mix({"web": (v["web"].slice(1), 3), "code": (v["code"], 1)}),
    "shuffles": lambda v: millstream.mix(
        {"web": (v["web"], 3), "code": millstream.MixtureSource(v["code"], 1, shuffle=False)}
    ),
    "seeds of sources": lambda v: millstream.mix(
        {"web": (v["web"], 3), "code": millstream.MixtureSource(v["code"], 1, seed=1)}
    ),
    "seeds": lambda v: millstream.mix({"web": (v["web"], 3), "code": (v["code"], 1)}, seed=1),
}


@pytest.mark.parametrize("kind", different)
def test_states_of_other_mixtures_are_refused(views, kind):
    mixture = millstream.mix({"web": (views["web"], 3), "code": (views["code"], 1)})
    other = different[kind](views)
    for position in (1, 40):
        assert not continues(other, state_at(mixture, position))
        assert not continues(mixture, state_at(other, position))
        assert continues(mixture, state_at(mixture, position))


def test_equal_shares_are_the_same_mixture_however_they_are_written(views):
    mixture = millstream.mix({"web": (views["web"], 3), "code": (views["code"], 1)})
    state = state_at(mixture, 50)
    same = {"web": (views["web"], 0.75), "code": (views["code"], 0.25)}
    assert continues(millstream.mix(same), state)
    assert continues(millstream.mix(same, num_samples=17), state)
    limited = same | {"code": millstream.MixtureSource(views["code"], 1 / 4, max_epochs=9)}
    assert continues(millstream.mix(limited), state)


@pytest.mark.parametrize("when_exhausted", ["stop", "redistribute"])
def test_sources_that_had_run_out_are_part_of_the_past(views, when_exhausted):
    def mixture(epochs):
        limited = millstream.MixtureSource(views["math"], 1, max_epochs=epochs)
        return millstream.mix(
            {"web": (views["web"], 3), "math": limited}, when_exhausted=when_exhausted
        )

    at, _ = mixture(1).order.exhausted[0]
    assert continues(mixture(2), state_at(mixture(1), at))
    assert continues(mixture(1), state_at(mixture(2), at))
    assert not continues(mixture(1), state_at(mixture(2), at + 1))
    if when_exhausted == "redistribute":
        assert not continues(mixture(2), state_at(mixture(1), at + 1))


changes = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from([0, 6]), st.integers(1, 2)), max_size=2
)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from(list(SIZES)), st.integers(1, 3), min_size=1),
    st.tuples(st.none() | st.integers(1, 2), changes),
    st.tuples(st.none() | st.integers(1, 2), changes),
    st.integers(1, 40),
)
def test_a_state_loads_exactly_where_the_same_was_served(views, weights, one, other, position):
    """Two mixtures that differ in limits and changes; the past is all that counts."""
    mixtures = []
    for epochs, given_changes in (one, other):
        sources = {
            name: millstream.MixtureSource(views[name], weight, max_epochs=epochs)
            for name, weight in weights.items()
        }
        mixture, at = millstream.mix(sources, when_exhausted="redistribute"), 0
        for wait, over, weight in given_changes:
            at += wait
            mixture = mixture.change(at, weights | {mixture.names[0]: weight}, over=over)
            at += over
        mixtures.append(mixture)
    try:
        position = min(position, *(len(mixture) for mixture in mixtures))
    except UsageError:  # a change after the end
        reject()
    if continues(mixtures[1], state_at(mixtures[0], position)):
        assert turns(mixtures[0], position) == turns(mixtures[1], position)
    else:
        assert one != other


def damaged(value):
    """A value and everything in it, replaced by something else; with where."""
    replacements = [None, -1, 2**70, 1.5, float("nan"), True, "x", b"x", [], {}, [[]], {"a": 1}]
    for new in replacements:
        yield new
    if isinstance(value, dict):
        for key in value:
            without = {name: each for name, each in value.items() if name != key}
            yield without
            for new in damaged(value[key]):
                yield value | {key: new}
    if isinstance(value, list):
        yield value[1:]
        yield [*value, *value]
        yield [*value, "x"]
        for place, each in enumerate(value):
            for new in damaged(each):
                yield [*value[:place], new, *value[place + 1 :]]


def test_damaged_states_are_refused_or_harmless_whatever_is_in_them(views):
    mixture = millstream.mix({"web": (views["web"], 3), "code": (views["code"], 1)})
    limited = millstream.MixtureSource(views["math"], 1, max_epochs=1)
    mixture = mixture.change(10, {"web": 1}, sources={"math": limited})
    state = state_at(mixture, 12)
    loader = new_loader(mixture, 1, tail="keep")
    expected = mixture.read([12])["input_ids"].tolist()
    num_refused = 0
    for key in ("position", "seed", "order", "view", "version", "requires"):
        for new in damaged(state.get(key)):
            before = copy.deepcopy(new)
            try:
                loader.load_state_dict(state | {key: new})
            except StateError:
                num_refused += 1
                continue
            assert repr(new) == repr(before), "loading does not change the state"
            assert key in ("position", "order", "requires"), new
            loader.load_state_dict(state)
            assert next(iter(loader))["input_ids"].tolist() == expected
    assert num_refused > 300
    for key in ("position", "seed", "order", "view", "version"):
        with pytest.raises(StateError, match="not a state of a Loader"):
            loader.load_state_dict({name: value for name, value in state.items() if name != key})


@pytest.mark.parametrize("position", [(1 << 60) + 1, 1 << 61, (1 << 62) - 1, 1 << 62, 1 << 70])
def test_positions_beyond_all_mixtures_are_refused(views, position):
    mixture = millstream.mix({"web": (views["web"], 1)})
    with pytest.raises(StateError, match="position is"):
        new_loader(mixture).load_state_dict(state_at(mixture, position))


def test_a_position_far_out_can_be_continued(views):
    mixture = millstream.mix({"web": (views["web"], 1), "code": (views["code"], 2)})
    loader = new_loader(mixture, 6, tail="keep")
    loader.load_state_dict(state_at(mixture, 1 << 60))
    batch = next(iter(loader))
    assert batch["source_ids"].tolist() == mixture.locate((1 << 60) + np.arange(6))[0].tolist()
    assert loader.stats.sources["code"].epoch > 1e15


def test_states_of_a_view_and_of_a_mixture_do_not_load_into_each_other(views):
    mixture = millstream.mix({"web": (views["web"], 1)})
    plain = new_loader(views["web"])
    with pytest.raises(StateError, match="may have been saved by a loader of a single view"):
        new_loader(mixture).load_state_dict(plain.state_dict())
    with pytest.raises(StateError, match="different rows"):
        plain.load_state_dict(new_loader(mixture).state_dict())


def test_a_state_of_a_later_kind_of_mixture_is_refused(views):
    mixture = millstream.mix({"web": (views["web"], 1)})
    state = state_at(mixture, 0)
    state["order"]["mixture"] = 2
    with pytest.raises(StateError, match="a mixture of version 2; this Millstream reads version 1"):
        new_loader(mixture).load_state_dict(state)
