"""Conversions to every format: each view of the result gives the same batches."""

import json
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millstream
from millstream.atomic import NewFile
from millstream.compat.datatrove import DatatroveFolderDataset
from millstream.compat.zerobatch import BatchNativeLoader
from millstream.converting import convert
from millstream.errors import FormatError, MillstreamError
from millstream.read.files import FileKind, OpenFiles
from millstream.read.local_reader import LocalReader
from millstream.write.shard_job import ShardJob
from tests.helpers import paths
from tests.helpers.datasets import documents_of, write_documents

GOLDEN = paths.GOLDEN / "formats"


def tokens_of(data):
    records = data.records(0, data.num_records)
    return (records["token"] if records.dtype.names else records).tolist()


def views_of(data, seq_len, mask):
    """Every view, with every extra, ragged and of fixed shapes."""
    extras = ("position_ids", "document_ids", "attention_mask", "cu_seqlens")
    for is_static in (False, True):
        options = {"extras": extras, "static_shapes": is_static, "loss_mask": mask}
        for overlap in (False, True):
            yield data.windows(seq_len, overlap=overlap, mask_ends=overlap, **options)
        for overflow in ("truncate", "split"):
            yield data.documents(seq_len, overflow=overflow, by_length=is_static, **options)
        for policy in ("best_fit", "bos_best_fit", "bos_best_fit_keep"):
            yield data.packed(seq_len, policy=policy, buffer_size=3, **options)


