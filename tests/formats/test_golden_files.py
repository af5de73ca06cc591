"""Files written by the real software (see golden/formats/README.md), opened in place."""

import json
import os
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xxhash

import millstream
from millstream.errors import FormatError, SplitsError, UsageError
from millstream.testing import assert_resumes_exactly
from millstream.verifying import find_problems
from millstream.write.llmbatch import write_batch_file
from tests.helpers.datasets import documents_of, tokens_of
from tests.helpers.golden_files import EXPECTED, GOLDEN, path_of

# What we refuse beyond what must be refused: no single type, rows inside rows, several splits.
REFUSED = {"mds/dyn_dtype", "mds/rows_uint16", "arrow/hf_dict"}
READ = [
    name
    for name, entry in EXPECTED.items()
    if "refuse" not in entry and name not in REFUSED and entry["documents"] is not None
]

FINGERPRINTS = {
    "arrow/list_int32.arrow": "f7cb5a1c8dedfd67",
    "arrow/list_uint16.parquet": "e8cec4a43720100a",
    "datatrove/noeos.ds": "dd69de28c4d743d0",
    "dolma/olmo_tokens.npy": "e8494faaaec09975",
    "litdata/numpy_uint16": "127c090216c6599d",
    "mds/fixed_int32": "968674b2591b01c5",
    "megatron/dtype_uint16": "0089e84dcd341240",
}


def open_golden(name, **options):
    """Files that do not know their documents are told what ends or starts one."""
    entry = EXPECTED[name]
    knows = name.split("/")[0] not in ("llmc",) and name != "datatrove/bare.ds"
    if not knows:
        options |= {"bos_id": entry["bos"]} if entry.get("bos") else {"eos_id": entry["eos"]}
    path = path_of(name)
    if name == "llmc/modded":  # a directory of training and validation files
        return millstream.open(sorted(path.glob("*.bin")), **options)
    return millstream.open(path, **options)


def expected_documents(name):
    entry = EXPECTED[name]
    documents = entry["documents"]
    if name == "llmc/modded":  # its files are cut anywhere, and the training files come first
        files = sorted(entry["files"].items())
        documents = []
        for _, tokens in files:
            starts = [k for k, token in enumerate(tokens) if k == 0 or token == entry["bos"]]
            documents += [tokens[a:b] for a, b in pairwise([*starts, len(tokens)])]
    return [document for document in documents if document or not name.startswith("dolma/numpy")]


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("access", ["pread", "mmap"])
def test_documents_are_those_that_the_software_wrote(name, access):
    data = open_golden(name, access=access)
    assert documents_of(data) == expected_documents(name)
    stored = data.fields[(data.fields.names or ("",))[0]]
    assert stored == np.dtype(EXPECTED[name]["dtype"])
    assert find_problems(data) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_every_view_and_order_works_on_every_format(name):
    data = open_golden(name)
    if data.num_records < 40 or "token" not in data.fields.names:
        pytest.skip("too small for a batch, or not of tokens")
    stream = sum(expected_documents(name), [])
    shuffles = [True, False, millstream.BlockShuffle(2)]
    for shuffle in shuffles:
        view = data.windows(7, extras=("position_ids", "document_ids"), loss_mask=False)
        loader = millstream.Loader(view, 2, seed=1, shuffle=shuffle, output="numpy")
        for batch in loader:
            for row, sample in enumerate(loader.samples().tolist()):
                start = sample * 7
                assert batch["input_ids"][row].tolist() == stream[start : start + 7]
                assert batch["labels"][row].tolist() == stream[start + 1 : start + 8]
    lengths = [len(document) for document in expected_documents(name)]
    owners = np.repeat(np.arange(len(lengths)), lengths)
    batch = data.windows(7, extras="document_ids").read([0, 1])
    assert batch["document_ids"].reshape(-1).tolist() == owners[:14].tolist()
    packed = data.packed(16)
    inputs = np.concatenate([packed[k]["input_ids"] for k in range(len(packed))])
    mask = np.concatenate([packed[k]["position_ids"] for k in range(len(packed))])
    assert mask.size == inputs.size >= len(stream)
    assert packed.report.is_lossless
    one = data.documents(8, overflow="split")
    shown = [tokens_of(one[k]["input_ids"][one[k]["attention_mask"] == 1]) for k in range(len(one))]
    assert sorted(sum(shown, [])) == sorted(stream)
    assert_resumes_exactly(lambda: millstream.Loader(data.windows(7), 2, seed=3, output="numpy"))


REFUSALS = [name for name in EXPECTED if "refuse" in EXPECTED[name] or name in REFUSED]


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_tokens_is_refused(name):
    with pytest.raises((FormatError, SplitsError)) as refusal:
        millstream.open(path_of(name))
    assert str(path_of(name)) in str(refusal.value)


