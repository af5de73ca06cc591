"""Names with a leading underscore stay in their package, whether used through `self` or not."""

import ast
import re
from collections import defaultdict

import pytest

from tests.helpers.source_modules import MODULES

OF_OTHERS = {
    "_ActionsContainer": "argparse's type of what takes options",
    "_custom_objects": "Accelerate's: what is registered for checkpoints",
    "_attn_implementation": "transformers': the attention of a model",
    "_get_default_store": "torch.distributed's; there is no public way to it",
    "_getframe": "sys's, documented",
    "_initial_epoch": "Keras': what its BackupAndRestore sets; there is no public way",
    "_make": "a named tuple's, documented",
    "_mergeable_ranks": "tiktoken's: what an encoding is made of",
    "_option_string_actions": "argparse's: the options of a parser",
    "_pat_str": "tiktoken's",
    "_replace": "a named tuple's, documented",
    "_special_tokens": "tiktoken's",
}


def used_and_defined(path):
    """The private attributes that a file uses, and all private names that it defines."""
    text = path.read_text()
    if path.suffix in (".pyx", ".pxd"):
        words = re.findall(r"(?<!\w)(self\.|\.)?(_(?!_)\w+)", text)
        used = {word for before, word in words if before}
        return used, {word for before, word in words if before != "."}
    used, defined = set(), set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                defined.add(node.name)
            case ast.Constant(value=str(word)):  # of setattr
                defined.add(word)
            case ast.Name(ctx=ast.Store()):
                defined.add(node.id)
            case ast.Attribute(ctx=ast.Store(), value=ast.Name(id="self")):
                defined.add(node.attr)
            case ast.Attribute() if re.match("_[^_]", node.attr):
                used.add(node.attr)
    return used, defined


def defined_by_package():
    found = defaultdict(set)
    for paths in MODULES.values():
        for path in paths:
            found[path.parent] |= used_and_defined(path)[1]
    return found


DEFINED = defined_by_package()


@pytest.mark.parametrize("name", MODULES)
def test_a_package_uses_no_private_name_of_another(name):
    for path in MODULES[name]:
        assert not used_and_defined(path)[0] - DEFINED[path.parent] - set(OF_OTHERS)


def test_a_private_name_of_another_package_is_found(tmp_path):
    path = tmp_path / "loader.py"
    path.write_text("class Mine(Loader):\n    def go(self):\n        return self._walk")
    assert used_and_defined(path) == ({"_walk"}, {"Mine", "go"})
