"""`convert`: bytes as the real software writes them, resumption, and what is lost."""

import filecmp
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millstream
from millstream.cli import main
from millstream.converting import convert
from millstream.errors import (
    DatasetExistsError,
    FormatError,
    MillstreamError,
    MissingDataError,
    UsageError,
)
from millstream.verifying import find_problems
from millstream.write.targets import TARGETS
from tests.helpers import paths
from tests.helpers.datasets import documents_of

GOLDEN = paths.GOLDEN / "formats"
OF_DOCUMENTS = [name for name, target in TARGETS.items() if target.holds_documents]


@pytest.mark.parametrize(
    ("source", "to", "suffixes"),
    [
        ("datatrove/t2.ds", "datatrove", [".ds", ".ds.index", ".ds.loss", ".ds.metadata"]),
        ("datatrove/t4.ds", "datatrove", [".ds", ".ds.index", ".ds.loss", ".ds.metadata"]),
        *(
            (f"megatron/dtype_{dtype}.bin", "megatron", [".bin", ".idx"])
            for dtype in ("uint8", "int8", "int16", "int32", "int64", "uint16")
        ),
        ("megatron/pair_a.bin", "megatron", [".bin", ".idx"]),
        ("llmc/gpt2.bin", "llmc", [".bin"]),
        ("llmc/llama3.bin", "llmc", [".bin"]),
        ("llmc/nanogpt/train.bin", "flat", [".bin"]),
    ],
)
def test_files_are_byte_for_byte_what_the_real_software_wrote(tmp_path, source, to, suffixes):
    path = GOLDEN / source
    convert(millstream.open(path), tmp_path / "out", to)
    stem = path.name.split(".")[0]
    for suffix in suffixes:
        ours, theirs = tmp_path / "out" / f"00000{suffix}", path.with_name(stem + suffix)
        assert filecmp.cmp(ours, theirs, shallow=False), suffix


