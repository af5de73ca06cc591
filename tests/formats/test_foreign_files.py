"""Options, companion files, file lists and cached tables of other formats."""

import gzip
import shutil
import struct

import numpy as np
import pytest

import millstream
from millstream.converting import convert
from millstream.errors import FormatError, MillstreamError
from tests.helpers import paths
from tests.helpers.datasets import documents_of, write_documents

GOLDEN = paths.GOLDEN / "formats"


def test_documents_found_by_a_token_are_not_those_of_another_format(tmp_path):
    tokens = np.array([5, 7, 0, 8, 7, 3], "<u2")
    header = struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\0")
    (tmp_path / "x.bin").write_bytes(header + tokens.tobytes())
    assert millstream.open(tmp_path / "x.bin", format="flat:uint8", eos_id=7).num_documents == 3
    data = millstream.open(tmp_path / "x.bin", eos_id=7)
    assert documents_of(data) == [[5, 7], [0, 8, 7], [3]]


def test_a_list_of_other_files_is_not_taken_for_the_source(tmp_path):
    for name, first in (("a", 0), ("b", 100)):
        (tmp_path / name).mkdir()
        np.arange(first, first + 9, dtype="<u2").tofile(tmp_path / name / "t.bin")
    millstream.open(tmp_path / "a", file_list=tmp_path / "list.json")
    try:
        data = millstream.open(tmp_path / "b", file_list=tmp_path / "list.json")
    except MillstreamError:
        return
    assert data.records(0, 1).tolist() == [100]


def test_an_option_that_a_format_does_not_have_is_refused(tmp_path):
    convert(write_documents(tmp_path / "in", [[1, 2]]), tmp_path / "out", "llmchnk")
    with pytest.raises(MillstreamError):
        millstream.open(tmp_path / "out", format="llmchnk:uint32")


def test_a_cached_table_that_was_cut_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    np.arange(1, 65, dtype="<u2").tofile(tmp_path / "d.npy")
    with gzip.open(tmp_path / "d.csv.gz", "wt") as file:
        file.writelines(f"{k},{k + 4}\n" for k in range(0, 64, 4))
    expected = documents_of(millstream.open(tmp_path / "d.npy"))
    (table,) = (tmp_path / "cache" / "millstream" / "tables").glob("*.documents")
    table.write_bytes(table.read_bytes()[: 8 * 9])
    try:
        again = documents_of(millstream.open(tmp_path / "d.npy"))
    except MillstreamError:
        return
    assert again == expected


def test_a_pattern_that_brings_companions_along_reads_every_token_once(tmp_path):
    data = write_documents(tmp_path / "in", [[1, 2, 3], [4], [5, 6]])
    for to in ("datatrove", "megatron", "llmchnk", "flat"):
        convert(data, tmp_path / to, to, shard_bytes=4)
        assert millstream.open(tmp_path / to / "*").num_records == 6, to
        assert millstream.open(tmp_path / to / "0*").num_records == 6, to
        assert millstream.open(sorted((tmp_path / to).iterdir())).num_records == 6, to
    link = tmp_path / "megatron" / "again.json"
    link.write_text((tmp_path / "megatron" / "files.json").read_text())
    with pytest.raises(FormatError, match="is opened twice"):
        millstream.open(tmp_path / "megatron" / "*")


def test_an_index_of_datasets_is_obeyed_by_file_lists_too(tmp_path):
    source = GOLDEN / "arrow" / "hf_int32"
    shutil.copytree(source, tmp_path / "hf")
    shutil.copy(next((tmp_path / "hf").glob("data-*")), tmp_path / "hf" / "cache-1.arrow")
    plain = millstream.open(tmp_path / "hf")
    assert millstream.open(tmp_path / "hf", file_list=tmp_path / "l.json").num_records == (
        plain.num_records
    )


def test_lists_know_a_file_by_any_of_its_names(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    np.arange(10, dtype="<u2").tofile(tmp_path / "a.bin")
    monkeypatch.chdir(tmp_path / "sub")
    millstream.open("../*.bin", file_list=tmp_path / "list.json")
    monkeypatch.chdir(tmp_path)
    assert millstream.open("*.bin", file_list=tmp_path / "list.json").num_records == 10
