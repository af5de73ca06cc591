"""Millstream feeds language-model training: text or token files in, exact, shuffled batches out.

    data = millstream.open("data/fineweb")
    loader = millstream.Loader(data.windows(2048), batch_size=32, seed=0)
    for batch in loader:
        loss = model(batch["input_ids"], batch["labels"])
        checkpoint["data"] = loader.state_dict()

Everything in a batch is a pure function of (dataset, view, order, position). `docs/design.md`
explains the terms and the layers.

Public are the names in `millstream.__all__`, `millstream.errors`, `millstream.testing` and the
modules of `millstream.compat` and `millstream.integrations`. Every other module is private and may
change in any release, and so may methods whose signatures mention types that are not exported.

`__init__.pyi` lists the public names. Each is imported when it is first used: `import millstream`
is free.
"""

import re
import sys
from functools import cache
from importlib import import_module
from typing import Any

_EXPORT = re.compile(r"^from ([\w.]+) import (\w+) as \2$", re.MULTILINE)


@cache
def _homes() -> dict[str, str]:
    """The module of each public name."""
    with open(f"{__file__}i", encoding="utf-8") as stub:  # noqa: PTH123 (pathlib takes 3 ms)
        return {name: module for module, name in _EXPORT.findall(stub.read())}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    home = None if name.startswith("__") and name != "__version__" else _homes().get(name)
    if home is None:
        # With name and obj, Python itself suggests the name that may be meant.
        message = f"module 'millstream' has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
    if home == __name__:
        return import_module(f"{home}.{name}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(_homes())
