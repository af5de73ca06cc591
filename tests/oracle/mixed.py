"""Topics of orders and mixtures: which sample stands at which position, and back."""

import json
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import islice

from tests.oracle import views
from tests.oracle.datasets import open_tokens
from tests.oracle.loaders import Run, draw_shuffle, mark_rows, see_run, see_step, steps_of


def orders(case):
    """Orders of up to a trillion samples, in both directions."""
    draw, engine = case.draw, case.engine
    num_samples = draw.one_of(
        draw.integer(1, 40), draw.integer(1, 5000), (1 << 16) + draw.integer(-3, 3),
        draw.integer(1 << 16, 1 << 22), draw.integer(1 << 30, 1 << 40),
    )  # fmt: skip
    shuffle = draw.one_of(
        True, True, False,
        engine.BlockShuffle(draw.one_of(1, draw.integer(1, 3000)), inside=draw.chance(0.5)),
        engine.LengthBuckets(draw.integer(1, 600)),
        engine.Bands(draw.integer(1, min(num_samples, 5000))),
    )  # fmt: skip
    seed = draw.one_of(0, 1, draw.integer(0, (1 << 53) - 1))
    case.note("order", f"{shuffle} of {num_samples:,}, seed {seed}")
    order = engine.make_order(shuffle, num_samples=num_samples, seed=seed)
    for epoch in (0, 1, draw.integer(2, 1000)):
        first = epoch * num_samples + draw.integer(0, num_samples - 1)
        positions = list(range(first, first + 40))
        samples = order.samples_at(positions)
        case.see(f"samples at {first}", samples)
        case.see("digest", order.digest(first, first + 40))
        numbers = draw.numbers(20, num_samples)
        case.see(f"positions of {numbers.tolist()}", order.positions_of(numbers, epoch))


def mixtures(case):
    """Shares, what comes where, and runs that continue under other weights."""
    draw, engine = case.draw, case.engine
    seq_len = draw.one_of(4, 8)
    may_end = draw.chance(0.35)
    new_source = partial(_draw_source, case, seq_len, draw.one_of(None, None, 4), may_end=may_end)
    sources = {f"s{number}": new_source() for number in range(draw.integer(1, 5))}
    has_end = any(source.max_epochs for source in sources.values())
    options = {
        "seed": draw.integer(0, 1 << 40),
        "by": draw.one_of("samples", "samples", "tokens"),
        "when_exhausted": draw.one_of("stop", "redistribute"),
    }
    if draw.chance(0.2):
        options["transform"] = mark_rows
    if not has_end and draw.chance(0.3):
        options["num_samples"] = draw.integer(1, 100)
    case.note("mix", f"{sources} {options}")
    mixture = engine.mix(sources, **options)
    at = 0
    for _ in range(draw.one_of(0, 0, 1) if has_end else draw.one_of(0, 0, 1, 2)):
        last = min(at + 40, len(mixture) - 1) if has_end else at + 40
        if at < last:
            mixture, at = _change(case, mixture, new_source, draw.integer(at + 1, last))
    _see_mixture(case, mixture)
    see_run(case, mixture, {}, has_end=has_end)
    if not has_end:
        _see_changed_run(case, mixture, new_source)


def _draw_source(case, seq_len, pad_to, *, may_end=False):
    """A source with at least one sample; all of a mixture have one `pad_to`."""
    draw = case.draw
    view = ()
    while not len(view):
        kind = draw.one_of("narrow", "wide", "masked")
        data = open_tokens(case, kind=kind, max_documents=12, with_metadata=False)
        make = views.draw_documents if pad_to else draw.one_of(*views.OF_TOKENS)
        view = views.choose_samples(case, make(case, data, seq_len))
        if pad_to or hasattr(view, "pad_to"):
            view = replace(view, pad_to=pad_to)
    weight = draw.one_of(draw.integer(1, 9), draw.integer(1, 99) / 100, Fraction(1, 3), 1e-6)
    shuffle = draw_shuffle(case, len(view), by_length=getattr(view, "by_length", False))
    return case.engine.MixtureSource(
        view,
        weight,
        shuffle=shuffle,
        seed=draw.one_of(None, draw.integer(0, 99)),
        max_epochs=draw.one_of(None, 1, 1.5, 3) if may_end else None,
    )