@pytest.mark.parametrize(
    "name", [name for name in READ if name.startswith("datatrove") and "loss" in EXPECTED[name]]
)
@pytest.mark.parametrize("access", ["pread", "mmap"])
def test_loss_masks_of_datatrove_are_a_field_and_mask_labels(name, access):
    data = open_golden(name, access=access)
    masks = sum(EXPECTED[name]["loss"], [])
    assert data.records(0, data.num_records)["loss_mask"].tolist() == masks
    view = data.windows(4, loss_mask="loss_mask")
    stream = sum(expected_documents(name), [])
    for k in range(len(view)):
        sample = view[k]
        assert sample["loss_mask"].tolist() == masks[4 * k : 4 * k + 4]
        assert sample["input_ids"].tolist() == stream[4 * k : 4 * k + 4]
        assert sample["labels"].tolist() == [
            stream[i] if masks[i] else -100 for i in range(4 * k + 1, 4 * k + 5)
        ]
    rows = data.packed(6, loss_mask="loss_mask")
    for k in range(len(rows)):
        row = rows[k]
        ignored = row["labels"][:-1] == -100
        shown = row["loss_mask"][1:] == 0
        assert (ignored | ~shown).all()  # what is not to be trained on is ignored


def test_megatron_documents_may_also_be_its_sequences():
    name = "megatron/multi"
    data = millstream.open(path_of(name), format="megatron-sequences")
    assert documents_of(data) == sum(EXPECTED[name]["sequences"], [])


def test_several_files_are_one_dataset():
    names = ["megatron/pair_a", "megatron/pair_b"]
    data = millstream.open([path_of(name) for name in names])
    assert documents_of(data) == sum((expected_documents(name) for name in names), [])
    merged = expected_documents("megatron/merged")
    assert documents_of(data) == merged
    folder = millstream.open(GOLDEN / "datatrove" / "folder")
    assert len(folder.manifests) == 4


def test_what_a_checkpoint_says_of_data_and_views():
    """Golden values: a state of an earlier release loads only if its view is still called this."""
    found = {name: open_golden(name).fingerprint for name in FINGERPRINTS}
    assert found == FINGERPRINTS
    data = open_golden("datatrove/noeos.ds")
    views = {
        "windows-v1 of 9 every 8": data.windows(8),
        "windows-v1 of 9 every 9": data.windows(8, overlap=False),
        "best_fit-16-v1 of a5b5bfbb90391616": data.packed(16),
        "best_fit_drop-16-v1 of a5b5bfbb90391616": data.packed(16, overflow="drop"),
        "bos_best_fit-16-buffer9-v1 of a5b5bfbb90391616": data.packed(
            16, policy="bos_best_fit", buffer_size=9
        ),
        "truncate-16-v1 of a5b5bfbb90391616": data.documents(16),
        "split-by-length-16-v1 of a5b5bfbb90391616": data.documents(
            16, overflow="split", by_length=True
        ),
    }
    for name, view in views.items():
        assert view.fingerprint == f"{name} in dd69de28c4d743d0"


def test_fingerprints_change_with_the_data_and_not_with_the_place(tmp_path):
    tokens = np.arange(100_000, dtype="<u2")
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    tokens.tofile(tmp_path / "a" / "x.bin")
    tokens.tofile(tmp_path / "b" / "y.bin")
    tokens[::-1].tofile(tmp_path / "c" / "x.bin")
    a, b, c = (millstream.open(tmp_path / name).fingerprint for name in ("a", "b", "c"))
    assert a == b != c


def test_a_list_of_files_pins_a_dataset_until_one_of_them_changes(tmp_path):
    for name in ("b", "a"):
        np.arange(100, dtype="<u2").tofile(tmp_path / f"{name}.bin")
    listed = tmp_path / "lists" / "tokens.json"
    first = millstream.open(tmp_path / "*.bin", file_list=listed)
    assert [entry["size"] for entry in json.loads(listed.read_text())] == [200, 200]
    np.arange(100, dtype="<u2").tofile(tmp_path / "c.bin")
    again = millstream.open(tmp_path / "*.bin", file_list=listed)
    assert first.num_records == again.num_records == 200
    assert millstream.open(listed, allow_outside=True).num_records == 200
    np.arange(50, dtype="<u2").tofile(tmp_path / "a.bin")
    with pytest.raises(FormatError, match=r"a\.bin: 100 bytes, but tokens.json says 200; copy it"):
        millstream.open(listed, allow_outside=True)
    assert millstream.open(tmp_path / "*.bin", file_list=listed).num_records == 250


