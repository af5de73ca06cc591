"""From text files to token files: Millstream against other software, on two cores.

150 MB of source text in Parquet files (`text_corpus`), GPT-2's vocabulary, everything in the page
cache. All contenders run in a process that has imported and loaded what it needs, including
`millstream.tokenize`; the command also includes everything that a user waits for. Processes that a
framework starts for each job are part of the job: datatrove's executor and ours start two each.

datatrove and nanochat's way get a third of the text, because they take long; we compare rates.
"Alone" means without files: the texts are in memory and the ids are discarded. The fast engine is
loaded afresh for each round, untimed, so that it does not know the words yet. It needs half a
second for 150 MB, so it is also compared on four times that text, where one-time costs weigh less;
both know the words by then.

Targets for `millstream.tokenize`: 8x datatrove, 8x nanochat's way, 0.85x tiktoken alone with
tiktoken as the engine, 0.7x the fast engine alone.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import millstream
from benchmarks import corpora, datatrove_process, text_corpus, text_nanochat
from benchmarks.peer_process import PeerProcess
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from millstream.text.tokenizers.loading import Engine

_NUM_CORES = 2
_NUM_FILES_FOR_PEERS = 2
_NUM_COPIES = 4
_FAST, _WITH_TIKTOKEN = "millstream.tokenize", "millstream.tokenize, engine tiktoken"
_COMMAND = "millstream tokenize, the command from its start"
_DATATROVE, _NANOCHAT = "datatrove", "nanochat's way"
_TIKTOKEN_ALONE, _FAST_ALONE = "tiktoken alone, 2 threads", "fast engine alone, 2 threads"
_FAST_IN_ONE_THREAD = "fast engine alone, 1 thread"
_OVER = ", four times over"


def measure(quick: bool) -> Section:
    """Time all contenders in turn, each into an empty directory."""
    num_rounds = 1 if quick else 3
    paths = text_corpus.parquet_files()
    texts = [text for path in paths for text in text_corpus.texts_of(path)]
    many = text_corpus.many_parquet_files(_NUM_COPIES)
    part = paths[:_NUM_FILES_FOR_PEERS]
    size_bytes, part_bytes = text_corpus.size_bytes(paths), text_corpus.size_bytes(part)
    peer, problem = _start_datatrove(part)
    out = corpora.DATA / "tokenized"

    def job(run: Callable[[Path], object], amount: int) -> Contender:
        return Contender(lambda: run(out), amount, lambda: _empty(out))

    fast = FastEngine(texts)
    encoding = text_corpus.tiktoken_encoding()
    contenders = {
        _FAST: job(partial(_tokenize, paths, "fast"), size_bytes),
        _COMMAND: job(partial(_run_command, paths), size_bytes),
        _NANOCHAT: job(partial(text_nanochat.tokenize, part, encoding), part_bytes),
        _WITH_TIKTOKEN: job(partial(_tokenize, paths, "tiktoken"), size_bytes),
        _TIKTOKEN_ALONE: Contender(
            lambda: encoding.encode_ordinary_batch(texts, num_threads=_NUM_CORES), size_bytes
        ),
        _FAST_IN_ONE_THREAD: Contender(lambda: fast.encode(1), size_bytes, fast.load),
        _FAST_ALONE: Contender(lambda: fast.encode(_NUM_CORES), size_bytes, fast.load),
        _FAST + _OVER: job(partial(_tokenize, many, "fast"), _NUM_COPIES * size_bytes),
        _FAST_ALONE + _OVER: Contender(
            lambda: fast.encode(_NUM_CORES, _NUM_COPIES), _NUM_COPIES * size_bytes, fast.load
        ),
    }
    # Peers must find the same number of tokens.
    _empty(out)
    num_tokens = _tokenize(part, "fast", out)
    if peer is not None:
        contenders[_DATATROVE] = job(partial(_ask, peer, num_tokens), part_bytes)
    measured = rates(contenders, num_rounds)
    if peer is not None:
        peer.close()
    shutil.rmtree(out)
    return Section(
        topic="tokenize",
        text=(
            f"{len(texts):,} documents, {size_bytes / 1e6:.0f} MB of text, in {len(paths)} Parquet "
            f"files; datatrove and nanochat's way get {part_bytes / 1e6:.0f} MB of it. "
            f"{num_rounds} interleaved rounds, medians (least to most). {problem}"
        ),
        tables=[_table(measured)],
        targets=_targets(measured),
        raw=measured,
    )


class FastEngine:
    """The fast engine without files, on texts in memory."""

    def __init__(self, texts: list[str]) -> None:
        # Batches of 32 documents up to a row group were equally fast.
        starts = range(0, len(texts), text_corpus.ROWS_PER_GROUP)
        self._batches = [
            _as_array(texts[start : start + text_corpus.ROWS_PER_GROUP]) for start in starts
        ]

    def load(self) -> None:
        """Forget what it learned about the text."""
        self._tokenizer = millstream.load_tokenizer(text_corpus.tokenizer_json(), engine="fast")

    def encode(self, num_threads: int, num_times: int = 1) -> None:
        """Encode all texts and discard the ids."""
        with ThreadPoolExecutor(num_threads) as pool:
            batches = num_times * self._batches
            for _ in pool.map(lambda batch: len(self._tokenizer.encode(*batch)[0]), batches):
                pass


def _as_array(texts: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def _tokenize(paths: list[Path], engine: Engine, out: Path) -> int:
    """Return the number of tokens."""
    tokenizer = text_corpus.tokenizer_json()
    report = millstream.tokenize(paths, tokenizer, out, workers=_NUM_CORES, engine=engine)
    assert report is not None  # None only for a part of the tasks
    return report.tokens


def _run_command(paths: list[Path], out: Path) -> None:
    command = text_corpus.tokenize_command(paths, out, _NUM_CORES)
    subprocess.run(command, check=True, capture_output=True)


def _start_datatrove(paths: list[Path]) -> tuple[PeerProcess | None, str]:
    return datatrove_process.start(
        "text_datatrove_child.py",
        str(paths[0].parent),
        f"0000[0-{len(paths) - 1}].parquet",
        str(text_corpus.tokenizer_json()),
        text_corpus.END_OF_TEXT,
    )


def _ask(peer: PeerProcess, num_tokens: int, out: Path) -> None:
    found = peer.ask(out)
    if found != str(num_tokens):
        raise RuntimeError(f"datatrove counts {found} tokens, we count {num_tokens}")


def _empty(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    os.sync()  # pending writes of others must not run while one is timed


def _table(measured: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1e6, 1),
            f"{ratio(measured[_FAST], rounds).median:.2f}x",
            f"{ratio(measured[_COMMAND], rounds).median:.2f}x",
        ]
        for name, rounds in measured.items()
    ]
    columns = ["", "MB of text/s", "millstream.tokenize is", "the command is"]
    return Table("Tokenizing", columns, rows)


def _targets(measured: dict[str, list[float]]) -> list[Target]:
    promises = [
        (_FAST, _DATATROVE, 8.0),
        (_FAST, _NANOCHAT, 8.0),
        (_WITH_TIKTOKEN, _TIKTOKEN_ALONE, 0.85),
        (_FAST + _OVER, _FAST_ALONE + _OVER, 0.7),
    ]
    return [
        Target(
            what=f"{ours} / {theirs}",
            measured=ratio(measured[ours], measured[theirs]).median,
            limit=limit,
            relation="at least",
        )
        for ours, theirs, limit in promises
        if theirs in measured
    ]