def assert_same_batches(ours, theirs, seq_len, mask, dtype):
    for expected, found in zip(
        views_of(ours, seq_len, mask), views_of(theirs, seq_len, mask), strict=True
    ):
        assert len(expected) == len(found)
        samples = [*range(0, len(expected), 2), *range(len(expected) - 1, -1, -3)]
        if not samples:
            continue
        wanted, got = expected.read(samples, dtype=dtype), found.read(samples, dtype=dtype)
        assert list(wanted) == list(got)
        for name in wanted:
            np.testing.assert_array_equal(wanted[name], got[name], str((found, name)))


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    documents=st.lists(
        st.lists(st.integers(1, 65_535), max_size=25), min_size=1, max_size=12
    ).filter(any),
    source_bytes=st.integers(1, 120),
    shard_bytes=st.integers(1, 120),
    seq_len=st.integers(1, 20),
    masked=st.booleans(),
    access=st.sampled_from(["pread", "mmap"]),
    dtype=st.sampled_from(["int64", None]),
)
def test_all_views_of_all_formats_are_those_of_our_own(
    tmp_path_factory, documents, source_bytes, shard_bytes, seq_len, masked, access, dtype
):
    tmp = tmp_path_factory.mktemp("formats")
    ours = write_documents(tmp / "in", documents, masked=masked, shard_bytes=source_bytes)
    for to in ("millstream", "datatrove", "megatron", "llmchnk"):
        convert(ours, tmp / to, to, shard_bytes=shard_bytes)
        theirs = millstream.open(tmp / to, access=access)
        keeps_mask = masked and to in ("millstream", "datatrove")
        plain = ours if keeps_mask or not masked else millstream.open(tmp / "megatron")
        assert_same_batches(plain, theirs, seq_len, "loss_mask" if keeps_mask else None, dtype)
    # Bare tokens know their documents by a mark.
    ended = [[*document, 0] for document in documents]
    ours = write_documents(tmp / "ended", ended, shard_bytes=source_bytes)
    for to in ("llmc", "flat"):
        convert(ours, tmp / to, to, shard_bytes=shard_bytes)
        theirs = millstream.open(tmp / to, access=access, eos_id=0)
        assert_same_batches(ours, theirs, seq_len, None, dtype)
    # And rows are documents of one length, in blocks with padding or in an array.
    stream = np.concatenate([np.array(document, "<u4") for document in ended])
    width = min(seq_len + 1, len(stream))
    stream = stream[: len(stream) // width * width].reshape(-1, width)
    ours = write_documents(tmp / "rows", stream, token="<u4", shard_bytes=source_bytes)
    np.save(tmp / "rows.npy", stream)
    convert(ours, tmp / "batches", "llmbatch", shard_bytes=shard_bytes, seq_len=width, batch_size=1)
    for path in (tmp / "rows.npy", tmp / "batches"):
        theirs = millstream.open(path, access=access)
        assert_same_batches(ours, theirs, seq_len, None, dtype)
        if width > 1:
            rows = theirs.rows().read(range(len(stream)), dtype=dtype)
            assert rows["input_ids"].tolist() == stream[:, :-1].tolist()
            assert rows["labels"].tolist() == stream[:, 1:].tolist()


def _read_on(loader, queue):
    queue.put([batch["labels"].tolist() for batch in loader])


@pytest.mark.process
@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("to", ["datatrove", "megatron", "llmbatch"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loader_of_foreign_files_goes_on_in_another_process(tmp_path, to, method):
    documents = [range(k * 50, k * 50 + k % 9) for k in range(60)]
    ours = write_documents(tmp_path / "in", documents, masked=to == "datatrove", shard_bytes=40)
    shape = {"seq_len": 5, "batch_size": 3} if to == "llmbatch" else {}
    convert(ours, tmp_path / "out", to, shard_bytes=60, **shape)
    data = millstream.open(tmp_path / "out")
    mask = "loss_mask" if to == "datatrove" else None
    view = data.packed(8, loss_mask=mask)

    def new():
        return millstream.Loader(view, 4, seed=1, output="numpy", rank=0, ranks=1)

    whole = [batch["labels"].tolist() for batch in new()]
    loader = new()
    batches = iter(loader)
    assert [next(batches)["labels"].tolist() for _ in range(2)] == whole[:2]
    resumed = pickle.loads(pickle.dumps(new()))
    resumed.load_state_dict(loader.state_dict())
    loader.close()
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=_read_on, args=(resumed, queue))
    process.start()
    assert queue.get() == whole[2:]
    process.join(60)
    assert process.exitcode == 0


def test_threads_that_come_at_once_share_one_table_of_names(data, monkeypatch):
    fresh = LocalReader(data.shards, data.fields.itemsize)
    both, seen, file_of = threading.Barrier(2), threading.local(), LocalReader.file

    def wait_for_the_other(self, shard, kind):
        if not hasattr(seen, "came"):
            seen.came = True
            both.wait(60)
        return file_of(self, shard, kind)

    monkeypatch.setattr(LocalReader, "file", wait_for_the_other)
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(fresh.new_files(FileKind.RECORDS, OpenFiles(1)))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0].shards is found[1].shards


def test_empty_documents_at_the_end_keep_the_mask(tmp_path):
    data = write_documents(tmp_path / "in", [[1, 2], [3], [], []], masked=True)
    convert(data, tmp_path / "out", "datatrove", shard_bytes=1)
    again = millstream.open(tmp_path / "out")
    assert documents_of(again) == documents_of(data)
    assert all(shard.num_records for shard in again.shards)


@pytest.mark.parametrize("mask", [("<f4",), ("u1", (2,))])
def test_what_is_called_loss_mask_and_is_none_is_said_to_be_lost(tmp_path, mask):
    fields = [("token", "<u2"), ("loss_mask", *mask)]
    with millstream.Writer(tmp_path / "in", fields=fields) as writer:
        writer.append(np.ones(3, fields))
    report = convert(millstream.open(tmp_path / "in"), tmp_path / "out", "datatrove")
    assert report.lost == ("datatrove cannot store the fields loss_mask",)
    assert documents_of(millstream.open(tmp_path / "out")) == [[1, 1, 1]]


def test_sentences_about_what_is_lost_help(tmp_path):
    data = write_documents(tmp_path / "in", [[70_000, 0], [2, 3, 0]], token="<u4")
    lost = convert(data, tmp_path / "rows", "llmbatch", seq_len=2, batch_size=1).lost
    assert lost[0] == "llmbatch does not store document boundaries"
    lost = convert(data, tmp_path / "flat", "flat").lost
    assert lost[0].endswith("pass bos_id or eos_id (--bos-id, --eos-id) when you open the result")
    again = millstream.open(tmp_path / "flat", eos_id=0)  # its type is in files.json
    assert documents_of(again) == documents_of(data)


def _fail_after(monkeypatch, num_shards):
    write_shard = ShardJob._write

    def write_or_fail(self, name, write):
        if int(name) >= num_shards:
            raise OSError(28, "No space left on device")
        return write_shard(self, name, write)

    monkeypatch.setattr(ShardJob, "_write", write_or_fail)


def test_a_source_that_changed_is_not_mixed_with_shards_of_an_earlier_run(tmp_path, monkeypatch):
    tokens = (np.arange(1_000_000) % 50_000).astype("<u2")
    tokens.tofile(tmp_path / "t.bin")
    options = {"to": "datatrove", "shard_bytes": 1_000_000, "workers": 1}
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        _fail_after(patched, 1)
        convert(millstream.open(tmp_path / "t.bin", eos_id=9), tmp_path / "out", **options)
    tokens[20_000:20_100] = 1  # between the blocks that a fingerprint sees
    tokens.tofile(tmp_path / "t.bin")
    with pytest.raises(MillstreamError, match="source is different, or has changed"):
        convert(millstream.open(tmp_path / "t.bin", eos_id=9), tmp_path / "out", **options)


def test_another_loss_mask_is_another_dataset(tmp_path):
    convert(
        write_documents(tmp_path / "in", [[1, 2, 3]], masked=True), tmp_path / "out", "datatrove"
    )
    before = millstream.open(tmp_path / "out").fingerprint
    (tmp_path / "out" / "00000.ds.loss").write_bytes(b"\0\0\0")
    assert millstream.open(tmp_path / "out").fingerprint != before


@pytest.mark.parametrize("to", ["datatrove", "megatron", "llmchnk", "flat"])
def test_a_conversion_that_did_not_finish_is_no_dataset(tmp_path, monkeypatch, to):
    data = write_documents(tmp_path / "in", [[k] * 5 for k in range(20)])
    _fail_after(monkeypatch, 2)
    with pytest.raises(OSError, match="No space"):
        convert(data, tmp_path / "out", to, shard_bytes=20, workers=1)
    with pytest.raises(MillstreamError):
        millstream.open(tmp_path / "out")


def test_files_that_are_there_already_are_not_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "00000.bin").write_bytes(b"the only copy of something")
    with pytest.raises(MillstreamError):
        convert(write_documents(tmp_path / "in", [[1, 2]]), tmp_path / "out", "flat")
    assert (tmp_path / "out" / "00000.bin").read_bytes() == b"the only copy of something"


