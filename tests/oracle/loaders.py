"""Random runs of a loader: ranks, batch sizes, ends of epochs, resumption on other ranks."""

import json
from itertools import islice

_STEPS, _STEPS_AFTER = 7, 5


def draw_order(case, num_samples, *, by_length=False):
    """The shuffle and the seed of a loader, for a view of so many samples."""
    return {
        "shuffle": draw_shuffle(case, num_samples, by_length=by_length),
        "seed": case.draw.integer(0, 1 << 40),
    }


def draw_shuffle(case, num_samples, *, by_length=False):
    """Any of the orders for so many samples."""
    draw, engine = case.draw, case.engine
    ways = ["global", "global", "global", "stored", "blocks", "bands"]
    way = draw.one_of(*ways, *["buckets"] * 4 * by_length)
    if way == "blocks":
        return engine.BlockShuffle(draw.integer(1, 9), inside=draw.chance(0.5))
    if way == "bands":
        return engine.Bands(draw.integer(1, max(1, min(num_samples, 9))))
    if way == "buckets":
        return engine.LengthBuckets(draw.integer(1, 6))
    return way == "global"


class Run:
    """How a run reads a view on some ranks; another one may continue it."""

    def __init__(self, case, view, *, holds_tokens=True, has_end=False):
        draw, seq_len, self.has_end = case.draw, view.seq_len, has_end
        self.ranks, self.batch_size = draw.integer(1, 4), draw.integer(1, 4)
        self.options = {
            "tail": draw.one_of("drop", "keep", "keep", "keep" if has_end else "wrap"),
            "prefetch": draw.one_of(0, 1, 3),
            "threads": draw.integer(1, 2),
            "output": draw.one_of("numpy", "numpy", "numpy", "torch"),
            "endless": draw.chance(0.2) and not has_end,
        }
        if draw.chance(0.2):
            first, later = draw.integer(self.ranks, 12), draw.integer(self.ranks, 12)
            schedule = [(0, first), (draw.integer(1, 3) * first - draw.integer(0, 1), later)]
            self.options["global_batch_size"] = draw.one_of(first, schedule)
        rows = self.options.get("global_batch_size", self.ranks * self.batch_size)
        if len(view) < (rows if isinstance(rows, int) else max(size for _, size in rows)):
            self.options["tail"] = "keep"
        parts = [ranks for ranks in (2, 4) if seq_len % (2 * ranks) == 0]
        is_sliced = holds_tokens and parts and draw.chance(0.25)
        self.context_ranks = draw.one_of(*parts) if is_sliced else 1
        self.layout = draw.one_of("zigzag", "contiguous")
        if holds_tokens and draw.chance(0.25):
            self.options["dtype"] = draw.one_of(None, "int64")
        if holds_tokens and self.context_ranks == 1:
            self.options["digest_tokens"] = draw.chance(0.3)
        case.note("run", f"{self.ranks} ranks x {self.batch_size} {self.options}")
        if self.context_ranks > 1:
            case.note("context", f"{self.context_ranks} {self.layout}")

    def loaders(self, case, view, order):
        """A loader for each rank, and for each slice of its rows; `order`: shuffle and seed."""
        for rank in range(self.ranks):
            for context_rank in range(self.context_ranks):
                share = {"rank": rank, "ranks": self.ranks}
                if self.context_ranks > 1:
                    share = {
                        "parallel": case.engine.Parallel(
                            **share,
                            context_rank=context_rank,
                            context_ranks=self.context_ranks,
                            context_layout=self.layout,
                        )
                    }
                yield case.engine.Loader(view, self.batch_size, **share, **self.options, **order)


def see_run(case, view, order, **traits):
    """All that some ranks read, then what others read who continue from one of its states."""
    case.note("order", order)
    run = Run(case, view, **traits)
    epoch = case.draw.one_of(0, 0, 1, 5) if order else 0
    states = []
    for loader in run.loaders(case, view, order):
        loader.set_epoch(epoch)
        states = _see_steps(case, run, loader, _STEPS) or states
    if not states:
        return
    state = json.loads(json.dumps(case.draw.one_of(*(states[:-1] or states))))
    case.note("continue at", state["position"])
    run = Run(case, view, **traits)
    for loader in run.loaders(case, view, order):
        loader.load_state_dict(state)
        if run.options["endless"] or loader.remaining:
            _see_steps(case, run, loader, _STEPS_AFTER)


def steps_of(loader, count, *, has_end=False):
    """At most so many steps of a loader, through the ends of its epochs unless the first is all."""
    before = 0
    while count != before:  # an epoch may have no step
        before = count
        for step in islice(loader, count):
            yield step
            count -= 1
        if has_end or not count:
            return


def see_step(case, loader, step):
    """See a step, and what the loader says after it."""
    case.see("step", step)
    case.see("samples", loader.samples())
    case.see("digest", loader.digest())
    case.see("position", loader.position)
    state = loader.state_dict()
    case.see("state", {key: state[key] for key in ("position", "order", "view") if key in state})


def _see_steps(case, run, loader, count):
    """See steps and what the loader says after each; returns its states."""
    states = []
    if not run.options["endless"]:
        case.see("steps", [len(loader), loader.remaining])
    with loader:
        for step in steps_of(loader, count, has_end=run.has_end):
            see_step(case, loader, step)
            if run.options.get("digest_tokens"):
                case.see("token digest", loader.token_digest())
            states.append(loader.state_dict())
    return states


def mark_rows(batch, positions):
    """A transform that shows which positions it was given."""
    return {**batch, "positions": positions}