def test_checksums_of_a_list_are_verified(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.bin")
    checksum = xxhash.xxh3_64_hexdigest((tmp_path / "a.bin").read_bytes())
    entry = {"path": "a.bin", "size": 200, "xxh3": checksum}
    (tmp_path / "files.json").write_text(json.dumps([entry]))
    data = millstream.open(tmp_path)
    assert data.shards[0].files[".stream"].xxh3 == checksum
    assert find_problems(data) == []
    with (tmp_path / "a.bin").open("r+b") as file:
        file.write(b"!")
    assert [checksum in problem for problem in find_problems(millstream.open(tmp_path))] == [True]


def test_label_masks_of_olmo_are_given_beside_the_tokens():
    name = "dolma/olmo_tokens.npy"
    entry, path = EXPECTED[name], path_of(name)
    mask = path.with_name(entry["label_mask_file"])
    data = millstream.open(path, loss_masks=mask)
    assert data.records(0, data.num_records)["loss_mask"].tolist() == sum(entry["label_mask"], [])
    labels = data.windows(5, loss_mask="loss_mask")[0]["labels"]
    stream, masks = sum(expected_documents(name), []), sum(entry["label_mask"], [])
    assert labels.tolist() == [stream[i] if masks[i] else -100 for i in range(1, 6)]
    with pytest.raises(UsageError, match="2 loss_masks for 1 token files"):
        millstream.open(path, loss_masks=[mask, mask])
    with pytest.raises(FormatError, match=r"too long: \d+ tokens need"):
        millstream.open(path, loss_masks=path)


def test_a_shape_that_only_the_padding_hides_is_found_by_verify(tmp_path):
    write_batch_file(tmp_path / "x.batch", np.arange(1, 351).reshape(50, 7), 5, 7, seed=0)
    assert find_problems(millstream.open(tmp_path / "x.batch")) == []
    with (tmp_path / "x.batch").open("r+b") as file:
        file.seek(12)
        file.write((4).to_bytes(4, "little"))  # rows of a batch, which were 5
    (tmp_path / "x.batch.checksums").unlink()
    (problem,) = find_problems(millstream.open(tmp_path / "x.batch"))
    assert "the padding of batches is not zero" in problem


def test_a_data_file_that_became_a_pipe_is_an_error_and_no_wait(tmp_path):
    path = tmp_path / "x.bin"
    np.arange(100, dtype="<u2").tofile(path)
    data = millstream.open(path)
    path.unlink()
    os.mkfifo(path)
    assert "x.bin: 0 bytes, too short: the manifest says 200" in find_problems(data)[0]
    with pytest.raises(FormatError, match="is not a regular file"):
        _ = data.fingerprint
    with pytest.raises(FormatError, match="no longer a file of 200 bytes"):
        data.records(0, 10)


def test_a_format_that_a_directory_does_not_have_is_said(tmp_path):
    with millstream.Writer(tmp_path, vocab_size=9) as writer:
        writer.append([1])
    with pytest.raises(FileNotFoundError, match="contains no flat files"):
        millstream.open(tmp_path, format="flat")


def write_fairseq(prefix, documents, dtype, code):
    """As the `MMapIndexedDatasetBuilder` of fairseq does: nothing is said of documents."""
    lengths = [len(document) for document in documents]
    starts = np.cumsum([0, *lengths])[:-1] * np.dtype(dtype).itemsize
    np.concatenate(documents).astype(dtype).tofile(f"{prefix}.bin")
    header = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, code, len(documents))
    index = header + np.array(lengths, "<i4").tobytes() + starts.astype("<i8").tobytes()
    Path(f"{prefix}.idx").write_bytes(index)
    return index


@pytest.mark.parametrize(("dtype", "code"), [("<u2", 8), ("<u4", 9), ("<i8", 5), ("<i4", 4)])
def test_sequences_of_fairseq_are_documents(tmp_path, dtype, code):
    documents = [[850, 636, 511], [269], [], [307, 40, 75, 16, 175, 813, 649]]
    index = write_fairseq(tmp_path / "train.en-de.en", documents, dtype, code)
    if dtype == "<u2":  # the first bytes that fairseq itself wrote for these
        assert (
            index[:38].hex()
            == (
                "4d4d4944494458000001000000000000000804000000000000000300000001000000000000000700"[
                    :76
                ]
            )
        )
    for name in ("train.en-de.en.bin", "train.en-de.en.idx", "train.en-de.en"):
        data = millstream.open(tmp_path / name)
        assert documents_of(data) == documents
        assert data.fields["token"] == np.dtype(dtype)
        assert find_problems(data) == []
    (tmp_path / "train.en-de.en.idx").write_bytes(index[:-1])
    with pytest.raises(FormatError, match=r"train\.en-de\.en\.idx"):
        millstream.open(tmp_path)


def test_an_older_index_of_fairseq_says_how_to_write_a_new_one(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(8))
    (tmp_path / "a.idx").write_bytes(b"TNTIDX\0\0" + bytes(64))
    with pytest.raises(FormatError, match="binarize again with --dataset-impl mmap"):
        millstream.open(tmp_path / "a.bin")


def test_a_prefix_of_megatron_is_opened_as_its_tokens():
    for name in ("pair_a", "multi"):
        prefix, tokens = (millstream.open(GOLDEN / "megatron" / f"{name}{s}") for s in ("", ".bin"))
        assert prefix.fingerprint == tokens.fingerprint
        assert documents_of(prefix) == documents_of(tokens)
