"""Compiles the kernels: every `.pyx` under src/ becomes an extension module beside it.

PENSTOCK_BUILD chooses how: `release` (the default), `debug` (bounds checks and asserts), `address`
(the same under AddressSanitizer and UndefinedBehaviorSanitizer) or `thread` (ThreadSanitizer).
"""

import os
import shutil
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_SOURCES = Path("src")
# Cython's own code for memoryviews, compiled once instead of into every module.
_MEMORYVIEWS = "penstock._memoryviews"
_BUILD = os.environ.get("PENSTOCK_BUILD", "release")
_CHECKED = ["-O1", "-g", "-DPENSTOCK_DEBUG", "-UNDEBUG", "-fno-omit-frame-pointer"]
_FLAGS = {
    "release": ["-O3", "-g0"],
    "debug": _CHECKED,
    "address": [*_CHECKED, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": [*_CHECKED, "-fsanitize=thread"],
}


class Build(build_ext):
    """Compiles on all cores, and says what to install where that cannot be done."""

    def finalize_options(self) -> None:
        """Use all cores."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        """Compile, if there is something to compile with."""
        compiler = self.compiler.compiler[0]
        if shutil.which(compiler) is None:
            raise SystemExit(
                f"penstock: no C compiler: {compiler!r} was not found.\n"
                "Install one (Debian and Ubuntu: apt install gcc; Fedora: dnf install gcc), or\n"
                "use the one in the PyPI package ziglang:\n"
                "  pip install ziglang\n"
                "  CC=\"$(python -c 'import ziglang; print(ziglang.__path__[0])')/zig cc\" "
                "pip install ."
            )
        header = Path(sysconfig.get_paths()["include"], "Python.h")
        if not header.exists():
            raise SystemExit(
                f"penstock: Python's headers are missing: there is no {header}.\n"
                "Install them (Debian and Ubuntu: apt install python3-dev; Fedora: dnf install "
                "python3-devel)."
            )
        super().build_extensions()


def extensions() -> list[Extension]:
    """One for each `.pyx`, named after its place, and what they share."""
    flags = [*_FLAGS[_BUILD], "-Wall", "-Wno-unused-function"]
    sources = {
        ".".join(path.relative_to(_SOURCES).with_suffix("").parts): [str(path)]
        for path in sorted(_SOURCES.rglob("*.pyx"))
    }
    return [
        Extension(
            name,
            source,
            include_dirs=[str(_SOURCES / "penstock" / "machine")],
            depends=[str(path) for path in _SOURCES.rglob("*.h")],
            extra_compile_args=flags,
            extra_link_args=[flag for flag in flags if flag.startswith("-fsanitize")],
        )
        for name, source in [(_MEMORYVIEWS, []), *sources.items()]
    ]


setup(
    cmdclass={"build_ext": Build},
    ext_modules=cythonize(
        extensions(),
        build_dir=f"build/{_BUILD}/c",
        include_path=[str(_SOURCES)],
        shared_utility_qualified_name=_MEMORYVIEWS,
        nthreads=os.cpu_count(),
        compiler_directives={
            "language_level": 3,
            "boundscheck": _BUILD != "release",
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": False,
            "freethreading_compatible": False,
        },
    ),
)
