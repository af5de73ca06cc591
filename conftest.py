"""What doctests may use: `data` (0 to 99, in shards of 30), `tmp`, `np` and `millstream`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Modules of `integrations` are named after the framework that they import, except these.
_FRAMEWORKS = {
    "checks": "millstream",
    "host_arrays": "millstream",
    "training_backup": "millstream",
    "keras_batches": "keras",
    "passed_on": "torch",
    "process_agreement": "jax",
}
_ADAPTERS = Path(__file__).parent.glob("src/millstream/integrations/[!_]*.py")
collect_ignore = [
    str(path) for path in _ADAPTERS if find_spec(_FRAMEWORKS.get(path.stem, path.stem)) is None
]


@pytest.fixture(autouse=True)
def _doctest_world(doctest_namespace: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        import numpy as np

        import millstream

        tmp: Path = request.getfixturevalue("tmp_path")
        with millstream.Writer(tmp / "data", vocab_size=50_257, shard_bytes=60) as writer:
            for start in range(0, 100, 10):
                writer.append(range(start, start + 10))
        request.getfixturevalue("monkeypatch").chdir(tmp)
        data = millstream.open(tmp / "data")
        doctest_namespace.update(data=data, tmp=tmp, millstream=millstream, np=np)
