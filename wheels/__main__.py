"""Build all wheels into dist/ and check them: `python -m wheels`.

The wheel for this machine is tested with every Python from 3.11 on that is found on PATH.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from wheels.inspection import inspect_wheel
from wheels.trial import try_wheel

_ROOT = Path(__file__).parent.parent
_MACHINES = ["x86_64", "aarch64"]


def main() -> None:
    """Build, inspect and try."""
    wheels = {machine: _build(machine) for machine in _MACHINES}
    for machine, wheel in wheels.items():
        print(inspect_wheel(wheel, machine))
        subprocess.run([sys.executable, "-m", "abi3audit", "--strict", wheel], check=True)
    own = wheels.get(platform.machine())
    if own is None or sys.platform != "linux":
        print("no wheel is for this machine: none was tried")
        return
    for python in _pythons():
        print(try_wheel(own, python))


def _build(machine: str) -> Path:
    """Compile what has changed since the last time; return the wheel."""
    base, dist = Path("build", "wheels", machine), _ROOT / "dist"
    tag = f"manylinux_2_17_{machine}"
    for old in dist.glob(f"*{tag}.whl"):
        old.unlink()
    # Only setup.py itself takes all options; setuptools warns that it is not the usual way.
    command = [sys.executable, "-Wignore", "setup.py", "--quiet"]
    command += ["build", f"--build-base={base}", f"--build-lib={base / 'lib'}"]
    command += ["bdist_wheel", f"--plat-name={tag}", f"--dist-dir={dist}"]
    subprocess.run(command, cwd=_ROOT, env=os.environ | {"MILLSTREAM_TARGET": machine}, check=True)
    [wheel] = dist.glob(f"*{tag}.whl")
    return wheel


def _pythons() -> list[str]:
    """This Python, and the others on PATH, a version each."""
    found = {sys.version_info[:2]: sys.executable}
    for directory in os.get_exec_path():
        for path in sorted(Path(directory).glob("python3.*")):
            match = re.fullmatch(r"python3\.(\d+)", path.name)
            # Version managers put names on PATH for what they do not run.
            if match and int(match[1]) >= 11 and shutil.which(path) and _runs(path):
                found.setdefault((3, int(match[1])), str(path))
    return [found[version] for version in sorted(found)]


def _runs(python: Path) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


main()
