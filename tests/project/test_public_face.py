"""What `millstream` exports: all that users need, documented, typed, and nothing else."""

import ast
import inspect
import re
import subprocess
import sys
import typing

import pytest

import millstream
from tests.helpers import paths, public_face
from tests.helpers.public_face import INTERNAL, exported, functions_of

FOREIGN = {*sys.stdlib_module_names, "numpy", "torch"}


def classes_in(annotation):
    """All classes that an annotation mentions."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return
    if isinstance(annotation, type) and not arguments:
        yield annotation
    for argument in arguments if not isinstance(annotation, list) else annotation:
        yield from classes_in(argument)


def annotated():
    """From every public function to the classes that its annotations mention."""
    names = exported() | {"Stateful": millstream.testing.Stateful}
    for function in {each for value in names.values() for each in functions_of(value)}:
        name = function.__qualname__
        try:
            hints = typing.get_type_hints(function, localns=names)
        except NameError as error:  # imported for type checkers only, and not exported
            yield name, {error.name}
            continue
        used = {each for hint in hints.values() for each in classes_in(hint)}
        yield (
            name,
            {
                each.__qualname__
                for each in used
                if each.__module__.partition(".")[0] not in FOREIGN and each not in names.values()
            },
        )


def test_all_names_are_sorted_and_importable():
    assert millstream.__all__ == sorted(millstream.__all__)
    assert dir(millstream) == millstream.__all__
    names = {}
    exec("from millstream import *", names)
    assert set(names) - {"__builtins__"} == set(millstream.__all__)
    with pytest.raises(AttributeError, match="module 'millstream' has no attribute 'opne'"):
        millstream.opne  # noqa: B018


def test_no_recorded_name_argument_or_command_is_lost():
    """Only rewrite the record if an issue names the lines that differ: programs rely on each."""
    recorded = public_face.FILE.read_text().splitlines()
    assert len(recorded) > 200
    assert sorted(set(recorded) - set(public_face.lines())) == []


def test_every_name_and_command_is_recorded():
    recorded = public_face.FILE.read_text().splitlines()
    found = [*public_face.names(), *public_face.commands()]
    assert [line for line in found if line not in recorded] == [], (
        "run python -m tests.helpers.public_face"
    )


def test_type_checkers_see_the_same_names():
    tree = ast.parse((paths.ROOT / "src" / "millstream" / "__init__.pyi").read_text())
    imported = [alias for node in tree.body[1:] for alias in node.names]
    assert all(alias.name == alias.asname for alias in imported)
    assert sorted(alias.name for alias in imported) == millstream.__all__


def test_every_exported_function_and_class_is_documented():
    functions = {each for value in exported().values() for each in functions_of(value)}
    classes = {value for value in exported().values() if inspect.isclass(value)}
    members = {each for each in functions | classes if each.__name__ != "__init__"}
    undocumented = sorted(each.__qualname__ for each in members if not inspect.getdoc(each))
    assert undocumented == []


def test_all_errors_are_exported():
    errors = {name for name, value in vars(millstream.errors).items() if inspect.isclass(value)}
    assert errors <= set(millstream.__all__)


def test_public_signatures_mention_only_public_types():
    private = {name: types for name, types in annotated() if types and name not in INTERNAL}
    assert private == {}


def test_internal_members_are_listed_only_if_they_mention_private_types():
    assert sorted(INTERNAL - {name for name, types in annotated() if types}) == []


def test_docs_import_what_is_exported_from_millstream():
    pages = [paths.ROOT / "README.md", *(paths.ROOT / "docs").glob("*.md")]
    pages += (paths.ROOT / "examples").glob("*.py")
    assert len(pages) > 5
    deep = re.compile(r"from millstream\.([\w.]+) import (\([^)]*\)|[^\n]*)")
    wrong = [
        (page.name, module, name)
        for page in pages
        for module, names in deep.findall(page.read_text())
        for name in re.findall(r"\w+", names)
        if name in millstream.__all__ and not module.startswith(("compat", "testing", "errors"))
    ]
    assert wrong == []


@pytest.mark.process
def test_importing_millstream_imports_nothing_else():
    program = (
        "import sys, millstream\n"
        "assert not {'numpy', 'torch', 'rich'} & set(sys.modules)\n"
        "import millstream.load.loader, millstream.dataset, millstream.write.writer\n"
        "assert not {'torch', 'rich'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.process
def test_torch_batches_without_torch_name_what_to_install(data, tmp_path):
    program = (
        "import importlib.util, sys, millstream\n"
        "find_spec = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'torch' else find_spec(name)\n"
        "millstream.Loader(millstream.open(sys.argv[1]).windows(5), 4)\n"
    )
    directory = str(data.shards[0].directory)
    result = subprocess.run(
        [sys.executable, "-c", program, directory], capture_output=True, text=True, check=False
    )
    assert "pip install 'millstream[torch]', or pass output='numpy'" in result.stderr


@pytest.mark.process
def test_numpy_batches_need_no_torch(data):
    program = (
        "import sys, millstream\n"
        "sys.modules['torch'] = None  # any import of it fails\n"
        "loader = millstream.Loader(millstream.open(sys.argv[1]).windows(5), 4, output='numpy')\n"
        "print(sum(len(batch['input_ids']) for batch in loader))\n"
    )
    directory = str(data.shards[0].directory)
    result = subprocess.run(
        [sys.executable, "-c", program, directory], check=True, capture_output=True, text=True
    )
    assert result.stdout == "200\n"