@pytest.mark.slow
@pytest.mark.parametrize("to", OF_DOCUMENTS)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    documents=st.lists(st.lists(st.integers(0, 65_535), max_size=30), min_size=1, max_size=20),
    shard_bytes=st.integers(1, 200),
    width=st.sampled_from(["<u2", "<u4", "<i4", "<i8"]),
    workers=st.integers(1, 3),
)
def test_documents_survive_any_cut_into_files(
    tmp_path_factory, to, documents, shard_bytes, width, workers
):
    tmp = tmp_path_factory.mktemp("convert")
    with millstream.Writer(tmp / "in", fields=[("token", width)], shard_bytes=40) as writer:
        for document in documents:
            writer.append(np.array(document, np.int64))
    data = millstream.open(tmp / "in")
    report = convert(
        data, tmp / "out", to, shard_bytes=shard_bytes, workers=workers, allow_empty=True
    )
    again = millstream.open(tmp / "out")
    assert documents_of(again) == documents
    assert report.lost == ()
    assert report.num_records == again.num_records
    assert find_problems(again) == []
    # A file ends with the document that fills it, and no earlier.
    full = max(shard_bytes // again.fields.itemsize, 1)
    assert all(shard.num_records >= full for shard in again.shards[:-1])


@pytest.mark.slow
def test_a_chain_through_all_formats_ends_where_it_began(tmp_path):
    source = data = millstream.open(GOLDEN / "datatrove" / "noeos.ds")
    for number, to in enumerate([*OF_DOCUMENTS, *OF_DOCUMENTS]):
        convert(data, tmp_path / f"{number}", to, shard_bytes=64)
        data = millstream.open(tmp_path / f"{number}")
        assert documents_of(data) == documents_of(source)


def test_loss_masks_and_fields_survive_where_there_is_room_and_are_named_where_not(tmp_path):
    data = millstream.open(GOLDEN / "datatrove" / "t2.ds")
    masks = data.records(0, data.num_records)["loss_mask"]
    convert(data, tmp_path / "stream", "millstream", shard_bytes=64)
    stream = millstream.open(tmp_path / "stream")
    convert(stream, tmp_path / "again", "datatrove")
    for kept in (stream, millstream.open(tmp_path / "again")):
        assert kept.records(0, kept.num_records)["loss_mask"].tolist() == masks.tolist()
        assert kept.windows(4, loss_mask="loss_mask")[3]["labels"].tolist() == (
            data.windows(4, loss_mask="loss_mask")[3]["labels"].tolist()
        )
    lost = convert(data, tmp_path / "flat", "flat").lost
    how = (
        "if a token starts or ends each document, pass bos_id or eos_id (--bos-id, --eos-id) when "
        "you open the result"
    )
    assert lost == (
        "flat cannot store the fields loss_mask",
        f"flat does not store document boundaries; {how}",
        "flat does not store tokenizer",
    )
    again = millstream.open(tmp_path / "flat", eos_id=50256)
    assert documents_of(again) == documents_of(data)


def test_records_of_many_chunks_and_several_files_come_whole(tmp_path):
    fields = np.dtype([("token", "<u4"), ("concept", "<u2")])
    records = np.random.default_rng(0).integers(0, 256, (1_000_000, 6), np.uint8).view(fields)[:, 0]
    with millstream.Writer(tmp_path / "in", fields=fields, shard_bytes=2_600_000) as writer:
        for document in np.array_split(records, 7):
            writer.append(document)
    data = millstream.open(tmp_path / "in")
    assert len(data.shards) > 1
    progress = []
    convert(data, tmp_path / "out", "millstream", workers=1, progress=progress.append)
    copy = millstream.open(tmp_path / "out")
    assert (copy.records(0, copy.num_records) == records).all()
    assert progress[-1].done == progress[-1].total == records.nbytes
    assert find_problems(copy) == []


@pytest.mark.parametrize(
    ("harm", "error", "words"),
    [
        (lambda path: path.unlink(), MissingDataError, "missing"),
        (lambda path: path.write_bytes(b"\1\0" * 50), FormatError, "100 bytes, expected 200"),
        (lambda path: path.write_bytes(b"\1\0" * 150), FormatError, "300 bytes, expected 200"),
    ],
)
def test_a_source_that_is_harmed_after_it_was_opened_is_named(tmp_path, harm, error, words):
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"\1\0" * 100)
    data = millstream.open(path)
    data.fingerprint  # noqa: B018 (it reads the file too, and would complain first)
    harm(path)
    with pytest.raises(error, match=f"tokens.bin: .*{words}"):
        convert(data, tmp_path / "out", "flat")
    assert not any((tmp_path / "out").glob("*"))


def test_metadata_is_said_to_stay_behind(tmp_path):
    with millstream.Writer(tmp_path / "in", vocab_size=100, metadata=str.encode) as writer:
        writer.append([1, 2, 3], "about")
    lost = convert(millstream.open(tmp_path / "in"), tmp_path / "out", "millstream").lost
    assert lost == ("metadata is not copied",)
    assert documents_of(millstream.open(tmp_path / "out")) == [[1, 2, 3]]