def test_flat_tokens_that_we_wrote_open_as_what_they_are_or_not_at_all(tmp_path):
    convert(
        write_documents(tmp_path / "in", [[70_000, 2, 3]], token="<u4"), tmp_path / "out", "flat"
    )
    try:
        again = millstream.open(tmp_path / "out")
    except MillstreamError:
        return
    assert documents_of(again) == [[70_000, 2, 3]]


@pytest.mark.parametrize("to", ["datatrove", "llmchnk"])
def test_a_fingerprint_does_not_depend_on_how_files_are_named(tmp_path, to):
    convert(write_documents(tmp_path / "in", [[1, 2], [3]]), tmp_path / "out", to)
    suffix = {"datatrove": ".ds", "llmchnk": ".chnk"}[to]
    by_list, by_name = (
        millstream.open(source) for source in (tmp_path / "out", tmp_path / f"out/00000{suffix}")
    )
    assert by_list.fingerprint == by_name.fingerprint
    assert by_list.documents_fingerprint == by_name.documents_fingerprint


@pytest.mark.parametrize("to", ["datatrove", "megatron", "flat"])
def test_a_list_that_convert_wrote_is_a_file_list_too_and_is_never_made_anew(tmp_path, to):
    data = write_documents(tmp_path / "in", [[70_000, 2, 3], [4], [5, 6]], token="<u4")
    convert(data, tmp_path / "out", to)
    listed = tmp_path / "out" / "files.json"
    before = listed.read_text()
    again = millstream.open(tmp_path / "out" / "*", file_list=listed)
    assert tokens_of(again) == [70_000, 2, 3, 4, 5, 6]
    name = json.loads(before)[0]["path"]
    os.truncate(tmp_path / "out" / name, 8)
    with pytest.raises(FormatError, match=r"8 bytes, but files\.json says"):
        millstream.open(tmp_path / "out" / "*", file_list=listed)
    assert listed.read_text() == before


def test_datatrove_takes_a_list_that_convert_wrote(tmp_path):
    data = write_documents(tmp_path / "in", [[k] * 5 for k in range(20)])
    convert(data, tmp_path / "out", "datatrove", shard_bytes=40)
    folder = DatatroveFolderDataset(tmp_path / "out", 4, paths_file=tmp_path / "out" / "files.json")
    expected = DatatroveFolderDataset(tmp_path / "out", 4)
    assert len(folder) == len(expected) == 20
    listed = json.loads((tmp_path / "out" / "files.json").read_text())
    assert all(entry["path"].endswith(".ds") for entry in listed)
    assert {each["path"].split(".", 1)[1] for each in listed[0]["companions"]} == {
        "ds.index",
        "ds.metadata",
    }


