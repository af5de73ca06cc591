"""`Case`: what a topic works with, and a digest of what it shows."""

import hashlib
import itertools
import json
import re

import numpy as np

from tests.oracle.draws import Draws


class Case:
    """One case: its choices (`draw`), the engine, an empty directory, and what was seen.

    `see` adds a result to the digest; `note` says something for whoever reads the case, such as the
    arguments of a call, and adds nothing. With `show`, both are also printed by it.
    """

    def __init__(self, topic, number, engine, directory, show=None):
        self.draw, self.engine, self.directory = Draws(f"{topic} {number}"), engine, directory
        self._hash, self._show, self._paths = (
            hashlib.blake2b(digest_size=6),
            show,
            itertools.count(),
        )

    def new_path(self):
        """A path in the directory that does not exist."""
        return self.directory / f"{next(self._paths):02}"

    def note(self, name, value):
        if self._show:
            self._show(f"# {name}: {re.sub(' at 0x[0-9a-f]+', '', str(value))}")

    def see(self, name, value):
        for part in _parts((name, value)):
            self._hash.update(part)
        if self._show:
            self._show(f"{name}: {_readable(value)}")

    def see_files(self, directory):
        """The names and contents of all files below a directory.

        Left out are reports and records of jobs, and what names the engine: checksums, and the
        format in a manifest.
        """
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            is_of_job = path.name.startswith(".") or path.name == "report.json"
            if path.is_dir() or is_of_job or path.suffix == ".checksums":
                continue
            if name.rpartition("/")[2] == f"{self.engine.__name__}.json":
                manifest = json.loads(path.read_bytes())
                self.see("manifest", {key: manifest[key] for key in manifest if key != "format"})
            elif path.suffix == ".json":
                self.see(name, json.loads(path.read_bytes()))
            else:
                self.see(name, path.read_bytes())

    def digest(self):
        return self._hash.hexdigest()


def _parts(value):
    """A value as bytes that tell it from every other value."""
    if hasattr(value, "numpy"):  # a tensor
        value = value.numpy()
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        dtype = value.dtype.descr if value.dtype.names else value.dtype.str
        yield f"array {dtype} {value.shape} ".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, dict):
        yield b"dict %d " % len(value)
        for key in sorted(value):
            yield from _parts(key)
            yield from _parts(value[key])
    elif isinstance(value, list | tuple):
        yield b"list %d " % len(value)
        for each in value:
            yield from _parts(each)
    elif isinstance(value, bytes | memoryview):
        yield b"bytes %d " % len(value)
        yield bytes(value)
    elif value is None or isinstance(value, bool | int | float | str):
        yield f"{type(value).__name__} {value!r} ".encode()
    else:
        raise TypeError(f"a case shows {type(value)}")


def _readable(value):
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)} {value.tolist()}"
    if isinstance(value, dict):
        return "".join(f"\n    {key}: {_readable(value[key])}" for key in sorted(value))
    if isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value):
        return "".join(f"\n  [{number}] {_readable(each)}" for number, each in enumerate(value))
    return repr(value)
