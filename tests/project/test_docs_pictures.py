"""Pictures in the docs are what the code beside them draws."""

import re

from millstream.mixing import mix
from tests.helpers import paths
from tests.helpers.datasets import write_dataset


def test_the_picture_of_shares_is_current(tmp_path):
    page = (paths.ROOT / "docs" / "mixtures.md").read_text()
    drawn = re.search(r'>>> later = .*?plot\("shares.svg".*?\)\n', page, re.S)
    data = write_dataset(tmp_path / "data", range(100), cuts=range(10, 100, 10))
    web, code, math = data.windows(8), data.packed(8), data.windows(8)
    sources = {"web": (web, 0.7), "code": (code, 0.2), "math": (math, 0.1)}
    program = drawn[0].replace(">>> ", "").replace('"shares.svg"', "path")
    exec(program, {"mixture": mix(sources), "path": tmp_path / "shares.svg"})
    assert (tmp_path / "shares.svg").read_text() == (paths.ROOT / "docs/shares.svg").read_text()
