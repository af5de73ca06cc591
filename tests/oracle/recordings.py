"""The topics, how many cases each has, and what was recorded of them."""

import importlib
import os
import tempfile
from pathlib import Path

from tests.oracle import mixed, stored, text
from tests.oracle.case import Case

NUM_CASES = {
    stored.datasets: 250,
    stored.files: 250,
    stored.windows: 1000,
    stored.packed: 1000,
    stored.documents: 800,
    stored.groups: 500,
    stored.objects: 400,
    stored.rows: 300,
    stored.formats: 400,
    stored.conversions: 300,
    mixed.orders: 800,
    mixed.mixtures: 800,
    mixed.stages: 200,
    text.live: 800,
    text.tokenized: 300,
    text.chats: 100,
    text.repacked: 120,
    text.vocabularies: 40,
}
TOPICS = {topic.__name__: topic for topic in NUM_CASES}
_RECORDED = Path(__file__).parent / "recorded"
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run(name, number, engine, show=None):
    """The digest of a case; with the error behind it if the engine refuses to go on."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as directory:
        case = Case(name, number, engine, Path(directory), show)
        try:
            TOPICS[name](case)
        except (engine.errors.UsageError, engine.errors.FormatError) as error:
            case.note("refused", error)
            return f"{case.digest()} {type(error).__name__}"
        return case.digest()


def run_some(name, engine_name, numbers):
    """The digest of each of some cases, or the error that ended it."""
    engine = importlib.import_module(engine_name)
    digests = []
    for number in numbers:
        try:
            digests.append(run(name, number, engine))
        except Exception as error:
            digests.append(f"{type(error).__name__}: {error}")
    return digests


def recorded(name):
    """The digest of each case of a topic."""
    return (_RECORDED / f"{name}.txt").read_text().splitlines()


def record(name, digests):
    """Replace what was recorded of a topic."""
    (_RECORDED / f"{name}.txt").write_text("".join(f"{digest}\n" for digest in digests))
