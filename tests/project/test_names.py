"""One meaning per word: no two classes, structs, enums or type aliases share a name.

Leading underscores do not make another name. A .pyx, its .pxd and its .pyi are one module.
"""

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from tests.helpers.paths import ROOT
from tests.helpers.source_modules import MODULES

KNOWN = {"Bytes", "Shown", "Stored"}
"""names that several modules define today; entries are only ever removed"""

CAMEL_CASE = re.compile(r"_*[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")


def python_names(text):
    """Names of the classes, and of the CamelCase aliases at the top of a module."""
    tree = ast.parse(text)
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for node in tree.body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from filter(CAMEL_CASE.fullmatch, names)


def compiled_names(text):
    kinds = r"(?:ctypedef\s+|cdef\s+|cpdef\s+|packed\s+)*(?:class|struct|union|enum|fused)"
    yield from re.findall(rf"^[ \t]*{kinds}\s+(\w+)", text, re.M)
    plain = re.findall(r"^[ \t]*ctypedef\s+[^\n(]*?(\w+)\s*(?:#.*)?$", text, re.M)
    pointers = re.findall(r"^[ \t]*ctypedef\s[^\n(]*\(\s*\*\s*(\w+)", text, re.M)
    assigned = re.findall(r"^(\w+)\s*=[^=]", text, re.M)
    yield from filter(CAMEL_CASE.fullmatch, [*plain, *pointers, *assigned])


def homes_of_names(modules):
    """From each name to the modules that define it."""
    homes = defaultdict(set)
    for module, files in modules.items():
        for path in files:
            find = compiled_names if path.suffix in (".pyx", ".pxd") else python_names
            for name in find(path.read_text()):
                homes[name.lstrip("_")].add(module)
    return homes


SHARED = {name: sorted(homes) for name, homes in homes_of_names(MODULES).items() if len(homes) > 1}


def test_no_name_is_defined_in_two_modules():
    assert {name: homes for name, homes in SHARED.items() if name not in KNOWN} == {}


def test_the_known_shared_names_still_are():
    assert sorted(KNOWN - set(SHARED)) == []


def test_every_kind_of_definition_is_seen():
    python = (
        "class _A1b: ...\nBbb = int | str\nCcc: TypeAlias = int\nLOUD = 1\n"
        "def f():\n    local = Ddd = 1\n"
    )
    compiled = (
        "cdef struct Eee:\n    int x\ncdef enum _Fff:\n    ONE\nctypedef struct Ggg:\n    int y\n"
        "cdef class Hhh:\n    pass\nctypedef int (*Iii)(int) noexcept nogil\nctypedef fused Jjj:\n"
        "ctypedef int64_t Kkk  # why\nLll = namedtuple('Lll', 'a')\ncdef Eee instance = Eee()\n"
    )
    assert set(python_names(python)) == {"_A1b", "Bbb", "Ccc"}
    assert set(compiled_names(compiled)) == {
        *("Eee", "_Fff", "Ggg", "Hhh", "Iii", "Jjj", "Kkk", "Lll")
    }


def test_the_former_name_is_left_only_in_the_changelog():
    former = b"pen" + b"stock"
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True)
    names = [name for name in listed.stdout.split(b"\0") if Path(ROOT, name.decode()).is_file()]
    current = [name for name in names if not name.startswith(b"benchmarks/results/")]
    contents = {name: Path(ROOT, name.decode()).read_bytes() for name in current}
    counts = {name: (name + text).lower().count(former) for name, text in contents.items()}
    assert {name: count for name, count in counts.items() if count} == {b"CHANGELOG.md": 1}
