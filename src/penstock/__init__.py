"""Penstock feeds language-model training: text or token files in, exact, shuffled batches out.

    data = penstock.open("data/fineweb")
    loader = penstock.Loader(data.windows(2048), batch_size=32, seed=0)
    for batch in loader:
        loss = model(batch["input_ids"], batch["labels"])
        checkpoint["data"] = loader.state_dict()

Everything in a batch is a pure function of (dataset, view, order, position). `docs/design.md` has
the words and the layers. Names are imported when they are first used: `import penstock` is free.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock._version import __version__

if TYPE_CHECKING:
    from penstock import testing
    from penstock.converting import ConvertReport, convert
    from penstock.dataset import Dataset
    from penstock.errors import PenstockError
    from penstock.fetching import fetch
    from penstock.fetching.report import FetchReport
    from penstock.finishing import finish
    from penstock.load.loader import Loader, LoaderStats
    from penstock.opening import open
    from penstock.order import BlockShuffle, LengthBuckets, Order, make_order, sum_digests
    from penstock.pack.policy import PackReport
    from penstock.progress import Progress
    from penstock.text.live.loader import TextLoader
    from penstock.text.live.packing import Packing
    from penstock.text.live.stats import TextLoaderStats
    from penstock.text.repacking import RepackReport, repack
    from penstock.text.sources import Columns, Source
    from penstock.text.tokenize.job import tokenize
    from penstock.text.tokenize.report import TokenizeReport
    from penstock.text.tokenizers.loading import load_tokenizer
    from penstock.text.training import TrainingReport, train_tokenizer
    from penstock.views.packed import Documents, Packed
    from penstock.views.view import View
    from penstock.views.windows import Windows
    from penstock.write.writer import Writer

__all__ = [
    "BlockShuffle",
    "Columns",
    "ConvertReport",
    "Dataset",
    "Documents",
    "FetchReport",
    "LengthBuckets",
    "Loader",
    "LoaderStats",
    "Order",
    "PackReport",
    "Packed",
    "Packing",
    "PenstockError",
    "Progress",
    "RepackReport",
    "Source",
    "TextLoader",
    "TextLoaderStats",
    "TokenizeReport",
    "TrainingReport",
    "View",
    "Windows",
    "Writer",
    "__version__",
    "convert",
    "fetch",
    "finish",
    "load_tokenizer",
    "make_order",
    "open",
    "repack",
    "sum_digests",
    "testing",
    "tokenize",
    "train_tokenizer",
]

_HOMES = {
    "BlockShuffle": "order",
    "Columns": "text.sources",
    "ConvertReport": "converting",
    "Dataset": "dataset",
    "Documents": "views.packed",
    "FetchReport": "fetching.report",
    "LengthBuckets": "order",
    "Loader": "load.loader",
    "LoaderStats": "load.loader",
    "Order": "order",
    "PackReport": "pack.policy",
    "Packed": "views.packed",
    "Packing": "text.live.packing",
    "PenstockError": "errors",
    "Progress": "progress",
    "RepackReport": "text.repacking",
    "Source": "text.sources",
    "TextLoader": "text.live.loader",
    "TextLoaderStats": "text.live.stats",
    "TokenizeReport": "text.tokenize.report",
    "TrainingReport": "text.training",
    "View": "views.view",
    "Windows": "views.windows",
    "Writer": "write.writer",
    "convert": "converting",
    "fetch": "fetching",
    "finish": "finishing",
    "load_tokenizer": "text.tokenizers.loading",
    "make_order": "order",
    "open": "opening",
    "repack": "text.repacking",
    "sum_digests": "order",
    "tokenize": "text.tokenize.job",
    "train_tokenizer": "text.training",
}


def __getattr__(name: str) -> Any:
    if name == "testing":
        return import_module("penstock.testing")
    if name not in _HOMES:
        # With name and obj, Python says by itself what may be meant.
        module, message = import_module("penstock"), f"module 'penstock' has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=module)
    value = getattr(import_module(f"penstock.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
