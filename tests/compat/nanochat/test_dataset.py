"""nanochat's dataset module: its lists and row groups, and downloads from a real server."""

import io
import os
import signal
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.compat.nanochat import dataset, list_parquet_files, parquets_iter_batched
from millstream.errors import FormatError, MissingDataError, UsageError
from tests.helpers.nanochat_corpus import files, write_corpus
from tests.helpers.waiting import wait_until


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    return tmp_path


# Files and row groups


def test_names_and_constants_are_those_of_nanochat(base):
    assert dataset.index_to_filename(7) == "shard_00007.parquet"
    assert (dataset.BASE_URL.rsplit("/", 3)[1], dataset.MAX_SHARD) == (
        "climbmix-400b-shuffle",
        6542,
    )
    assert str(base / "base_data_climbmix") == dataset.DATA_DIR
    with pytest.raises(AttributeError, match="has no attribute 'DATA_DIRS'"):
        _ = dataset.DATA_DIRS
    older = dataset.DATASETS["fineweb-edu"]
    assert (older.max_shard + 1, older.directory) == (1823, "base_data")
    assert older.base_url == (
        "https://huggingface.co/datasets/karpathy/fineweb-edu-100b-shuffle/resolve/main"
    )


def test_parquet_files_are_listed_in_order_and_only_complete_ones(base):
    directory = base / "base_data_climbmix"
    paths = write_corpus(directory, [2, 0, 1])
    (directory / "shard_00003.parquet.tmp").touch()
    (directory / "notes.txt").touch()
    assert list_parquet_files() == sorted(map(str, paths))
    assert list_parquet_files(data_dir=directory) == list_parquet_files()
    assert list_parquet_files(str(base)) == []
    with pytest.raises(MissingDataError, match="no such directory"):
        list_parquet_files(base / "elsewhere")


def test_the_older_directory_is_used_if_it_is_the_only_one_and_warned_of_if_asked(base):
    paths = write_corpus(base / "base_data", [0])
    assert list_parquet_files() == list(map(str, paths))
    with pytest.warns(UserWarning, match="used until March 2026"):
        assert list_parquet_files(warn_on_legacy=True) == list(map(str, paths))
    newer = write_corpus(base / "base_data_climbmix", [1])
    assert list_parquet_files(warn_on_legacy=True) == list(map(str, newer))


@pytest.mark.parametrize(("start", "step"), [(0, 1), (0, 2), (1, 2), (2, 3), (9, 4)])
def test_row_groups_are_dealt_out_within_each_file_as_nanochat_does(base, start, step):
    write_corpus(base / "base_data")
    every = files()
    for split, chosen in (("train", every[:-1]), ("val", every[-1:])):
        expected = [group for groups in chosen for group in groups[start::step] if group]
        assert list(parquets_iter_batched(split, start, step)) == expected


def test_all_ranks_together_read_every_document_once(base):
    write_corpus(base / "base_data")
    found = Counter()
    for rank in range(3):
        for texts in parquets_iter_batched("train", start=rank, step=3):
            found.update(texts)
    assert found == Counter(text for groups in files()[:-1] for group in groups for text in group)


def test_wrong_calls_and_files_are_errors(base):
    with pytest.raises(MissingDataError, match="neither base_data_climbmix nor base_data"):
        list_parquet_files()
    write_corpus(base / "base_data", [0, 1])
    for split, start, step, reason in (
        ("test", 0, 1, "split is 'test'"),
        ("val", -1, 1, "start is -1"),
        ("val", 0, 0, "step is 0"),
    ):
        with pytest.raises(UsageError, match=reason):
            parquets_iter_batched(split, start, step)
    table = pa.table({"text": ["a", None]})
    pq.write_table(table, base / "base_data" / "shard_00002.parquet")
    with pytest.raises(FormatError, match=r"shard_00002\.parquet.*row 1"):
        list(parquets_iter_batched("val"))


# Downloads


def parquet_bytes(number):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": [f"document {number}"] * 50}), buffer)
    return buffer.getvalue()


def serve(server, shards):
    for shard in shards:
        server.add(f"data/{dataset.index_to_filename(shard)}", parquet_bytes(shard))
    return f"{server.url}/data"


def asked(server):
    return sorted(request.path.rpartition("_")[2].partition(".")[0] for request in server.requests)