def _change(case, mixture, new_source, at):
    """The mixture with other weights from `at` on, and where it may change next."""
    draw = case.draw
    over = draw.one_of(0, draw.integer(1, 30))
    weights = {name: draw.integer(1, 9) for name in mixture.names if draw.chance(0.8)}
    added = {}
    if draw.chance(0.3) or not weights:
        added = {f"added at {at}": new_source()}
    case.note("change", f"at {at} over {over}: {weights} {added}")
    return mixture.change(at=at, weights=weights, over=over, sources=added), at + over


def _see_mixture(case, mixture):
    case.see("samples", len(mixture))
    count = min(len(mixture), 60)
    sources, samples = mixture.locate(range(count))
    case.see("sources", sources)
    case.see("their samples", samples)
    far = len(mixture) - 1
    case.see(f"at {far}", mixture.locate([far]))
    number = case.draw.integer(0, len(mixture.names) - 1)
    name, view = mixture.names[number], mixture.sources[number]
    sample = case.draw.integer(0, len(view) - 1)
    for epoch in (0, 1):
        found = mixture.positions_of(name, [sample], epoch)
        case.see(f"where sample {sample} of {name} comes in epoch {epoch}", found)
    report = mixture.describe(steps=7, step_size=9)
    for each in report.sources:
        case.see("source", [each.name, each.samples, each.tokens, each.epochs, each.exhausted_at])


def _see_changed_run(case, mixture, new_source):
    """A run that stops, and continues where its mixture changes."""
    (loader, *_) = Run(case, mixture).loaders(case, mixture, {})
    with loader:
        states = [loader.state_dict() for _ in steps_of(loader, 3)]
    if not states:
        return
    state = json.loads(json.dumps(states[-1]))
    changes = mixture.weight_changes
    after = max(state["position"], changes[-1].at + changes[-1].over)
    mixture, _ = _change(case, mixture, new_source, after + case.draw.integer(1, 20))
    for loader in Run(case, mixture).loaders(case, mixture, {}):
        loader.load_state_dict(state)
        with loader:
            for step in steps_of(loader, 4):
                case.see("step of the changed mixture", step)
                case.see("position", loader.position)


def stages(case):
    """Loaders of several stages, with rows of other lengths; a second one continues the first."""
    draw, engine = case.draw, case.engine
    stages, until = [], 0
    for _ in range(draw.integer(2, 3)):
        view = _draw_source(case, draw.integer(2, 16), None).view
        if draw.chance(0.5):
            view = engine.mix({"only": (view, 1)}, seed=draw.integer(0, 99))
        until += draw.integer(4, 12)
        stages.append([view, until])
    stages[-1][1] = draw.one_of(None, until)
    is_long = all(len(view) >= 9 for view, _ in stages)
    tail = draw.one_of("drop", "keep") if is_long else "keep"
    case.note("stages", f"{stages} {tail}")
    states = []
    for ranks in (draw.integer(1, 3), draw.integer(1, 3)):
        state = json.loads(json.dumps(draw.one_of(*states))) if states else None
        sizes = [draw.integer(1, 3) for _ in stages]
        shapes = [
            engine.LoaderStage(view=view, batch_size=size, until=until)
            for (view, until), size in zip(stages, sizes, strict=True)
        ]
        case.note("run", f"{ranks} ranks x {sizes}")
        for rank in range(ranks):
            share = {"rank": rank, "ranks": ranks}
            loader = engine.StagedLoader(shapes, tail=tail, output="numpy", **share)
            if state:
                loader.load_state_dict(state)
            with loader:
                for step in islice(loader, 9) if loader.remaining else ():
                    see_step(case, loader, step)
                    states.append(loader.state_dict())
        if not states:
            return
