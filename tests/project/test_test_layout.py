"""Test folders mirror the source, and tests share code only through `tests/helpers`."""

import ast

from tests.helpers.paths import ROOT

TESTS = ROOT / "tests"
SOURCE = ROOT / "src" / "penstock"
# Folders that belong to no layer.
OF_NO_LAYER = {"attacks", "golden", "helpers", "project"}


def imports_of(module):
    """The full names that a module imports, at its top or later."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_test_module_imports_another():
    found = [
        f"{module.relative_to(ROOT)} imports {name}"
        for module in TESTS.rglob("*.py")
        for name in imports_of(module)
        if name.startswith((".", "tests.")) and not name.startswith("tests.helpers.")
    ]
    assert found == [], "what several tests use belongs to tests/helpers"


def test_every_folder_of_tests_is_a_folder_of_the_source():
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    layers = {folder for folder in folders if folder.parts and folder.parts[0] not in OF_NO_LAYER}
    assert len(layers) > 20
    assert [str(layer) for layer in sorted(layers) if not (SOURCE / layer).is_dir()] == []
