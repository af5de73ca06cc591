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
        self.draw = Draws(f"{topic} {number}")
        self.engine, self.directory, self._show = engine, directory, show
        self._hash, self._paths = hashlib.blake2b(digest_size=6), itertools.count()

    def new_path(self):
        """A path in the directory that does not exist."""
        return self.directory / f"{next(self._paths):02}"

    def note(self, name, value):
        if self._show:
            text = str(value).replace(str(self.directory), "")
            self._show(f"# {name}: {re.sub(' at 0x[0-9a-f]+', '', text)}")

    def see(self, name, value):
        for part in _parts((name, value)):
            self._hash.update(part)
        if self._show:
            self._show(f"{name}: {_readable(value)}")

    def see_files(self, directory):
        """The names and contents of all files below a directory.

        Left out are reports and records of jobs, and what names the engine: the format in manifests
        and checksums, and the checksums of both.
        """
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            is_of_job = path.name.startswith(".") or path.stem == "report"
            if path.is_dir() or is_of_job or path.name == f"{self.engine.__name__}.checksums":
                continue
            content = path.read_bytes().replace(bytes(self.directory), b"")
            if path.suffix == ".checksums":  # a line of JSON, the checksums, and that of it all
                line, _, rest = content.partition(b"\n")
                self.see(name, [_without_format(line), rest[:-8]])
            elif path.name == f"{self.engine.__name__}.json":
                self.see("manifest", _without_format(content))
            elif path.suffix == ".json":
                self.see(name, json.loads(content))
            else:
                self.see(name, content)

    def digest(self):
        return self._hash.hexdigest()


def _without_format(content):
    described = json.loads(content)
    return {key: described[key] for key in described if key != "format"}


def _parts(value):
    """A value as bytes that tell it from every other value."""
    if hasattr(value, "numpy"):
        yield b"tensor "
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
