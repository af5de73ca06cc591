"""`Parallel`: the share of a process, from sizes and from every kind of `DeviceMesh`."""

import math
from itertools import islice

import numpy as np
import pytest
import torch.distributed as distributed
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import millstream
from millstream import Parallel
from millstream.errors import UsageError
from tests.helpers.datasets import inputs_of

DATA = ["dp", "data", "DP", "data_parallel", "dp_replicate", "dp_shard", "fsdp", "batch"]
CONTEXT = ["cp", "context", "context_parallel"]
SAME = ["tp", "tensor_parallel", "pp", "pipeline", "ep", "Expert", "model"]


@st.composite
def named_sizes(draw):
    """Up to five dimensions of different names."""
    names = draw(st.lists(st.sampled_from(DATA + CONTEXT + SAME), max_size=5, unique=True))
    return {name: draw(st.integers(1, 4)) for name in names}


def index_along(chosen, sizes, rank):
    """The index and size along some dimensions, as NumPy numbers them."""
    names, shape = list(sizes), tuple(sizes.values())
    kept = [names.index(name) for name in names if name in chosen]
    where = np.unravel_index(rank, shape) if shape else ()
    inner = tuple(shape[each] for each in kept)
    if not inner:
        return 0, 1
    return int(np.ravel_multi_index([where[each] for each in kept], inner)), math.prod(inner)


@given(named_sizes(), st.data())
def test_sizes_give_the_share_that_numpy_would(sizes, data):
    rank = data.draw(st.integers(0, math.prod(sizes.values()) - 1))
    found = Parallel.from_sizes(sizes, rank=rank)
    assert (found.rank, found.ranks) == index_along(DATA, sizes, rank)
    assert (found.context_rank, found.context_ranks) == index_along(CONTEXT, sizes, rank)


@given(named_sizes(), st.data())
def test_given_dimensions_decide_whatever_they_are_called(sizes, data):
    rank = data.draw(st.integers(0, math.prod(sizes.values()) - 1))
    roles = [data.draw(st.sampled_from(["data", "context", "same"])) for _ in sizes]
    chosen = {
        role: [name for name, each in zip(sizes, roles, strict=True) if each == role]
        for role in ("data", "context")
    }
    found = Parallel.from_sizes(sizes, rank=rank, **chosen)
    assert (found.rank, found.ranks) == index_along(chosen["data"], sizes, rank)
    assert (found.context_rank, found.context_ranks) == index_along(chosen["context"], sizes, rank)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 2, "ranks": 2}, "rank is 2; it must be an integer from 0 to 1"),
        ({"rank": 0, "ranks": 0}, "ranks is 0"),
        ({"rank": 0, "ranks": 1, "context_rank": 1}, "context_rank is 1"),
        ({"rank": 0, "ranks": 1, "context_layout": "zig-zag"}, "did you mean 'zigzag'"),
    ],
)
def test_a_share_that_cannot_be_is_refused(arguments, words):
    with pytest.raises(UsageError, match=words):
        Parallel(**arguments)


def test_sizes_that_do_not_fit_the_processes_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="for 8 processes, but this one has no rank"):
        Parallel.from_sizes({"dp": 4, "tp": 2})
    with pytest.raises(UsageError, match="rank is 8"):
        Parallel.from_sizes({"dp": 4, "tp": 2}, rank=8)
    with pytest.raises(UsageError, match="the size of 'tp' is 0"):
        Parallel.from_sizes({"dp": 4, "tp": 0}, rank=0)
    with pytest.raises(UsageError, match="must be a dict"):
        Parallel.from_sizes([4, 2])
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert Parallel.from_sizes({"dp": 2, "tp": 2}) == Parallel(rank=1, ranks=2)
    with pytest.raises(UsageError, match="for 8 processes, but there are 4"):
        Parallel.from_sizes({"dp": 4, "tp": 2})


@pytest.fixture
def world_of_8():
    """Act as rank 6 of 8: torch's fake backend has all of a process group but the others."""
    distributed.init_process_group("fake", store=FakeStore(), rank=6, world_size=8)
    yield
    distributed.destroy_process_group()


def make_mesh(**sizes):
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


@pytest.mark.usefixtures("world_of_8")
def test_a_mesh_gives_the_same_share_as_its_sizes():
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    for shape in [(2, 2, 2, 1, 1), (1, 2, 2, 2, 1), (1, 1, 2, 2, 2), (2, 1, 2, 1, 2)]:
        sizes = dict(zip(names, shape, strict=True))
        for layout in ("zigzag", "contiguous"):
            found = Parallel.from_mesh(make_mesh(**sizes), context_layout=layout)
            assert found == Parallel.from_sizes(sizes, context_layout=layout)


@pytest.mark.usefixtures("world_of_8")
def test_a_flattened_mesh_that_mixes_in_context_ranks_is_refused():
    mesh = make_mesh(dp_replicate=2, cp=2, dp_shard=2)  # this process is 6: at 1, 1, 0
    with pytest.raises(UsageError, match=r"rank 3 of 4 in the submesh .* rank 2 of 4"):
        Parallel.from_mesh(mesh["dp_replicate", "cp"]._flatten("fsdp"))


