"""The README runs as written: its Python, then its commands."""

import re
import shlex
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.cli import main
from tests.helpers import paths

README = (paths.ROOT / "README.md").read_text()
LEFT_OUT = {"site-packages", "test", "tests", "idle_test"}


@pytest.mark.slow
def test_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = {}
    exec(compile(program, "README.md", "exec"), names)
    assert names["inputs"].shape == (8, 256)
    assert names["checkpoint"]["position"] == 99  # of 99 rows, the last three are dropped
    library = Path(sysconfig.get_path("stdlib"))
    # 10 MB on every Python; distributions leave the library's own tests out.
    files = [path for path in library.rglob("*.py") if not LEFT_OUT.intersection(path.parts)]
    Path("corpus").mkdir()
    for number in range(3):
        texts = [path.read_bytes().decode(errors="replace") for path in files[number::3]]
        pq.write_table(pa.table({"text": texts}), f"corpus/{number}.parquet")
    commands = [line for line in README.splitlines() if line.startswith("millstream ")]
    assert len(commands) == 9
    for command in commands:
        assert main(shlex.split(command, comments=True)[1:]) == 0, command
