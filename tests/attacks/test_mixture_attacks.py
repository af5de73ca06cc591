"""Mixtures of many sources, and with files that change, vanish or lie while they are read."""

import os

import numpy as np
import pytest

import millstream
from millstream.errors import FormatError, MillstreamError
from tests.helpers.datasets import write_random_documents
from tests.helpers.mixtures import windows_of
from tests.helpers.programs import run_python

NUM_SOURCES = 1000


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Directories of 1,000 datasets: links to a few, which is much faster to make."""
    path = tmp_path_factory.mktemp("many")
    for number in range(10):
        write_random_documents(path / f"real{number}", 12 + number, longest=30)
    for number in range(NUM_SOURCES):
        directory = path / f"s{number}"
        directory.mkdir()
        for file in (path / f"real{number % 10}").iterdir():
            os.link(file, directory / file.name)
    return path


READ_MANY = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import numpy as np
import millstream
path, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
views = {f"s{k}": getattr(millstream.open(f"{path}/s{k}"), kind)(8) for k in range(count)}
mixture = millstream.mix({name: (view, 1 + k % 7) for k, (name, view) in enumerate(views.items())})
loader = millstream.Loader(
    mixture, 100, output="numpy", rank=0, ranks=1, prefetch=4, threads=2, tail="keep"
)
found = []
for batch in loader:
    found += zip(batch["source_ids"].tolist(), batch["input_ids"].tolist())
    assert len(os.listdir("/proc/self/fd")) <= 64
views = list(views.values())
for position in range(0, len(mixture), 97):
    (source,), (sample,) = mixture.locate([position])
    row = views[source].read([sample])["input_ids"][0].tolist()
    assert found[position] == (source, row), position
assert len(found) == len(mixture)
print(len({source for source, _ in found}))
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "count"), [("windows", NUM_SOURCES), ("packed", 200), ("documents", 100)]
)
def test_many_sources_are_read_with_few_descriptors(many, kind, count):
    """Neither files nor planned rows may stay open for every source."""
    ran = run_python(READ_MANY, many, kind, count)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) == count


@pytest.mark.slow
def test_a_thousand_sources_keep_their_shares_and_change(many):
    views = {f"s{k}": millstream.open(many / f"s{k}").windows(8) for k in range(NUM_SOURCES)}
    mixture = millstream.mix({name: (view, 1) for name, view in views.items()})
    counts = mixture.order.counts_at(50_000)
    assert abs(counts - 50).max() < 10
    changed = mixture.change(50_000, {"s7": 1, "s9": 3})
    later = changed.order.counts_at(50_400) - counts
    assert (later[7], later[9], later.sum()) == (100, 300, 400)
    state = millstream.Loader(mixture, 8, output="numpy", rank=0, ranks=1).state_dict()
    resumed = millstream.Loader(changed, 8, output="numpy", rank=0, ranks=1)
    resumed.load_state_dict(state | {"position": 50_000})
    assert resumed.position == 50_000


@pytest.mark.slow
def test_more_sources_than_kernels_number_are_refused(data):
    source = millstream.MixtureSource(data.windows(8), 1)
    with pytest.raises(MillstreamError, match=r"1,048,577 sources"):
        millstream.mix({str(k): source for k in range((1 << 20) + 1)})


def new_loader(mixture, batch_size=8, **options):
    return millstream.Loader(
        mixture, batch_size, **{"output": "numpy", "rank": 0, "ranks": 1, "prefetch": 0} | options
    )


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("access", ["pread", "mmap"])
def test_a_file_that_shrinks_or_grows_names_itself_not_its_neighbours(tmp_path, prefetch, access):
    windows_of(tmp_path, {"a": 50, "b": 50, "c": 50})
    views = {name: millstream.open(tmp_path / name, access=access).windows(4) for name in "abc"}
    mixture = millstream.mix({name: (view, 1) for name, view in views.items()})
    for name in "abc":
        (file,) = (tmp_path / name).glob("*.stream")
        content = file.read_bytes()
        for wrong in (content[:-2], content + b"xx", b""):
            file.write_bytes(wrong)
            loader = new_loader(mixture, prefetch=prefetch)
            with pytest.raises(FormatError, match=rf"{file}"):
                next(iter(loader))
            assert loader.position == 0
            assert loader.stats.rows == 0
            file.write_bytes(content)
            assert len(next(iter(loader))["source_ids"]) == 8
            loader.close()


def test_a_source_that_becomes_a_pipe_or_directory_is_an_error(tmp_path):
    views = windows_of(tmp_path, {"a": 50, "b": 50})
    mixture = millstream.mix({name: (view, 1) for name, view in views.items()})
    (file,) = (tmp_path / "b").glob("*.stream")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(MillstreamError, match=str(file)):
        next(iter(new_loader(mixture)))
    file.unlink()
    file.mkdir()
    with pytest.raises(MillstreamError, match=str(file)):
        next(iter(new_loader(mixture)))


def test_damaged_rows_of_one_source_name_its_plan(tmp_path):
    views = {}
    for name in "ab":
        views[name] = write_random_documents(tmp_path / name, 60, longest=30).packed(16)
        len(views[name])
    (plan,) = (tmp_path / "b" / "plans").glob("*.rows")
    content = bytearray(plan.read_bytes())
    content[4096:5000] = os.urandom(904)
    plan.write_bytes(content)
    mixture = millstream.mix({name: (view, 1) for name, view in views.items()})
    with pytest.raises(FormatError, match=rf"{plan}"):
        for _ in new_loader(mixture):
            pass


def test_a_mixture_with_a_source_that_is_replaced_by_another_refuses_old_states(tmp_path):
    views = windows_of(tmp_path / "one", {"a": 50, "b": 50})
    state = new_loader(
        millstream.mix({name: (view, 1) for name, view in views.items()})
    ).state_dict()
    others = windows_of(tmp_path / "two", {"a": 50, "b": 51})
    loader = new_loader(millstream.mix({name: (view, 1) for name, view in others.items()}))
    with pytest.raises(millstream.StateError, match=r"source 'b' of the mixture was"):
        loader.load_state_dict(state | {"position": 8})


def test_huge_batches_of_a_mixture_are_refused_not_allocated(data):
    mixture = millstream.mix({"a": (data.windows(8), 1), "b": (data.windows(8), 1)})
    for rows in (1 << 31, 1 << 40):
        with pytest.raises((MillstreamError, MemoryError), match=r"batch"):
            next(iter(new_loader(mixture, batch_size=rows)))


@pytest.mark.slow
def test_reading_positions_in_any_order_and_repeatedly_is_the_same(tmp_path):
    views = windows_of(tmp_path, {"a": 70, "b": 3})
    mixture = millstream.mix({"a": (views["a"], 1), "b": (views["b"], 2)})
    positions = np.random.default_rng(0).integers(0, 500, 3000)
    batch = mixture.read(positions)
    alone = {position: mixture.read([position])["input_ids"][0] for position in range(500)}
    for row, position in enumerate(positions.tolist()):
        np.testing.assert_array_equal(batch["input_ids"][row], alone[position])
