"""Modules import only from the layers below theirs, as `docs/design.md` lists them.

Every import counts: at the top of a module, inside a function, under TYPE_CHECKING, in a stub, and
every `cimport`.
"""

import ast
import functools
import re

import pytest

from tests.helpers import paths
from tests.helpers.source_modules import MODULES, modules_of


def imports_of(path, name):
    """The (module, names) pairs of all imports in a file."""
    if path.suffix in (".pyx", ".pxd"):
        return compiled_imports(path.read_text())
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    return python_imports(path.read_text(), package)


def python_imports(text, package):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            module = ".".join([*above, *filter(None, [node.module])]) if node.level else node.module
            yield module, [alias.name for alias in node.names]


def compiled_imports(text):
    """Cython has no parser to lend, but its imports are lines, or end at a parenthesis."""
    pattern = r"^[ \t]*from[ \t]+([\w.]+)[ \t]+c?import[ \t]+(\([^)]*\)|[^\n]*)"
    for module, names in re.findall(pattern, text, re.M):
        yield module, re.findall(r"\w+", re.sub(r"#.*|\bas\s+\w+", "", names))
    for modules in re.findall(r"^[ \t]*c?import[ \t]+([^\n#]+)", text, re.M):
        yield from ((module.split()[0], ()) for module in modules.split(","))


def imported_modules(name, modules=MODULES):
    """The modules of ours that a module imports."""
    for path in modules[name]:
        for module, names in imports_of(path, name):
            inner = {f"{module}.{each}" for each in names} & set(modules)
            is_whole = len(inner) < len(names) or not names
            yield from (
                each for each in {*inner, *([module] * is_whole)} - {name} if each in modules
            )


def layers():
    """The lines of design.md, from what imports nothing to what nothing imports."""
    design = (paths.ROOT / "docs" / "design.md").read_text()
    block = re.search(r"^## Layers\n.*?^```text\n(.*?)^```", design, re.M | re.S)
    assert block, "docs/design.md has no fenced block under the heading Layers"
    return [re.findall(r"[\w.]+", line) for line in block[1].splitlines()]


LAYERS = {entry: line for line, entries in enumerate(layers()) for entry in entries}


def entry_of(module):
    """The entry of the list that a module belongs to: its own, or the nearest package's."""
    inner = module.removeprefix("millstream").removeprefix(".") or "__init__"
    while inner and inner not in LAYERS:
        inner = inner.rpartition(".")[0]
    return inner or None


def is_allowed(module, imported):
    own, other = entry_of(module), entry_of(imported)
    return own == other or LAYERS[other] < LAYERS[own]


@functools.cache
def all_imports():
    return {(name, each) for name in MODULES for each in imported_modules(name)}


@pytest.mark.slow
def test_every_module_that_imports_or_is_imported_has_a_layer():
    used = {module for pair in all_imports() for module in pair}
    assert [module for module in sorted(used) if entry_of(module) is None] == []


def test_every_layer_is_a_module_or_a_package_and_is_listed_once():
    listed = [entry for line in layers() for entry in line]
    assert sorted(listed) == sorted(set(listed))
    names = {"millstream" if entry == "__init__" else f"millstream.{entry}" for entry in listed}
    assert names - set(MODULES) == set()


def test_modules_import_only_from_the_layers_below_theirs():
    wrong = {pair for pair in all_imports() if not is_allowed(*pair)}
    assert sorted(wrong) == []


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".py", "import millstream.low.one"),
        (".py", "from millstream.low import one"),
        (".py", "from millstream.low.one import thing as other"),
        (".py", "from ..low.one import thing"),
        (".py", "def f():\n    from millstream.low.one import thing"),
        (".py", "if TYPE_CHECKING:\n    from millstream.low.one import Thing"),
        (".pyi", "from millstream.low.one import Thing"),
        (".pyx", "cimport millstream.low.one as other"),
        (".pyx", "import numpy, millstream.low.one"),
        (".pyx", "def f():\n    from millstream.low.one import thing  # lazily"),
        (".pxd", "from millstream.low.one cimport (\n    thing,\n    other,\n)"),
        (".pxd", "from millstream.low cimport one"),
    ],
)
def test_every_way_of_importing_is_seen(suffix, text, tmp_path):
    for name in ("low/one.py", f"high/two{suffix}"):
        (tmp_path / "millstream" / name).parent.mkdir(parents=True)
        (tmp_path / "millstream" / name).touch()
    (tmp_path / "millstream" / "high" / f"two{suffix}").write_text(text)
    found = list(imported_modules("millstream.high.two", modules_of(tmp_path)))
    assert found == ["millstream.low.one"]
