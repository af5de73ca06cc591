"""The modules of the package, by name."""

from tests.helpers.paths import ROOT

SUFFIXES = (".py", ".pyi", ".pyx", ".pxd")


def modules_of(directory):
    """From the name of each module to its files: a .py, or a .pyx with its .pxd and .pyi."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.suffix in SUFFIXES:
            parts = path.relative_to(directory).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.setdefault(name, []).append(path)
    return found


MODULES = modules_of(ROOT / "src")