def test_an_unfinished_conversion_has_no_other_door(tmp_path, monkeypatch):
    data = write_documents(tmp_path / "in", [[k] * 5 for k in range(20)])
    for to, options in (("datatrove", {}), ("llmbatch", {"seq_len": 5, "batch_size": 2})):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
            _fail_after(patched, 2)
            convert(data, tmp_path / to, to, shard_bytes=40, workers=1, **options)
    for opened in (
        lambda: millstream.open(tmp_path / "datatrove"),
        lambda: millstream.open(tmp_path / "datatrove" / "*.ds"),
        lambda: millstream.open(tmp_path / "datatrove", file_list=tmp_path / "list.json"),
        lambda: DatatroveFolderDataset(tmp_path / "datatrove", 4),
        lambda: BatchNativeLoader(tmp_path / "llmbatch"),
    ):
        with pytest.raises(MillstreamError, match="is unfinished"):
            opened()
    assert not (tmp_path / "list.json").exists()


def test_a_full_disk_leaves_what_can_be_gone_on_with_and_is_named(tmp_path, monkeypatch):
    data = write_documents(tmp_path / "in", [[k] * 5 for k in range(20)])
    finish, num_finished = NewFile.finish, []

    def fill_up(self):
        if len(num_finished) == 2:  # unfinished.json, and the index of a shard
            raise OSError(28, "No space left on device", str(self._path))
        num_finished.append(self)
        return finish(self)

    with monkeypatch.context() as patched, pytest.raises(OSError, match=r"No space .*00000"):
        patched.setattr(NewFile, "finish", fill_up)
        convert(data, tmp_path / "out", "datatrove", workers=1)
    with pytest.raises(MillstreamError, match="is unfinished"):
        millstream.open(tmp_path / "out")
    convert(data, tmp_path / "out", "datatrove", workers=1)
    assert documents_of(millstream.open(tmp_path / "out")) == documents_of(data)


def test_what_is_not_read_or_differs_is_said(tmp_path):
    lost = convert(
        millstream.open(GOLDEN / "megatron" / "multi.bin"), tmp_path / "a", "millstream"
    ).lost
    assert lost == ("sequences within documents of the source are not converted",)
    modes = millstream.open(GOLDEN / "megatron" / "modes.bin")
    assert (
        "modes of the source are not converted" in convert(modes, tmp_path / "m", "megatron").lost
    )
    for name, eos_id in (("e1", 5), ("e2", 7)):
        with millstream.Writer(
            tmp_path / name, vocab_size=9, eos_id=eos_id, tokenizer={"a": "b"}
        ) as w:
            w.append([1, eos_id])
    both = millstream.open([tmp_path / "e1", tmp_path / "e2"])
    assert convert(both, tmp_path / "b", "millstream").lost == (
        "eos_id differ between the sources and are left out",
    )
    assert millstream.open(tmp_path / "b").manifests[0].eos_id is None
    assert "datatrove does not store tokenizer, vocab_size" in (
        convert(both, tmp_path / "d", "datatrove").lost
    )


def test_targets_without_documents_are_cut_anywhere(tmp_path):
    np.arange(1000, dtype="<u2").tofile(tmp_path / "train.bin")
    data = millstream.open(tmp_path / "train.bin")
    assert len(convert(data, tmp_path / "flat", "flat", shard_bytes=300).files) == 7
    assert len(convert(data, tmp_path / "llmc", "llmc", shard_bytes=300).files) == 7
    assert tokens_of(millstream.open(tmp_path / "flat")) == list(range(1000))
    assert tokens_of(millstream.open(tmp_path / "llmc")) == list(range(1000))


@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", "<u8"])
def test_flat_keeps_any_type_of_tokens(tmp_path, dtype):
    tokens = np.array([1, 2, 100, 0 if dtype.endswith(("u1", "u8")) else -100], dtype)
    with millstream.Writer(tmp_path / "in", fields=[("token", dtype)]) as writer:
        writer.append(tokens)
    convert(millstream.open(tmp_path / "in"), tmp_path / "flat", "flat")
    assert tokens_of(millstream.open(tmp_path / "flat")) == tokens.tolist()
