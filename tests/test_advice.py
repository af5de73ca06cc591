"""What a message advises helps: each advice is followed here."""

import re

import numpy as np
import pytest

import penstock
from penstock.converting import convert
from penstock.errors import DatasetExistsError, FetchError, UsageError
from penstock.text.training import train_tokenizer
from penstock.write.llmbatch import write_batch_file
from tests.helpers.bad_server import serving


def loader(path, **options):
    options = {"batch_size": 4, "seq_len": 8, "rank": 0, "ranks": 1, "endless": False} | options
    return penstock.TextLoader(penstock.Source(path), "bytes", **options)


def test_an_epoch_without_a_step_advises_what_gives_one(tmp_path):
    (tmp_path / "a.txt").write_text("twelve bytes\n" * 2)
    for tail in ("drop", "keep"):
        with pytest.raises(UsageError, match="use a smaller seq_len, or more text") as caught:
            len(loader(tmp_path / "a.txt", tail=tail, seq_len=100, packing="bos_best_fit"))
        assert "tail" not in str(caught.value)
    assert len(loader(tmp_path / "a.txt", batch_size=1, packing="bos_best_fit"))
    with pytest.raises(UsageError, match=r"it has 4 rows in 1 lanes; use batch_size=4 or less, "):
        len(loader(tmp_path / "a.txt", batch_size=5))
    assert len(loader(tmp_path / "a.txt", batch_size=4)) == 1
    assert len(loader(tmp_path / "a.txt", tail="keep")) == 1


def test_an_epoch_whose_ranks_have_too_little_does_not_advise_smaller_batches(tmp_path):
    for name, text in (("a", "x" * 100), ("b", "y")):
        (tmp_path / f"{name}.txt").write_text(text)
    options = {"ranks": 2, "packing": "bos_best_fit"}
    for rank in range(2):
        with pytest.raises(UsageError, match="lanes; use tail='keep', or endless=True"):
            len(loader(tmp_path, rank=rank, **options))
        assert len(loader(tmp_path, rank=rank, tail="keep", **options)) >= 1


def test_metadata_of_an_empty_document_is_refused_as_such(tmp_path):
    with penstock.Writer(tmp_path / "out", vocab_size=9, metadata=bytes) as writer:
        with pytest.raises(UsageError, match="document 0 is empty, and metadata belongs to") as one:
            writer.append([], metadata=b"x")
        assert "span" not in str(one.value)
        with pytest.raises(UsageError, match="document 1 is empty"):
            writer.extend([1], [1, 0], [b"x", b"y"])
        writer.extend([1], [1, 0], [b"x", None])
        with pytest.raises(UsageError, match="continues=True needs at least one document"):
            writer.extend([], [], continues=True)
    assert penstock.open(tmp_path / "out").num_documents == 2


def test_a_finished_part_is_written_again_when_its_files_are_removed(tmp_path):
    with penstock.Writer(tmp_path, vocab_size=9, part=3) as writer:
        writer.append([1])
    with pytest.raises(DatasetExistsError, match="remove the files 00003") as caught:
        penstock.Writer(tmp_path, vocab_size=9, part=3)
    pattern = re.search(r"remove the files (\S+) here", str(caught.value))[1]
    for path in tmp_path.glob(pattern):
        path.unlink()
    penstock.Writer(tmp_path, vocab_size=9, part=3).finish()


def test_sizes_that_are_advised_work(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\n")
    source = penstock.Source(tmp_path / "*.txt")
    with pytest.raises(UsageError, match="take 1 or less"):
        source.split_by_file(5)
    with pytest.raises(UsageError, match="or cut this one into several"):
        penstock.Source(tmp_path / "a.txt").split_by_file()
    with pytest.raises(UsageError, match="write more records, or choose batch_size=2 or less"):
        write_batch_file(tmp_path / "x", np.zeros((2, 3), int), 5, 3, seed=0)
    with pytest.raises(UsageError, match=r"write more records$"):
        write_batch_file(tmp_path / "x", np.zeros((0, 3), int), 5, 3, seed=0)
    with penstock.Writer(tmp_path / "in", vocab_size=9, eos_id=2) as writer:
        writer.extend([1, 2, 3, 2], [2, 2])
    data = penstock.open(tmp_path / "in")
    with pytest.raises(UsageError, match="choose batch_size=2 or less"):
        convert(data, tmp_path / "out", "llmbatch", seq_len=2, batch_size=9)
    with pytest.raises(UsageError, match="choose a smaller seq_len"):
        convert(data, tmp_path / "out", "llmbatch", seq_len=9, batch_size=1)
    lost = convert(data, tmp_path / "flat", "flat").lost
    assert "flat does not know documents; give eos_id=2 (--eos-id 2) when you open it again" in lost
    assert penstock.open(tmp_path / "flat", eos_id=2).num_documents == 2


def test_a_vocabulary_that_max_bytes_keeps_small_is_said_to_be(tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 99)
    options = {"vocab_size": 290, "specials": []}
    with pytest.raises(UsageError, match="; raise max_bytes, or allow a smaller vocabulary"):
        train_tokenizer(tmp_path / "a.txt", max_bytes=20, **options)
    with pytest.raises(UsageError, match="; give more text, or allow a smaller vocabulary"):
        train_tokenizer(tmp_path / "a.txt", **options)


def test_a_login_that_was_given_is_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        url = server.add("a", b"x", (403, {}), (403, {}))
        with pytest.raises(FetchError, match="where a login is needed, give --header"):
            penstock.fetch(url, tmp_path)
        with pytest.raises(FetchError, match="header that was given is not enough"):
            penstock.fetch(url, tmp_path, headers={"authorization": "Bearer x"})
