"""The training examples at work, in processes of their own."""

import os
import runpy
import subprocess
import sys
import time
from contextlib import contextmanager

from tests.helpers import fork_server, paths
from tests.helpers.trainer_runs import HeldPort

EXAMPLES = paths.ROOT / "examples"
ON_CPU = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


class Run:
    """One process."""

    def __init__(self, example, arguments, log, environment=ON_CPU, port=None):
        """The `port` is held as long as this object exists."""
        self.log, self._port = log, port
        log.touch()
        command = [str(EXAMPLES / example), *map(str, arguments)]
        self.process = fork_server.start(run_example, command, log, environment, daemon=True)

    def wait_for(self, is_there):
        """Until it is there, or the process has ended."""
        while not is_there() and self.process.is_alive():
            time.sleep(0.001)

    def end(self):
        """What it printed, once it has ended well."""
        self.process.join(90)
        if self.process.is_alive():
            self.process.kill()  # a rank that hangs must not hang the test
            self.process.join()
        assert self.process.exitcode == 0, (self.process.exitcode, self.log.read_text())
        return self.log.read_text()


def run_example(command, log, environment):
    with log.open("a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environment)
    sys.argv = command
    sys.path.insert(0, str(EXAMPLES))
    runpy.run_path(command[0], run_name="__main__")


def run_ranks(example, arguments, ranks, directory):
    """One run per rank, with a log each in the directory."""
    port = HeldPort()
    address = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port.number),
        "WORLD_SIZE": str(ranks),
    } | ON_CPU
    directory.mkdir(exist_ok=True)
    return [
        Run(
            example,
            arguments,
            directory / f"{rank}.log",
            address | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            port,
        )
        for rank in range(ranks)
    ]


@contextmanager
def torchrun(example, arguments, ranks, log):
    """All ranks, as users start them."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *launch, EXAMPLES / example, *map(str, arguments)],
            stdout=output,
            stderr=output,
            env=os.environ | ON_CPU,
        )
    try:
        yield process
    finally:
        process.terminate()  # if it still runs, with all ranks
        process.wait()


def newest_step(out):
    """The step of the newest complete checkpoint; 0 if there is none."""
    files = [path.stem for path in out.glob("step-*.pt")]
    folders = [path.parent.name for path in out.glob("step-*/.metadata")]
    return max((int(name[5:]) for name in files + folders), default=0)
