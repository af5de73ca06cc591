"""pyarrow, which is an optional dependency."""

import importlib
from typing import Any

from millstream.errors import UsageError


def pyarrow(module: str = "pyarrow") -> Any:
    """Import a module of pyarrow; the error says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            "Arrow, Parquet and some compressed files need pyarrow: "
            "pip install 'millstream[parquet]'"
        ) from None
