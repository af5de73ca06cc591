"""How kernels are compiled: outside the GIL, when their module is imported, cached by content.

All nogil code lives in files named `kernels.py`, one per layer. Its entry points are decorated
with `@kernel(signature)`, what they call with `@helper`.

Numba's own cache looks only at the file of the function that it compiles: a kernel that calls one
of another file, or uses its constants, would go on running that file's old code. So the cache
directory here is named after a hash of all kernel files together, and of all that they import from
this package. It also needs no writable installation.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import xxhash

config: Any = numba.config

Function = Callable[..., Any]

# Without Numba's reference counts, two atomic operations at every use of an array, a batch is read
# a tenth faster; in exchange kernels cannot allocate, which they must not do anyway.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def helper(function: Function) -> Function:
    """Compile `function` into the kernels that call it."""
    compiled: Function = numba.njit(**_OPTIONS)(function)
    return compiled


def inlined(function: Function) -> Function:
    """Like `helper`, but never a call: tables of files and layouts make long lists of arguments.

    For what runs once for every piece of a row; used everywhere, it doubles the time to compile.
    """
    compiled: Function = numba.njit(**_OPTIONS, forceinline=True)(function)
    return compiled


def kernel(*signature: Any) -> Callable[[Function], Function]:
    """Compile an entry point now, for one signature, or take it from the cache."""

    def compile_now(function: Function) -> Function:
        if _CACHE is None:
            return numba.njit(signature, **_OPTIONS)(function)
        saved, config.CACHE_DIR = config.CACHE_DIR, str(_CACHE)
        try:
            return numba.njit(signature, cache=True, **_OPTIONS)(function)
        finally:
            config.CACHE_DIR = saved

    return compile_now


def kernel_sources() -> list[Path]:
    """All kernel files, and the files that they import from."""
    package = Path(__file__).parent
    kernels = list(package.rglob("kernels.py"))
    imported = re.findall(
        r"^from penstock\.([\w.]+) import", "".join(path.read_text() for path in kernels if path.exists()), re.M
    )
    names = {package / f"{name.replace('.', '/')}.py" for name in imported}
    return sorted({*kernels, *names})


def _cache_directory() -> Path | None:
    """Where compiled kernels are kept, or None where nothing can be written."""
    content = xxhash.xxh3_64_hexdigest(b"".join(path.read_bytes() for path in kernel_sources()))
    root = config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        directory = Path(root).expanduser() / "penstock" / f"kernels-{content}"
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return directory if os.access(directory, os.W_OK) else None


_CACHE = _cache_directory()
