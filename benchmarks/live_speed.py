"""Batches from text: `TextLoader` against nanochat's real loader, on two cores.

150 MB of source text in Parquet files (`text_corpus`), GPT-2's vocabulary with end of text before
every document, batches of 32 x 2,048. There is no training step in between, so the consumer waits
for nothing else. nanochat has its defaults: a buffer of 1,000 documents, batches of 128 texts on 4
threads. Each contender runs on two corpora: one document per source file, most of which nanochat's
loader crops, and the same text in documents as long as web pages.

Every contender runs in a fresh process that has imported everything and warmed up its tokenizer.
The first batches of `bos_best_fit` must equal nanochat's, byte for byte; the rows that follow are
timed.

Target: `bos_best_fit` makes 5 times as many tokens per second.
"""

from functools import partial
from pathlib import Path

from benchmarks import live_millstream, live_nanochat, text_corpus
from benchmarks.fresh import in_fresh_process
from benchmarks.live_walk import BATCH_SIZE, NUM_CHECKED, SEQ_LEN, Walk, check_equal, rates_of, walk
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread, in_turn, ratio

_NANOCHAT, _SAME_ROWS = "nanochat", "bos_best_fit"
_IN_ONE_THREAD = f"{_SAME_ROWS}, threads=1"
_NUM_CORES = 2

Walks = dict[str, list[Walk]]


def measure(quick: bool) -> Section:
    """Let all contenders walk through both corpora in turn."""
    num_rounds, num_batches = (1, 100) if quick else (3, 400)
    problem = live_nanochat.missing()
    corpora = text_corpus.by_length(quick=quick)
    walks = {name: _walks(paths, num_batches, num_rounds) for name, paths in corpora.items()}
    for each in walks.values():
        check_equal(each, _SAME_ROWS, [_IN_ONE_THREAD, _NANOCHAT])
    return Section(
        topic="live",
        text=(
            f"{NUM_CHECKED} batches of {BATCH_SIZE} x {SEQ_LEN:,} that are compared, then "
            f"{num_batches} that are timed; {num_rounds} interleaved rounds, medians (least to "
            f"most). {problem or live_nanochat.version()}"
        ),
        tables=[_table(name, each) for name, each in walks.items()],
        targets=[
            Target(
                what=f"live text, {name}: {_SAME_ROWS} / nanochat",
                measured=ratio(rates_of(each[_SAME_ROWS]), rates_of(each[_NANOCHAT])).median,
                limit=5,
                relation="at least",
            )
            for name, each in walks.items()
            if _NANOCHAT in each
        ],
        raw={
            name: {contender: rates_of(rounds) for contender, rounds in each.items()}
            for name, each in walks.items()
        },
    )


def walk_of_nanochat(base: Path, num_batches: int) -> Walk:
    """Walk through nanochat's batches; for a fresh process."""
    loaders, tokenizer = live_nanochat.load(base)
    return walk(partial(live_nanochat.batches, loaders, tokenizer), num_batches)


def walk_of_ours(paths: list[Path], policy: str, threads: int, num_batches: int) -> Walk:
    """Walk through Millstream's batches; for a fresh process."""
    tokenizer = live_millstream.load_tokenizer(threads)
    return walk(partial(live_millstream.pairs, paths, tokenizer, policy, threads), num_batches)


def _walks(paths: list[Path], num_batches: int, num_rounds: int) -> Walks:
    jobs = {
        policy: partial(in_fresh_process, walk_of_ours, paths, policy, _NUM_CORES, num_batches)
        for policy in live_millstream.POLICIES
    }
    jobs[_IN_ONE_THREAD] = partial(
        in_fresh_process, walk_of_ours, paths, _SAME_ROWS, 1, num_batches
    )
    if not live_nanochat.missing():
        base = live_nanochat.prepare(paths)
        jobs[_NANOCHAT] = partial(in_fresh_process, walk_of_nanochat, base, num_batches)
    return in_turn(jobs, num_rounds)


def _table(name: str, walks: Walks) -> Table:
    rows = []
    for contender, rounds in walks.items():
        cells = [contender, with_range(Spread.of(rates_of(rounds)), 1e6)]
        cells.append(f"{Spread.of([each.first_seconds for each in rounds]).median:.2f}")
        if _NANOCHAT in walks:
            cells.append(f"{ratio(rates_of(rounds), rates_of(walks[_NANOCHAT])).median:.2f}x")
        rows.append(cells)
    columns = ["", "M tokens/s", "first batch, s", "of nanochat"][: len(rows[0])]
    return Table(f"Live text, {name}", columns, rows)
