"""Penstock feeds language-model training: text or token files in, exact, shuffled batches out.

    data = penstock.open("data/fineweb")
    loader = penstock.Loader(data.windows(2048), batch_size=32, seed=0)
    for batch in loader:
        loss = model(batch["input_ids"], batch["labels"])
        checkpoint["data"] = loader.state_dict()

Everything in a batch is a pure function of (dataset, view, order, position). `docs/design.md`
explains the terms and the layers.

Public are the names in `penstock.__all__`, `penstock.errors`, `penstock.testing` and the modules of
`penstock.compat`. Every other module is private and may change in any release, and so may methods
whose signatures mention types that are not exported.

`import penstock` imports nothing else; the first use of a name imports them all.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock._version import __version__ as __version__

if TYPE_CHECKING:
    from penstock._exports import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return __dir__()
        exports = None if name.startswith("__") else import_module("penstock._exports")
        if not hasattr(exports, name):
            # With name and obj, Python itself suggests the name that may be meant.
            message = f"module 'penstock' has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        value = globals()[name] = getattr(exports, name)
        return value

    def __dir__() -> list[str]:
        names = vars(import_module("penstock._exports"))
        return sorted(name for name in names if not name.startswith("_"))
