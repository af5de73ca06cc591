"""The real datatrove, in its own environment and process, driven through a pipe.

The environment is in bench-data/ and is created on first use. One of our scripts runs in it: it
prints datatrove's version, then replies to each input line with a line.
"""

import re
import shutil
import subprocess
import venv
from pathlib import Path

from benchmarks import corpora

_PROJECT = Path(__file__).parents[1]
# What its Parquet reader and tokenizer need; the extras install much more.
_PACKAGES = ("datatrove==0.10.1", "pyarrow", "tokenizers")


class DatatroveProcess:
    """A process that has datatrove, running one of our scripts."""

    def __init__(self, script: str, *args: str) -> None:
        with (corpora.DATA / "datatrove.log").open("w") as log:
            self._process = subprocess.Popen(
                [_environment(), "-I", Path(__file__).with_name(script), *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.version = self._read_reply()

    def ask(self, *words: object) -> str:
        """Send a request and return the reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._read_reply()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read_reply(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise OSError(f"its process ended with status {status}: see bench-data/datatrove.log")
        return line.strip()


def start(script: str, *args: str) -> tuple[DatatroveProcess | None, str]:
    """Return the process or None, and a note for the report."""
    try:
        process = DatatroveProcess(script, *args)
    except (OSError, subprocess.CalledProcessError) as error:
        return None, f"datatrove is not available and was left out: {error}"
    return process, f"Theirs is datatrove {process.version}."


def _environment() -> Path:
    """Return the interpreter that has datatrove."""
    root = (corpora.DATA / "datatrove-venv").absolute()
    python, mark = root / "bin" / "python", root / "ready"
    constraints = _PROJECT / "constraints.txt"
    # torch first, with its exact version, so that nothing else chooses a build.
    (torch,) = re.findall(r"^torch==.*$", constraints.read_text(), re.M)
    wanted = "\n".join((torch, *_PACKAGES))
    if not mark.exists() or mark.read_text() != wanted:
        shutil.rmtree(root, ignore_errors=True)
        venv.create(root, with_pip=True)
        for packages in ((torch,), _PACKAGES):
            command: list[str | Path] = [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--constraint",
                constraints,
            ]
            subprocess.run([*command, *packages], check=True, stderr=subprocess.DEVNULL)
        mark.write_text(wanted)
    return python