@pytest.mark.usefixtures("world_of_8")
def test_submeshes_flattened_and_unflattened_meshes_give_their_share():
    mesh = make_mesh(dp_replicate=2, dp_shard=2, tp=2)
    share = Parallel(rank=3, ranks=4)
    data = mesh["dp_replicate", "dp_shard"]
    assert Parallel.from_mesh(mesh) == Parallel.from_mesh(data) == share
    assert Parallel.from_mesh(data._flatten("dp")) == share
    assert Parallel.from_mesh(init_device_mesh("cpu", (8,))) == Parallel(rank=6, ranks=8)
    world = make_mesh(world=8)
    if hasattr(world, "_unflatten"):  # as torchtitan does it
        unflattened = world._unflatten(0, (2, 2, 2), ("pp", "batch", "cp"))
        found = Parallel(rank=1, ranks=2, context_rank=0, context_ranks=2)
        assert Parallel.from_mesh(unflattened) == found
        assert Parallel.from_mesh(unflattened["batch"]) == Parallel(rank=1, ranks=2)


@pytest.mark.usefixtures("world_of_8")
def test_a_dimension_beside_the_data_can_be_made_data_or_nothing():
    mesh = make_mesh(dp=2, ep=2, cp=2)
    assert Parallel.from_mesh(mesh, context=()) == Parallel(rank=1, ranks=2)
    assert Parallel.from_mesh(mesh, data=("ep", "dp"), context=()) == Parallel(rank=3, ranks=4)
    assert Parallel.from_mesh(mesh, data=("dp", "ep", "cp")) == Parallel(rank=6, ranks=8)
    ulysses = make_mesh(pp=1, dp=4, sp=2)["dp", "sp"]
    found = Parallel(rank=3, ranks=4, context_rank=0, context_ranks=2, context_layout="contiguous")
    assert Parallel.from_mesh(ulysses, context="sp", context_layout="contiguous") == found
    assert Parallel.from_mesh(ulysses, data="dp") == Parallel(rank=3, ranks=4)


@pytest.mark.usefixtures("world_of_8")
@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda: make_mesh(dp=4, sp=2), {}, r"along 'sp' get\? .* 'dp', 'sp'.*data=\(\"dp\",\)"),
        (lambda: make_mesh(dp_cp=4, tp=2), {}, "along 'dp_cp' get"),
        (lambda: init_device_mesh("cpu", (4, 2)), {}, "sizes 4, 2, have no names"),
        (lambda: make_mesh(dp=4, tp=2), {"data": "fsdp"}, "'fsdp'; the dimensions .* 'dp', 'tp'"),
        (lambda: make_mesh(dp=4, cp=2), {"data": "dp", "context": "dp"}, "'dp' cannot be both"),
        (lambda: DeviceMesh("cpu", [0, 1, 2]), {}, "not in the mesh of 3 processes"),
        (
            lambda: make_mesh(dp_replicate=2, dp_shard=4)["dp_shard"],
            {},
            "rank 2 of 4 in the submesh of 'dp_shard', but rank 6 of 8",
        ),
        (
            lambda: make_mesh(dp=4, tp=2)["tp"],
            {},
            "rank 0 of 1 in the submesh of 'tp', but rank 3 of 4",
        ),
        (lambda: "cuda", {}, "must be a torch DeviceMesh"),
    ],
)
def test_a_mesh_that_leaves_the_share_open_is_refused(make, options, words):
    with pytest.raises(UsageError, match=words):
        Parallel.from_mesh(make(), **options)


def test_loaders_take_a_share_instead_of_rank_and_ranks(data):
    view = data.windows(5)
    for rank in range(4):
        share = Parallel.from_sizes({"dp": 2, "tp": 2}, rank=rank)
        loader = millstream.Loader(view, 3, seed=1, parallel=share)
        same = millstream.Loader(view, 3, seed=1, rank=rank // 2, ranks=2)
        assert (loader.rank, loader.ranks) == (rank // 2, 2)
        assert loader.parallel == same.parallel == share
        for _ in zip(loader, same, strict=True):
            assert loader.samples().tolist() == same.samples().tolist()
    with pytest.raises(UsageError, match="leave out rank= and ranks="):
        millstream.Loader(view, 3, parallel=share, rank=0, ranks=2)
    with pytest.raises(UsageError, match="must be a torch DeviceMesh"):
        millstream.Loader(view, 3, parallel=(0, 2))


def test_text_loaders_of_one_share_give_the_same_rows_and_their_states_join(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("some words\n" * 100)
    shares = [Parallel.from_sizes({"dp": 2, "tp": 2}, rank=rank) for rank in range(4)]
    loaders = [millstream.TextLoader(tmp_path, "bytes", 2, 8, parallel=share) for share in shares]
    assert [loader.rank for loader in loaders] == [0, 0, 1, 1]
    assert "on rank 1 of 2" in repr(loaders[3])
    rows = [inputs_of(islice(loader, 5)) for loader in loaders]
    assert rows[0] == rows[1]
    assert rows[2] == rows[3]
    joined = millstream.TextLoader.join_states([loader.state_dict() for loader in loaders])
    for loader in loaders:
        rest = inputs_of(loader)
        loader.load_state_dict(joined)
        assert inputs_of(loader) == rest
        loader.close()
