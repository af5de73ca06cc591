"""Loaders of torchrun's processes on meshes: who gets which rows, also after a kill."""

import collections
import json
import math
import re
import signal

import numpy as np
import pytest

import millstream
from tests.helpers.programs import run_torchrun

pytestmark = pytest.mark.process

NUM_SAMPLES = 101
MESHES = [
    {"dp": 4},
    {"dp": 2, "tp": 2},
    {"tp": 2, "dp": 2},
    {"pp": 2, "dp": 2},
    {"pp": 2, "tp": 2},
    {"dp_replicate": 2, "dp_shard": 2},
    {"dp": 2, "ep": 2},
    {"dp": 2, "cp": 2},
    {"dp": 2},
    {"pp": 2},
    {"dp": 1, "cp": 2},
]

# In one program, because every process needs seconds to import torch.
PROGRAM = """
import json
import os
import signal
import sys

import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh

import millstream
from millstream import Parallel
from millstream.errors import UsageError
from millstream.load.rank_agreement import check_agreement

root, sizes_to_try, sizes_to_train_on = sys.argv[1], *map(json.loads, sys.argv[2:])
view = millstream.open(f"{root}/data").windows(4)
distributed.init_process_group("gloo")
rank, num_processes = distributed.get_rank(), distributed.get_world_size()


def make_mesh(sizes):
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def rows_on(mesh):
    share = Parallel.from_mesh(mesh, context=())
    loader = millstream.Loader(view, 3, seed=1, tail="keep", parallel=share)
    samples = [loader.samples().tolist() for _ in loader]
    return {"samples": samples, "context_rank": Parallel.from_mesh(mesh).context_rank}


def complaint(**options):
    return caught(lambda: next(iter(millstream.Loader(view, 3, **options))))


def complaint_of_slices(context_rank, layout="zigzag"):
    share = Parallel(
        rank=rank // 2,
        ranks=2,
        context_rank=context_rank,
        context_ranks=2,
        context_layout=layout,
    )
    return caught(lambda: check_agreement({}, share, is_found=False))


def caught(call):
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


found = {json.dumps(sizes): rows_on(make_mesh(sizes)) for sizes in sizes_to_try}
complaints = {}
if num_processes == 4:
    mesh = make_mesh({"dp": 2, "tp": 2})
    complaints = {
        "a mesh on all": complaint(parallel=mesh),
        "a mesh on some": complaint(parallel=mesh if rank else None),
        "three of a share": complaint(parallel=Parallel(rank=int(rank == 3), ranks=2)),
        "other rows": complaint(parallel=Parallel(rank=0, ranks=1), seed=int(rank == 3)),
        "slices on all": complaint_of_slices(rank % 2),
        "two of a slice": complaint_of_slices(0),
        "other slices": complaint_of_slices(rank % 2, "contiguous" if rank == 3 else "zigzag"),
    }
with open(f"{root}/found-{num_processes}-{rank}.json", "w") as file:
    json.dump([found, complaints], file)

loader = millstream.Loader(view, 2, seed=7, tail="keep", parallel=make_mesh(sizes_to_train_on))
if num_processes == 2:
    with open(f"{root}/checkpoint.json") as file:
        loader.load_state_dict(json.load(file))
log = open(f"{root}/steps-{num_processes}-{rank}", "w")
for step, _ in enumerate(loader):
    print(json.dumps([loader.position, loader.samples().tolist()]), file=log, flush=True)
    distributed.barrier()  # as gradients would be exchanged
    if step % 3 == 2 and rank == 0:
        with open(f"{root}/checkpoint.new", "w") as file:
            json.dump(loader.state_dict(), file)
        os.replace(f"{root}/checkpoint.new", f"{root}/checkpoint.json")
    if step == 7 and rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
distributed.barrier()
distributed.destroy_process_group()
"""


def num_processes_of(sizes):
    return math.prod(sizes.values())


def read_steps(root, num_processes):
    """For every process: the position after each step, and the samples of the step."""
    paths = [root / f"steps-{num_processes}-{rank}" for rank in range(num_processes)]
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """What four processes left behind, one of them killed, and then two that went on."""
    root = tmp_path_factory.mktemp("meshes")
    with millstream.Writer(root / "data", vocab_size=60_000) as writer:
        writer.append(np.arange(4 * NUM_SAMPLES + 1, dtype=np.uint16))
    program = root / "program.py"
    program.write_text(PROGRAM)
    results = []
    for sizes in ({"dp_replicate": 2, "dp_shard": 2}, {"dp": 1, "tp": 2}):
        count = num_processes_of(sizes)
        tried = [each for each in MESHES if num_processes_of(each) == count]
        results.append(run_torchrun(program, count, root, json.dumps(tried), json.dumps(sizes)))
    killed, resumed = results
    assert f"exitcode  : {-signal.SIGKILL}" in killed.stderr
    assert resumed.returncode == 0, resumed.stderr
    return root


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_data_parallel_ranks_share_the_rows_and_all_others_get_the_same(root, sizes):
    count = num_processes_of(sizes)
    shares = collections.defaultdict(list)
    for rank in range(count):
        on_meshes, _ = json.loads((root / f"found-{count}-{rank}.json").read_text())
        found = on_meshes[json.dumps(sizes)]
        where = np.unravel_index(rank, tuple(sizes.values()))
        index = dict(zip(sizes, where, strict=True))
        shares[tuple(index[name] for name in sizes if name.startswith("dp"))] += [found["samples"]]
        assert found["context_rank"] == index.get("cp", 0)
    assert all(each == same[0] for same in shares.values() for each in same)
    served = [sample for same in shares.values() for step in same[0] for sample in step]
    assert sorted(served) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # Or, if those without a mesh come second: two of the processes have the same rank.
        ("a mesh on some", r"ranks is |2 of the 4 processes have rank"),
        ("three of a share", "3 of the 4 processes have rank 0 of 2, and would train on the same"),
        ("other rows", "seed is "),
        ("two of a slice", "2 of the 4 processes have rank"),
        ("other slices", "context_layout is "),
    ],
)
def test_processes_that_disagree_about_their_share_say_so(root, name, words):
    found = [json.loads((root / f"found-4-{rank}.json").read_text())[1] for rank in range(4)]
    said = [complaints[name] for complaints in found if complaints[name]]
    assert said
    assert all(re.search(words, each) for each in said)


def test_processes_that_agree_about_their_share_go_on(root):
    for rank in range(4):
        _, complaints = json.loads((root / f"found-4-{rank}.json").read_text())
        assert complaints["a mesh on all"] == complaints["slices on all"] == ""


def test_a_killed_run_goes_on_with_fewer_processes_on_another_mesh(root):
    killed, (first, second) = read_steps(root, 4), read_steps(root, 2)
    resumed_at = first[0][0] - len(first[0][1])
    before = [step for steps in killed for step in steps if step[0] <= resumed_at]
    assert 0 < resumed_at < max(steps[-1][0] for steps in killed)
    assert first == second
    samples = [sample for _, step in before + first for sample in step]
    assert sorted(samples) == list(range(NUM_SAMPLES))