def test_the_files_for_training_come_and_the_one_for_validation(server, base, capsys):
    url = serve(server, [0, 1, 2, 6542])
    arguments = ["-n", "3", "-w", "2", "--base-url", url]
    assert dataset.main(arguments) == 0
    assert asked(server) == ["00000", "00001", "00002", "06542"]
    assert capsys.readouterr().out.splitlines() == [
        f"4 files to {base}/base_data_climbmix, 2 at a time",
        "4 downloaded, 0 already there, 0 failed",
    ]
    assert [texts[0] for texts in parquets_iter_batched("train")] == [
        "document 0",
        "document 1",
        "document 2",
    ]
    assert next(parquets_iter_batched("val"))[0] == "document 6542"
    server.requests.clear()
    assert dataset.main(arguments) == 0
    assert server.requests == []
    assert "0 downloaded, 4 already there" in capsys.readouterr().out


def test_of_the_older_dataset_the_first_files_come(server, base):
    url = serve(server, range(3))
    assert dataset.main(["--num-files", "3", "--dataset", "fineweb-edu", "--base-url", url]) == 0
    assert asked(server) == ["00000", "00001", "00002"]
    assert [path.rpartition("/")[2] for path in list_parquet_files(base / "base_data")] == [
        "shard_00000.parquet",
        "shard_00001.parquet",
        "shard_00002.parquet",
    ]


@pytest.mark.parametrize(
    ("name", "num_files", "expected"),
    [
        ("climbmix", -1, range(6543)),
        ("climbmix", 0, [6542]),
        ("climbmix", 2, [0, 1, 6542]),
        ("climbmix", 9999, range(6543)),
        ("fineweb-edu", -1, range(1823)),
        ("fineweb-edu", 10, range(10)),
        ("fineweb-edu", 9999, range(1823)),
    ],
)
def test_what_n_means(name, num_files, expected):
    assert dataset.DATASETS[name].shards(num_files) == list(expected)


def test_files_that_fail_are_named_and_the_others_arrive(server, base, capsys):
    url = serve(server, [0, 6542])
    assert dataset.main(["-n", "2", "--base-url", url]) == 1
    shown = capsys.readouterr()
    assert "2 downloaded, 0 already there, 1 failed" in shown.out
    assert "not downloaded: " in shown.err
    assert "shard_00001.parquet" in shown.err
    assert len(list_parquet_files()) == 2


def test_wrong_numbers_are_errors_in_one_line(base, capsys):
    assert dataset.main(["-n", "-2"]) == 1
    assert dataset.main(["-n", "0", "--dataset", "fineweb-edu"]) == 1
    assert dataset.main(["-n", "1", "-w", "0", "--base-url", "http://127.0.0.1:9"]) == 1
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("-n is -2")
    assert second.startswith("-n is 0")
    assert third.startswith("workers is 0")


def test_one_file_can_be_downloaded(server, base, capsys):
    url = serve(server, [5])
    assert dataset.download_single_file(5, base_url=url)
    assert not dataset.download_single_file(6, base_url=url, data_dir=base / "other")
    assert "shard_00006.parquet" in capsys.readouterr().err
    assert list_parquet_files() == [str(base / "base_data_climbmix" / "shard_00005.parquet")]
    assert not (base / "other" / "shard_00006.parquet").exists()


@pytest.mark.process
def test_the_command_that_was_killed_continues_where_it_stopped(server, base):
    body = parquet_bytes(0) + bytes(3_000_000)
    url = f"{server.url}/data"
    server.add("data/shard_00000.parquet", body, "stall")
    server.add("data/shard_06542.parquet", parquet_bytes(6542))
    # Exactly nanochat's command line, but for the module's name and the mirror.
    command = [sys.executable, "-m", "millstream.compat.nanochat.dataset", "-n", "1", "-w", "4"]
    command += ["--base-url", url]
    place = base / "base_data_climbmix"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        half = len(body) // 2  # of this file: the part of the other one is renamed at any moment
        pattern = ".fetch/shard_00000.*.part"
        wait_until(lambda: any(part.stat().st_size == half for part in place.glob(pattern)))
        os.kill(process.pid, signal.SIGKILL)
    assert not (place / "shard_00000.parquet").exists()
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "downloaded" in found.stdout
    assert (place / "shard_00000.parquet").read_bytes() == body
    assert sum(server.sent("data/shard_00000.parquet")) == len(body) + 1  # to compare the versions
