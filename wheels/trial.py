"""Tests against an installed wheel, in an environment that holds nothing else but what they need.

Without a network, give the directory that has the wheels of all dependencies:

    python -m wheels.trial dist/millstream-….whl --python python3.12 --find-links DIRECTORY

Any Python from 3.11 on with pip can run this.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_REQUIREMENTS = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis"]
# Beside those of the kernels, what lies on top of them as far as it needs no other packages.
_TESTS = ["project/test_without_extras.py", "test_opening.py", "order/test_order.py"]
_TESTS += ["pack/test_policies.py", "load/test_plan.py", "views/test_windows.py"]


def try_wheel(wheel: Path, python: str, *, find_links: Path | None = None) -> str:
    """Install a wheel and run tests with it; return a line about them, or raise."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        environment = directory / "environment"
        subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
        installed = environment / "bin" / "python"
        _install(installed, [str(wheel), *_REQUIREMENTS], find_links)
        # Without src/ beside them, tests can only import what is installed.
        for name in ("pyproject.toml", "conftest.py"):
            shutil.copy(_ROOT / name, directory)
        shutil.copytree(_ROOT / "tests", directory / "tests")
        paths = [f"tests/{name}" for name in (*_TESTS, *_kernel_tests())]
        subprocess.run(
            [installed, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", *paths],
            cwd=directory,
            env=_clean_environment(),
            check=True,
        )
        _check_place(installed, directory)
    version = subprocess.check_output([python, "--version"], text=True).strip()
    return f"{wheel.name}: tested with {version} in {time.monotonic() - start:.0f} s"


def _kernel_tests() -> list[str]:
    """The modules that are marked as tests of kernels."""
    tests = _ROOT / "tests"
    modules = [path for path in tests.rglob("test_*.py") if "mark.kernels" in path.read_text()]
    return [str(path.relative_to(tests)) for path in modules]


def _install(python: Path, requirements: list[str], find_links: Path | None) -> None:
    """Install into an environment, with the pip of the Python that runs this."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    command += ["--only-binary=:all:", f"--constraint={_ROOT / 'constraints.txt'}"]
    if find_links is not None:
        command += ["--no-index", f"--find-links={find_links}"]
    subprocess.run([*command, *requirements], check=True)


def _clean_environment() -> dict[str, str]:
    """The variables of this process, without those that change what Python imports and keeps."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _check_place(python: Path, directory: Path) -> None:
    """Make sure that the tests have used the wheel."""
    command = "import millstream.read.files; print(millstream.read.files.__file__)"
    place = subprocess.check_output(
        [python, "-c", command], cwd=directory, env=_clean_environment(), text=True
    ).strip()
    if not (Path(place).is_relative_to(directory) and place.endswith(".abi3.so")):
        raise SystemExit(f"the tests have used {place}, which is not of the wheel")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m wheels.trial")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--find-links", type=Path)
    arguments = parser.parse_args()
    print(try_wheel(arguments.wheel, arguments.python, find_links=arguments.find_links))


if __name__ == "__main__":
    main()
