"""The commands on a dataset of objects."""

import pytest

from millstream.cli import main
from tests.helpers.objects import write_objects


@pytest.fixture
def run(capsys):
    """Run a command; its exit code and what it prints."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.fixture
def path(tmp_path):
    contents = ["ünï [bold]".encode(), bytes(range(200)), b"x" * 999, b""]
    metadata = [b"first", b"", b"third", b"\xff\xfe"]
    write_objects(tmp_path / "data", contents, metadata=metadata)
    return tmp_path / "data"


def test_inspect_shows_sizes_texts_bytes_and_metadata(path, run):
    code, out = run("inspect", path, *(f"--sample={number}" for number in range(4)))
    assert code == 0
    assert "4, 4 with metadata" in out
    assert "vocabulary" not in out
    assert "objects: 4 samples of 0 to 999 bytes, median 200, mean 303" in out
    assert "12 bytes: ünï [bold]\n  metadata: first\n" in out
    assert "200 bytes: 00 01 02 03" in out
    assert f"999 bytes: {'x' * 200} …\n  metadata: third\n" in out
    assert "0 bytes: \n  metadata: ff fe\n" in out
    assert run("inspect", path, "--sample", 4)[0] == 1


def test_inspect_shows_an_empty_dataset(tmp_path, run):
    write_objects(tmp_path / "data", [])
    code, out = run("inspect", tmp_path / "data")
    assert code == 0
    assert "objects: none" in out


def test_verify_audit_and_bench_take_objects(path, run):
    assert run("verify", path)[0] == 0
    code, out = run("audit", path, "--batch-size", 1, "--ranks", 2, "--by-length")
    assert code == 0
    assert "4 of 4 samples served exactly once" in out
    assert "bytes       1,211 of 1,211 are inputs exactly once" in out
    code, out = run("bench", path, "--batch-size", 2, "--batches", 3, "--rounds", 1)
    assert code == 0
    assert "3 batches of 2 objects" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "--view", "packed"], "use data.objects(decode)"),
        (["pack"], "use data.objects(decode)"),
        (["pack", "--report"], "holds objects, which have no tokens to make rows of"),
        (["convert", "out", "--to", "flat"], "only token datasets can be converted"),
    ],
)
def test_what_needs_tokens_says_so(path, run, monkeypatch, arguments, message):
    monkeypatch.chdir(path.parent)
    command, *others = arguments
    code, out = run(command, path, *others)
    assert code == 1
    assert message in out
