"""Records the public names with their arguments, and the commands with their options.

`python -m tests.helpers.public_face` writes them to `tests/golden/public_face.txt`. Run it only for
a change whose issue names the lines that differ: users' programs and scripts rely on every line.
Members of classes are recorded if the documentation mentions them.
"""

import argparse
import inspect
import re
import sys
import typing
from importlib import import_module

import millstream
from millstream import cli
from tests.helpers import paths

FILE = paths.GOLDEN / "public_face.txt"
PAGES = (paths.ROOT / "README.md", *sorted((paths.ROOT / "docs").glob("*.md")))
DOCS = "".join(page.read_text() for page in PAGES)
INTERNAL = {
    *("Documents.__init__", "Packed.__init__", "View.__init__", "Windows.__init__"),
    *("Objects.__init__", "Objects.coding", "Objects.for_kernels", "Objects.layout"),
    *("Objects.recipe", "View.coding"),
    *("Order.__init__", "Shard.__init__", "MixtureOrder.__init__"),
    *("Documents.recipe", "Packed.recipe", "PlannedView.rows", "SelectedView.selected_documents"),
    *(
        "Source.as_chats",
        "View.layout",
        "Packing.layout",
        "RecordStream.reader",
        "Order.new_state",
        "MixtureOrder.new_state",
        "Mixture.layout",
        "Mixture.changes",
        "Parallel.row_slice",
        "Loader.new_step_ranges",
    ),
    *("View.for_kernels", "Windows.for_kernels", "PlannedView.for_kernels"),
    *("Source.blocks", "Source.read", "Source.slices", "TokenizeReport.of", "TextLoader.lanes"),
    *("Source.announce", "Source.fetching_ahead"),
}
"""members of exported classes that serve other modules of ours, not users"""


def exported():
    """Every exported name with its value."""
    return {name: getattr(millstream, name) for name in millstream.__all__}


def functions_of(value):
    """The functions behind an exported name."""
    if inspect.ismodule(value):
        functions = inspect.getmembers(value, inspect.isfunction)
        yield from (f for inner, f in functions if not inner.startswith("_"))
    if inspect.isfunction(value):
        yield value
    if not inspect.isclass(value) or issubclass(value, BaseException):
        return
    for member in (each for each in dir(value) if not each.startswith("_") or each == "__init__"):
        found = inspect.getattr_static(value, member)
        for attribute in ("fget", "func", "__func__"):  # property, cached_property, classmethod
            found = getattr(found, attribute, found)
        if inspect.isfunction(found) and found.__module__.startswith("millstream"):
            yield found


def parameters(function):
    """The parameters of a call with their defaults, without their types."""
    signature = inspect.signature(function)
    shown = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    shown = [each for each in shown if each.name != "self"]
    return str(signature.replace(parameters=shown, return_annotation=signature.empty))


def names():
    """A line for every exported name, with its parameters or the words that it stands for."""
    for name, value in exported().items():
        is_error = inspect.isclass(value) and issubclass(value, BaseException)
        is_made_by_users = inspect.isclass(value) and f"{name}.__init__" not in INTERNAL
        is_call = inspect.isroutine(value) or (is_made_by_users and not is_error)
        is_literal = typing.get_origin(value) is typing.Literal
        words = f" = {', '.join(typing.get_args(value))}" if is_literal else ""
        yield f"millstream.{name}{parameters(value) if is_call else words}"


def members_of_class(name, value):
    """A line for every public member of a class, except for its constructor's arguments."""
    arguments = inspect.signature(value.__init__).parameters
    for member in sorted(set(dir(value)) - set(arguments)):
        owner = next((each for each in value.__mro__ if member in vars(each)), value)
        ours = owner.__module__.startswith("millstream")
        if member.startswith("_") or not ours or f"{owner.__name__}.{member}" in INTERNAL:
            continue
        found = getattr(value, member)
        is_call = callable(found) and inspect.isroutine(found)
        yield f"millstream.{name}.{member}{parameters(found) if is_call else ''}"


def members():
    """A line for every public member of the exported classes and modules."""
    for name, value in exported().items():
        if inspect.isclass(value):
            yield from members_of_class(name, value)
        elif inspect.ismodule(value):
            for each in functions_of(value):
                yield f"millstream.{name}.{each.__name__}{parameters(each)}"


def arguments_of(parser, words):
    """A line for a command with its arguments and their values, and one for each command below."""
    arguments, options, below = [], [], {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = action.choices
        elif action.dest != "help":
            values = "=" + "|".join(map(str, action.choices)) if action.choices else ""
            options += [f"{option}{values}" for option in action.option_strings]
            arguments += [] if action.option_strings else [f"{action.dest.upper()}{values}"]
    yield " ".join([words, *arguments, *sorted(options)])
    for name, inner in below.items():
        yield from arguments_of(inner, f"{words} {name}")


def commands():
    """A line for every command of `millstream`."""
    for name in sorted(cli._COMMANDS):
        parser = argparse.ArgumentParser()
        import_module(f"millstream.cli.{name.replace('-', '_')}").add_arguments(parser)
        yield from arguments_of(parser, f"millstream {name}")


def is_documented(line):
    """Whether a page of the documentation mentions the member of a class that a line shows."""
    _, name, member, *_ = re.split(r"[.(]", line)
    if inspect.ismodule(getattr(millstream, name)):
        return True
    return re.search(rf"\.{member}\b|`{member}[`(]", DOCS) is not None


def lines():
    """Every line that may be recorded."""
    return [*names(), *members(), *commands()]


def render():
    """The content of the file."""
    calls = sorted([*names(), *filter(is_documented, members())])
    return "".join(f"{line}\n" for line in [*calls, *commands()])


if __name__ == "__main__":
    FILE.write_text(render())
    sys.stdout.write(f"wrote {FILE.relative_to(paths.ROOT)}\n")
