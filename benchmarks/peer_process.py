"""A real peer, in its own environment and process, driven through a pipe.

The environment is in bench-data/ and is created on first use. One of our scripts runs in it: it
prints the peers' names and versions, then replies to each input line with a line.
"""

import re
import shutil
import subprocess
import venv
from pathlib import Path

from benchmarks import corpora

_PROJECT = Path(__file__).parents[1]


class PeerProcess:
    """A process that has a peer's packages, running one of our scripts.

    `name` names the environment and the log. Torch is always installed.
    """

    def __init__(self, name: str, packages: tuple[str, ...], script: str, *args: str) -> None:
        corpora.DATA.mkdir(parents=True, exist_ok=True)
        self._log = corpora.DATA / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [environment(name, packages), "-I", Path(__file__).with_name(script), *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.versions = self._read_reply()

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
            raise OSError(f"its process ended with status {status}: see {self._log}")
        return line.strip()


def start(
    name: str, packages: tuple[str, ...], script: str, *args: str
) -> tuple[PeerProcess | None, str]:
    """Return the process or None, and a note for the report."""
    try:
        process = PeerProcess(name, packages, script, *args)
    except subprocess.CalledProcessError as error:
        return None, f"{name} could not be installed (pip: {error.returncode}) and was left out."
    except OSError as error:
        return None, f"{name} is not available and was left out: {error}"
    return process, f"Theirs is {process.versions}."


def environment(name: str, packages: tuple[str, ...], *, constrained: bool = True) -> Path:
    """Return the interpreter that has the packages.

    Unless `constrained`, only torch has the version that Millstream is tested with: some peers want
    an older NumPy.
    """
    root = (corpora.DATA / f"{name}-venv").absolute()
    python, mark = root / "bin" / "python", root / "ready"
    constraints = _PROJECT / "constraints.txt"
    # torch first, with its exact version, so that nothing else chooses a build.
    (torch,) = re.findall(r"^torch==.*$", constraints.read_text(), re.M)
    wanted = "\n".join((torch, *packages))
    if not mark.exists() or mark.read_text() != wanted:
        shutil.rmtree(root, ignore_errors=True)
        venv.create(root, with_pip=True)
        command: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
        command += ["--constraint", constraints] if constrained else []
        for some in ((torch,), (torch, *packages)):
            subprocess.run([*command, *some], check=True, stderr=subprocess.DEVNULL)
        mark.write_text(wanted)
    return python