@pytest.mark.slow
@pytest.mark.parametrize(("seq_len", "batch_size"), [(8, 4), (1024, 1), (5, 3)])
def test_rows_of_llmbatch_are_the_stream_in_its_order_or_shuffled(tmp_path, seq_len, batch_size):
    tokens = np.random.default_rng(0).permutation(60_000)[:5000].astype("<u2")
    tokens.tofile(tmp_path / "t.bin")
    data = millstream.open(tmp_path / "t.bin")
    shape = {"seq_len": seq_len, "batch_size": batch_size}
    report = convert(data, tmp_path / "plain", "llmbatch", shard_bytes=8000, **shape)
    rows = tokens[: report.num_records].reshape(-1, seq_len)
    plain = millstream.open(tmp_path / "plain")
    assert documents_of(plain) == rows.tolist()
    dropped = len(tokens) - report.num_records
    assert report.lost == (f"the last {dropped:,} tokens, less than a batch, are dropped",)
    convert(data, tmp_path / "mixed", "llmbatch", shard_bytes=8000, seed=1, **shape)
    mixed = documents_of(millstream.open(tmp_path / "mixed"))
    every = tokens[: len(tokens) // seq_len * seq_len].reshape(-1, seq_len).tolist()
    assert len(mixed) == len(rows)
    assert {tuple(row) for row in mixed} <= {tuple(row) for row in every}
    if len(rows) > 100:
        assert mixed != rows.tolist()
    view = plain.rows()
    assert view[1]["input_ids"].tolist() == rows[1, :-1].tolist()
    assert view[1]["labels"].tolist() == rows[1, 1:].tolist()


def test_ids_that_the_target_cannot_hold_are_refused_and_leave_nothing(tmp_path):
    with millstream.Writer(tmp_path / "in", fields=[("token", "<u4")]) as writer:
        writer.append([1, 1 << 31])
        writer.append([5])
    data = millstream.open(tmp_path / "in")
    with pytest.raises(UsageError, match="token id 2,147,483,648 does not fit int32"):
        convert(data, tmp_path / "wide", "megatron")
    with millstream.Writer(tmp_path / "negative", fields=[("token", "<i8")]) as writer:
        writer.append([1, -1])
    with pytest.raises(UsageError, match="token id -1 does not fit uint32"):
        convert(millstream.open(tmp_path / "negative"), tmp_path / "out", "datatrove")
    assert not (tmp_path / "out").exists()


KILLED = """
import os, signal, sys
import millstream
from millstream.converting import convert
from millstream.atomic import NewFile
finish, seen = NewFile.finish, []
def finish_or_die(self):
    seen.append(self)
    if len(seen) > {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    return finish(self)
NewFile.finish = finish_or_die
convert(millstream.open(sys.argv[1]), sys.argv[2], "{to}", shard_bytes=2000, workers=2)
"""


@pytest.mark.process
@pytest.mark.parametrize("to", ["millstream", "megatron"])
@pytest.mark.parametrize("after", [0, 1, 4, 7])
def test_a_run_that_was_killed_goes_on_and_ends_in_the_same_bytes(tmp_path, to, after):
    with millstream.Writer(tmp_path / "in", vocab_size=1 << 16) as writer:
        for k in range(100):
            writer.append(np.arange(k * 7, k * 7 + 100))
    data = millstream.open(tmp_path / "in")
    whole = convert(data, tmp_path / "whole", to, shard_bytes=2000, workers=1)
    out = tmp_path / "out"
    script = KILLED.format(to=to, after=after)
    process = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "in"), str(out)], check=False, timeout=60
    )
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(MillstreamError):
        millstream.open(out, format="millstream")
    report = convert(data, out, to, shard_bytes=2000, workers=2)
    assert [path.name for path in report.files] == [path.name for path in whole.files]
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    for name in names:
        assert filecmp.cmp(out / name, tmp_path / "whole" / name, shallow=False)


def test_shards_of_an_earlier_run_are_kept_only_if_it_was_the_same_conversion(tmp_path):
    data = millstream.open(GOLDEN / "datatrove" / "noeos.ds")
    convert(data, tmp_path / "out", "flat", shard_bytes=100)
    (tmp_path / "out" / ".finished.json").unlink()
    with pytest.raises(DatasetExistsError, match=r"is not empty \(00000\.bin is there\)"):
        convert(data, tmp_path / "out", "flat", shard_bytes=100)
    (tmp_path / "out" / "files.json").unlink()
    # As an older version marked it:
    (tmp_path / "out" / "unfinished.json").write_text('{"command": "convert", "wanted": {}}')
    with pytest.raises(
        DatasetExistsError, match="begun here: by another command, or another version"
    ):
        convert(data, tmp_path / "out", "flat", shard_bytes=100)


