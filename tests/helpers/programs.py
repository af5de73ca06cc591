"""Python programs in processes of their own."""

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
