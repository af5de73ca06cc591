"""Contents of the wheel and of the source distribution, built from this tree."""

import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.helpers import paths

pytestmark = pytest.mark.process

ROOT = paths.ROOT
SOURCES = ROOT / "src"


def build(command, directory):
    """Run a command of setup.py, which compiles nothing again; returns the file it made."""
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "egg_info", f"--egg-base={directory}", *command,
         f"--dist-dir={directory}/dist"],
        cwd=ROOT, check=True, timeout=100,
    )  # fmt: skip
    [made] = (directory / "dist").iterdir()
    return made


def sources(*suffixes):
    """The files of the package that end so, as they are named in the wheel."""
    found = [path.relative_to(SOURCES) for path in (SOURCES / "millstream").rglob("*")]
    return {str(path) for path in found if path.suffix in suffixes}


def test_the_wheel_holds_what_runs_and_nothing_else(tmp_path):
    wheel = build(["bdist_wheel", f"--bdist-dir={tmp_path}/tree"], tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith("millstream-")}
    suffix = ".abi3.so"
    modules = {*sources(".pyx"), "millstream/_memoryviews.pyx"}
    compiled = {name.removesuffix(".pyx") + suffix for name in modules}
    assert names == sources(".py", ".pyi", ".typed", ".classes") | compiled
    assert {"millstream/py.typed", "millstream/order/shuffling.pyi"} <= names
    assert any(name.endswith("unicode-16.classes") for name in names)


def test_the_source_distribution_holds_what_is_compiled_and_no_more(tmp_path):
    with tarfile.open(build(["sdist", "--formats=tar"], tmp_path)) as archive:
        files = [member.name.partition("/")[2] for member in archive if member.isfile()]
    names = {name for name in files if not name.startswith("millstream.egg-info/")}
    package = sources(".py", ".pyi", ".pyx", ".pxd", ".h", ".typed", ".classes")
    assert {name.removeprefix("src/") for name in names if name.startswith("src/")} == package
    assert {name for name in names if not name.startswith("src/")} == {
        *("LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml"),
        *("setup.cfg", "setup.py"),
    }
