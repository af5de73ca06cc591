"""Python programs in processes of their own."""

import os
import subprocess
import sys


def start_python(program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(program, *arguments, **options):
    """Run to the end, however it ends."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    options = {"timeout": 100} | options
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def run_torchrun(path, num_processes, *arguments):
    """Run the program at `path` in several processes with ranks, however it ends."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    return subprocess.run(
        [sys.executable, *launch, *map(str, [path, *arguments])],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