@pytest.mark.process
def test_two_conversions_into_one_directory_are_refused(tmp_path):
    data = millstream.open(GOLDEN / "datatrove" / "noeos.ds")
    script = (
        "import sys, time, millstream; from millstream.converting import convert\n"
        "def hold(progress): print('held', flush=True); time.sleep(60)\n"
        "convert(millstream.open(sys.argv[1]), sys.argv[2], 'flat', progress=hold)"
    )
    source = str(GOLDEN / "datatrove" / "noeos.ds")
    command = [sys.executable, "-c", script, source, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        try:
            with pytest.raises(DatasetExistsError, match="another process is writing"):
                convert(data, tmp_path / "out", "flat")
        finally:
            holder.kill()


def test_the_command_says_what_it_wrote_and_what_is_not_kept(tmp_path, capsys):
    source = str(GOLDEN / "datatrove" / "t2.ds")
    assert main(["convert", source, str(tmp_path / "out"), "--to", "megatron"]) == 0
    out = capsys.readouterr().out
    assert "322 of 322 records in 30 documents: 2 files" in out
    assert "not kept: megatron cannot store the fields loss_mask" in out
    assert main(["convert", source, str(tmp_path / "out"), "--to", "megatron"]) == 0
    again = capsys.readouterr().out
    assert again == f"{tmp_path}/out: already complete; nothing was written\n{out}"
    assert main(["convert", source, str(tmp_path / "out"), "--to", "flat"]) == 1
    assert "to is megatron there, flat here; choose another path" in capsys.readouterr().err
    assert main(["convert", source, str(tmp_path / "o"), "--to", "nothing"]) == 1
    assert "to is 'nothing'; it must be 'millstream'," in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    help_text = capsys.readouterr().out
    assert all(name in help_text for name in (*TARGETS, "--shard-bytes"))


@pytest.mark.process
def test_memory_stays_bounded(tmp_path):
    """300 MB through chunks of 8: what a thread holds is a few of them."""
    with (tmp_path / "t.bin").open("wb") as file:
        for k in range(30):
            file.write((np.arange(5_000_000) % 50_000 + k).astype("<u2").tobytes())
    script = (
        "import resource, sys, millstream\n"
        "from millstream.converting import convert\n"
        "data = millstream.open(sys.argv[1])\n"
        "data.records(0, 10)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "convert(data, sys.argv[2], 'datatrove', workers=2)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "t.bin"), str(tmp_path / "out")]
    grown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    assert int(grown) < 120_000  # KiB


def test_llmchnk_files_are_byte_for_byte_as_documented(tmp_path):
    with millstream.Writer(tmp_path / "in", fields=[("token", "<u4")]) as writer:
        for document in ([7, 8], [], [70_000]):
            writer.append(np.array(document, np.uint32))
    convert(millstream.open(tmp_path / "in"), tmp_path / "out", "llmchnk")
    assert (tmp_path / "out" / "00000.chnk").read_bytes().hex(" ", 4) == (
        "4c4c4d43 484e4b00 01000000 00000000 03000000 00000000 03000000 00000000 "  # the header
        "00000000 00000000 02000000 00000000 02000000 00000000 03000000 00000000 "  # 0 2 2 3
        "07000000 08000000 70110100"
    )


def test_an_empty_dataset_is_converted_only_if_allowed(tmp_path, out):
    with millstream.Writer(tmp_path / "in", vocab_size=9):
        pass
    data = millstream.open(tmp_path / "in")
    with pytest.raises(UsageError, match="the source has no tokens; nothing was written"):
        convert(data, out, "millstream")
    assert not out.parent.exists()
    convert(data, out, "millstream", allow_empty=True)
    assert millstream.open(out).num_records == 0


def test_sizes_and_options_that_convert_advises_work(tmp_path):
    with millstream.Writer(tmp_path / "in", vocab_size=9, eos_id=2) as writer:
        writer.extend([1, 2, 3, 2], [2, 2])
    data = millstream.open(tmp_path / "in")
    with pytest.raises(UsageError, match="choose batch_size=2 or less"):
        convert(data, tmp_path / "out", "llmbatch", seq_len=2, batch_size=9)
    with pytest.raises(UsageError, match="choose a smaller seq_len"):
        convert(data, tmp_path / "out", "llmbatch", seq_len=9, batch_size=1)
    lost = convert(data, tmp_path / "flat", "flat").lost
    remedy = "pass eos_id=2 (--eos-id 2) when you open the result"
    assert f"flat does not store document boundaries; {remedy}" in lost
    assert millstream.open(tmp_path / "flat", eos_id=2).num_documents == 2
