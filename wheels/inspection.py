"""What a wheel must be, as far as its bytes tell: contents, size, and what its modules ask for."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

_SOURCES = Path(__file__).parent.parent / "src"
_SHIPPED = {".py", ".pyi", ".typed", ".classes"}
# Half as much again as there is: 1.0 MB, 2.3 MB unpacked.
_MAX_BYTES, _MAX_UNPACKED_BYTES = 1_500_000, 3_500_000
_GLIBC = (2, 17)
# Parts of glibc; others are not on every machine.
_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0"}
_LIBRARIES |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
_ELF_NAMES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}


class UnfitWheelError(Exception):
    """A wheel that must not be published, with all that is wrong with it."""


def inspect_wheel(wheel: Path, machine: str) -> str:
    """Return a line about a wheel, or raise with everything that is wrong with it."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    size, unpacked = wheel.stat().st_size, sum(map(len, files.values()))
    modules = {name: content for name, content in files.items() if name.endswith(".so")}
    problems = [*_contents(files)]
    if size > _MAX_BYTES or unpacked > _MAX_UNPACKED_BYTES:
        problems.append(
            f"{size:,} bytes, {unpacked:,} unpacked; at most {_MAX_BYTES:,} and "
            f"{_MAX_UNPACKED_BYTES:,} are meant to be"
        )
    for name, content in modules.items():
        elf = ELFFile(io.BytesIO(content))
        problems += [f"{name}: {problem}" for problem in _module(elf, machine)]
    if problems:
        raise UnfitWheelError("\n  ".join([wheel.name, *problems]))
    return f"{wheel.name}: {len(modules)} modules, {size:,} bytes, {unpacked:,} unpacked"


def _contents(files: dict[str, bytes]) -> Iterator[str]:
    """Every module, stub and table of the sources, and nothing else."""
    package = [path for path in (_SOURCES / "millstream").rglob("*") if path.is_file()]
    shipped = {path for path in package if path.suffix in _SHIPPED}
    compiled = {path.with_suffix(".abi3.so") for path in package if path.suffix == ".pyx"}
    compiled.add(_SOURCES / "millstream" / "_memoryviews.abi3.so")
    wanted = {str(path.relative_to(_SOURCES)) for path in shipped | compiled}
    held = {name for name in files if not name.split("/")[0].endswith(".dist-info")}
    yield from (f"lacks {name}" for name in sorted(wanted - held))
    yield from (f"holds {name}" for name in sorted(held - wanted))


def _module(elf: ELFFile, machine: str) -> Iterator[str]:
    """What is wrong with an extension module."""
    if elf["e_machine"] != _ELF_NAMES[machine]:
        yield f"is for {elf['e_machine']}"
    for section in elf.iter_sections():
        if section.name == ".symtab" or section.name.startswith(".debug"):
            yield f"is not stripped: it has {section.name}"
        elif isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                library = getattr(tag, "needed", None)
                if library is not None and library not in _LIBRARIES:
                    yield f"needs {library}"
                if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    yield "names directories of the machine that built it"
        elif isinstance(section, GNUVerNeedSection):
            for needed, versions in section.iter_versions():
                for version in versions:
                    if not _is_allowed(version.name):
                        yield f"needs {version.name} of {needed.name}"
    yield from (f"needs {name}, which no library promises" for name in _loose_symbols(elf))


def _is_allowed(version: str) -> bool:
    """Whether the glibc that the tag names has a version of symbols, such as GLIBC_2.14."""
    name, _, number = version.partition("_")
    return name == "GLIBC" and tuple(map(int, number.split("."))) <= _GLIBC


def _loose_symbols(elf: ELFFile) -> Iterator[str]:
    """Symbols that neither Python has nor a library's version.

    ziglang links a function that glibc 2.17 lacks in this way; loading the module then fails there.
    """
    symbols, versions = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
    assert isinstance(symbols, SymbolTableSection)
    assert isinstance(versions, GNUVerSymSection)
    for index, symbol in enumerate(symbols.iter_symbols()):
        is_needed = symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
        has_version = versions.get_symbol(index)["ndx"] not in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
        if is_needed and not has_version and not symbol.name.startswith(("Py", "_Py")):
            yield symbol.name
