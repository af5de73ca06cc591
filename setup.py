"""Compiles the kernels: every `.pyx` under src/ becomes an extension module.

MILLSTREAM_BUILD chooses how: `release` (the default), `debug` (bounds checks and asserts),
`address` (the same under AddressSanitizer and UndefinedBehaviorSanitizer) or `thread`
(ThreadSanitizer). CC chooses the compiler; left out, it is the one that Python was built with,
another of the machine or, where there is none, that of the PyPI package ziglang. MILLSTREAM_TARGET
(`x86_64` or `aarch64`) compiles for Linux on that processor with ziglang instead, for wheels (`make
wheels`).

All builds use Python's limited API: one wheel serves Python 3.11 and later, and what is tested and
measured is what users get. Against the full API, in seven interleaved rounds on a busy machine,
kernels (shuffle, widening, packing, tokenizing), imports and `next()` (3.1 us for a small batch
with either) took 0.92 to 1.09 times as long. A call of a kernel from Python took 0.1 us more,
0.3 us with two arrays. Free-threaded Pythons before 3.15 have no limited API.
"""

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

_SOURCES = Path("src")
_TARGET = os.environ.get("MILLSTREAM_TARGET")
_GLIBC = "2.17"  # of the tag manylinux_2_17, which is also called manylinux2014
_USE_LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")
# Cython's own code for memoryviews, compiled once instead of into every module.
_MEMORYVIEWS = "millstream._memoryviews"
_BUILD = os.environ.get("MILLSTREAM_BUILD", "release")
# Python's own flags hold -fwrapv, under which no overflow is undefined, and so none is reported.
_CHECKED = ["-O1", "-g", "-DMILLSTREAM_DEBUG", "-UNDEBUG", "-fno-omit-frame-pointer", "-fno-wrapv"]
_FLAGS = {
    "release": ["-O3", "-g0"],
    "debug": _CHECKED,
    "address": [*_CHECKED, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": [*_CHECKED, "-fsanitize=thread"],
}
_DIRECTIVES = {
    "language_level": 3,
    "boundscheck": _BUILD != "release",
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "allow_none_for_extension_args": False,  # else None for an object or buffer is a crash
    "embedsignature": False,
    "auto_pickle": False,
    "autotestdict": False,
    "freethreading_compatible": False,
    "show_performance_hints": False,  # bounds are checked where a build is to check them
}
_NO_COMPILER = """\
millstream: there is no C compiler: {} was not found.
Install one (Debian and Ubuntu: apt install gcc; Fedora: dnf install gcc), or take the one in the
PyPI package ziglang:
  pip install ziglang
  CC="$(python -c 'import ziglang; print(ziglang.__path__[0])')/zig cc -mcpu=baseline" pip install .
"""
_NO_HEADERS = """\
millstream: Python's headers are missing: there is no {}.
Install them (Debian and Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel).
"""


class BuildExtensions(build_ext):
    """Compiles on all cores, or says what to install first."""

    def finalize_options(self) -> None:
        """Use all cores."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count() or 1

    def build_extensions(self) -> None:
        """Translate to C what has changed, and compile that."""
        if _TARGET:
            self._compile_for_target()
        compiler = self.compiler.compiler_so[0]
        if shutil.which(compiler) is None:
            raise SystemExit(_NO_COMPILER.format(compiler))
        header = Path(sysconfig.get_paths()["include"], "Python.h")
        if not header.exists():
            raise SystemExit(_NO_HEADERS.format(header))
        directory = Path("build", _BUILD, "c")
        translated = cythonize(
            self.extensions,
            build_dir=str(directory),
            include_path=[str(_SOURCES)],
            shared_utility_qualified_name=_MEMORYVIEWS,
            nthreads=self.parallel,
            compiler_directives=_DIRECTIVES,
            force=self.force or _is_older(directory, self.extensions, Path("setup.py")),
            quiet=True,
        )
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]
        super().build_extensions()

    def copy_extensions_to_source(self) -> None:
        """Leave no older modules beside them with a name that Python looks for first."""
        super().copy_extensions_to_source()
        if _USE_LIMITED_API:
            for path in _SOURCES.rglob("*.cpython-*.so"):
                path.unlink()

    def _compile_for_target(self) -> None:
        """Use ziglang, without the flags, libraries and paths of this machine's Python."""
        compiler = [*_ziglang(), "-target", f"{_TARGET}-linux-gnu.{_GLIBC}"]
        self.compiler.set_executables(
            compiler_so=[*compiler, "-fPIC", "-fwrapv", "-DNDEBUG"],
            linker_so=[*compiler, "-shared", "-s"],
        )
        self.compiler.set_library_dirs([])
        # Debian's pyconfig.h includes one of the target, which for 64-bit Linux is as this
        # machine's in all that the limited API looks at.
        name = Path(f"python{sysconfig.get_python_version()}", "pyconfig.h")
        own = Path("/usr/include", sysconfig.get_config_var("MULTIARCH") or "", name)
        if own.exists():
            copy = Path("build", "include", f"{_TARGET}-linux-gnu", name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(own, copy)
            self.compiler.add_include_dir("build/include")


class BuildModules(build_py):
    """Leaves nothing in the build directory that is no longer in the sources."""

    def run(self) -> None:
        """Copy modules, and remove those that were copied once."""
        super().run()
        if self.editable_mode:
            return
        wanted = {*self.get_outputs(), *self.get_finalized_command("build_ext").get_outputs()}
        for path in Path(self.build_lib).rglob("*"):
            if path.is_file() and str(path) not in wanted:
                path.unlink()


def _is_older(directory: Path, extensions: list[Extension], file: Path) -> bool:
    """Whether the C code of an extension is older than a file."""
    sources = [source for extension in extensions for source in extension.sources]
    translated = [Path(directory, source).with_suffix(".c") for source in sources]
    return any(path.stat().st_mtime < file.stat().st_mtime for path in translated if path.exists())


def _extensions() -> list[Extension]:
    """One for each `.pyx`, named after its place, and what they share."""
    flags = [*_FLAGS[_BUILD], "-Wall", "-Wno-unused-function"]
    options: dict[str, Any] = {
        "include_dirs": [str(_SOURCES / "millstream" / "system")],
        "depends": ["setup.py", *map(str, _SOURCES.rglob("*.h"))],
        "py_limited_api": _USE_LIMITED_API,
        "define_macros": [("Py_LIMITED_API", "0x030b0000")] if _USE_LIMITED_API else [],
        "extra_compile_args": flags,
        "extra_link_args": [flag for flag in flags if flag.startswith("-fsanitize")],
    }
    modules = [
        Extension(
            ".".join(path.relative_to(_SOURCES).with_suffix("").parts), [str(path)], **options
        )
        for path in sorted(_SOURCES.rglob("*.pyx"))
    ]
    return [Extension(_MEMORYVIEWS, [], **options), *modules]


def _ziglang() -> list[str]:
    """The compiler of the PyPI package ziglang; none if that is not installed."""
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        return []
    # Left to itself, it compiles for the processor at hand.
    return [str(Path(package.origin).with_name("zig")), "cc", "-mcpu=baseline"]


def _choose_compiler() -> None:
    """Set CC where the compiler that Python was built with is not on this machine."""
    built_with = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if "CC" in os.environ or shutil.which(built_with):
        return
    found = next(filter(shutil.which, ["cc", "gcc", "clang"]), None)
    if found is not None:
        os.environ["CC"] = found
    elif ziglang := _ziglang():
        os.environ["CC"] = " ".join(ziglang)


_choose_compiler()
setup(
    cmdclass={"build_ext": BuildExtensions, "build_py": BuildModules},
    ext_modules=_extensions(),
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if _USE_LIMITED_API else {},
)
