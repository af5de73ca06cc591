"""`millstream audit`, `inspect` and `bench` of mixtures in files."""

import json
import re

import numpy as np
import pytest

from millstream.cli import main
from tests.helpers.datasets import write_dataset

MIXTURE = """
seed = 1
seq_len = 16
when_exhausted = "redistribute"

[sources.web]
data = "web"
weight = 0.7

[sources.code]
data = "code"
view = "packed"
weight = 0.3
max_epochs = 1.5

[[changes]]
at = 30
over = 10
weights = { web = 0.5, code = 0.5 }
"""


@pytest.fixture
def mixture(tmp_path):
    write_dataset(tmp_path / "web", np.arange(1000), cuts=range(9, 1000, 17))
    write_dataset(tmp_path / "code", np.arange(1000, 1400), cuts=range(50, 400, 50))
    path = tmp_path / "mixture.toml"
    path.write_text(MIXTURE)
    return path


def output_of(capsys, *arguments):
    status = main([str(each) for each in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_audit_proves_the_shares_of_a_mixture(mixture, capsys):
    status, out, _ = output_of(
        capsys, "audit", mixture, "--batch-size", 4, "--ranks", 3, "--change", "2:ranks=2"
    )
    assert status == 0
    assert "order       mixture-v1 of 2 sources, 1 change, seed 1\n" in out
    assert re.search(r"^positions   \d+ of 87 served exactly once, none twice", out, re.M)
    served = dict(re.findall(r"source +(\w+) +(\d+) samples", out))
    assert sum(map(int, served.values())) == 87


def test_inspect_shows_what_a_run_reads_and_draws_it(mixture, tmp_path, capsys):
    plot = tmp_path / "shares.svg"
    status, out, _ = output_of(
        capsys, "inspect", mixture, "--steps", 20, "--step-size", 8, "--plot", plot, "--sample", 3
    )
    assert status == 0
    assert re.search(r"^web +\d+  0\.\d+ +[\d,]+ +\d\.\d\d$", out, re.M)
    assert "code runs out at position" in out
    assert len(re.findall(r"^step +\d+  [█▒]+$", out, re.M)) == 8
    assert re.search(r"^position 3: sample \d+ of (web|code)$", out, re.M)
    assert plot.read_text().startswith("<svg")


def test_bench_measures_a_mixture(mixture, capsys):
    status, out, _ = output_of(
        capsys, "bench", mixture, "--batch-size", 4, "--batches", 5, "--rounds", 1
    )
    assert status == 0
    assert "Loader" in out
    assert "NumPy memmap" not in out


def test_a_mixture_in_json_is_the_same(mixture, capsys):
    import tomllib

    path = mixture.with_suffix(".json")
    path.write_text(json.dumps(tomllib.loads(MIXTURE)))
    expected = output_of(capsys, "audit", mixture, "--batch-size", 4)
    assert output_of(capsys, "audit", path, "--batch-size", 4) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit", "{path}", "--seq-len", "8"], "--seq-len is for datasets; write it into"),
        (["audit", "{path}", "--shuffle", "none"], "--shuffle is for datasets"),
        (["bench", "{path}", "--seed", "3"], "--seed is for datasets"),
        (["inspect", "{path}", "{path}"], "is a mixture; name one mixture, or datasets"),
        (
            ["inspect", "{web}", "--steps", "3"],
            "--plot are for a mixture file",
        ),
        (["inspect", "{path}", "--plot", "x.png"], "the picture is an SVG"),
        (["inspect", "{path}", "--plot", "/missing/x.svg"], "No such file"),
        (["inspect", "{path}", "--sample", "-1"], "out of range"),
        (["verify", "{path}"], ""),
    ],
)
def test_mistakes_say_what_to_do(mixture, capsys, arguments, words):
    filled = [each.format(path=mixture, web=mixture.parent / "web") for each in arguments]
    status, out, err = output_of(capsys, *filled)
    assert status == 1
    assert words in out + err
    assert "Traceback" not in out + err
