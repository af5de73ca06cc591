"""Test folders mirror the source, and tests share code only through `tests/helpers`."""

import re

from tests.helpers.paths import ROOT

TESTS = ROOT / "tests"
SOURCE = ROOT / "src" / "millstream"
# Folders that belong to no layer.
OF_NO_LAYER = {"attacks", "golden", "helpers", "oracle", "project"}
# At the top of a module, in a function, and in the programs that tests run.
IMPORT_OF_A_TEST = re.compile(
    r"^\s*(?:from|import)\s+(?:\.|tests\b(?!\.(?:helpers|oracle)\b)).*", re.M
)


def test_no_test_module_imports_another():
    found = [
        f"{module.relative_to(ROOT)}: {line.strip()}"
        for module in TESTS.rglob("*.py")
        for line in IMPORT_OF_A_TEST.findall(module.read_text())
    ]
    assert found == [], "what several tests use belongs to tests/helpers"


def test_every_folder_of_tests_is_a_folder_of_the_source():
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    layers = {folder for folder in folders if folder.parts and folder.parts[0] not in OF_NO_LAYER}
    assert len(layers) > 20
    assert [str(layer) for layer in sorted(layers) if not (SOURCE / layer).is_dir()] == []
