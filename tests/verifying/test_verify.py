"""`verify` finds and names every kind of damage, and passes sound data."""

import json
import os

import numpy as np
import pytest
import xxhash

import millstream
from millstream.verifying import find_problems

ALL_FILES = [".stream", ".documents", ".index", ".metadata"]
NO_METADATA = 0xFFFF_FFFF


@pytest.fixture
def path(tmp_path):
    """Two shards of 4 records each, with two documents and two spans in each."""
    with millstream.Writer(
        tmp_path / "data", vocab_size=100, metadata=bytes, shard_bytes=13
    ) as writer:
        for k in range(4):
            writer.append([k, 99], b"metadata")
    return tmp_path / "data"


def replace(path, suffix, content, name="00001"):
    """RunShape a file and its checksum in the manifest: damage that only a look inside can find."""
    content = content.tobytes() if isinstance(content, np.ndarray) else content
    (path / f"{name}{suffix}").write_bytes(content)
    manifest = json.loads((path / "millstream.json").read_text())
    entry = next(shard for shard in manifest["shards"] if shard["name"] == name)
    entry["files"][suffix] = {
        "bytes": len(content),
        "xxh3": xxhash.xxh3_64(content).hexdigest(),
    }
    (path / "millstream.json").write_text(json.dumps(manifest))
    remove_checksums(path)


def remove_checksums(path):
    """Make the dataset one of an older version."""
    for companion in path.glob("*.checksums"):
        companion.unlink()


def problems_of(path):
    return find_problems(millstream.open(path))


def test_sound_data_have_no_problems(path):
    data = millstream.open(path)
    assert [shard.num_records for shard in data.shards] == [4, 4]
    assert find_problems(data) == []


def test_progress_counts_every_byte(path):
    data = millstream.open(path)
    seen = []
    find_problems(data, progress=seen.append)
    assert seen[-1].done == seen[-1].total == data.size_bytes


@pytest.mark.parametrize("suffix", ALL_FILES)
def test_one_changed_bit_anywhere_is_found(path, suffix):
    file = path / f"00001{suffix}"
    sound = file.read_bytes()
    data = millstream.open(path)
    for place in range(len(sound)):
        damaged = bytearray(sound)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        problems = find_problems(data)
        assert any(f"00001{suffix}: xxh3 is " in problem for problem in problems), place
        assert all("00001" in problem for problem in problems)
    file.write_bytes(sound)
    assert find_problems(data) == []


@pytest.mark.parametrize("suffix", ALL_FILES)
@pytest.mark.parametrize(("change", "word"), [(-1, "short"), (1, "long")])
def test_a_file_of_another_size_is_reported_with_both_sizes(path, suffix, change, word):
    data = millstream.open(path)
    file = path / f"00001{suffix}"
    size = file.stat().st_size
    os.truncate(file, size + change)
    (problem,) = find_problems(data)
    assert f"{file}: {size + change:,} bytes, too {word}: the manifest says {size:,}" in problem


@pytest.mark.parametrize("suffix", ALL_FILES)
def test_a_missing_file_is_reported_and_the_others_are_still_checked(path, suffix):
    data = millstream.open(path)
    (path / f"00000{suffix}").unlink()
    (path / "00001.stream").write_bytes(bytes(24))
    problems = find_problems(data)
    assert len(problems) >= 2
    assert f"00000{suffix}: missing" in problems[0]
    assert "00001.stream" in problems[-1]


@pytest.mark.parametrize(
    ("suffix", "offsets", "message"),
    [
        (".documents", [0, 3, 2], "offsets go backwards"),
        (".documents", [0, 2, 3], "the last offset is 3, expected 4"),
        (".documents", [0, 2, 5], "the last offset is 5, expected 4"),
        (".documents", [0, 5, 4], "offsets go backwards"),
        (".documents", [1, 2, 4], "first offset is 1"),
        (".index", [0, 17, 16], "offsets go backwards"),
        (".index", [0, 8, 15], "the last offset is 15, expected 16"),
        (".index", [8, 8, 16], "first offset is 8"),
        (".index", [0, (1 << 64) - 1, 16], "offsets go backwards"),
    ],
)
def test_broken_offsets_are_found_behind_a_right_checksum(path, suffix, offsets, message):
    replace(path, suffix, np.array(offsets, "<u8"))
    problems = problems_of(path)
    assert any(f"00001{suffix}" in problem and message in problem for problem in problems)


def test_a_token_over_the_vocabulary_is_found_behind_a_right_checksum(path):
    record = millstream.open(path).fields
    records = np.fromfile(path / "00001.stream", record)
    records["token"][2] = 100
    replace(path, ".stream", records)
    (problem,) = problems_of(path)
    assert "00001.stream: token id 100 is outside the vocabulary (100)" in problem


def test_a_negative_token_is_reported_as_what_it_is(tmp_path):
    with millstream.Writer(tmp_path, fields="<i4", vocab_size=100) as writer:
        writer.append([1, 2, 3])
    replace(tmp_path, ".stream", np.array([1, -7, 3], "<i4"), name="00000")
    (problem,) = problems_of(tmp_path)
    assert "-7" in problem


def test_a_metadata_id_without_metadata_is_found_behind_a_right_checksum(path):
    record = millstream.open(path).fields
    records = np.fromfile(path / "00001.stream", record)
    records["metadata_id"][:] = [0, NO_METADATA, 1, 1]
    replace(path, ".stream", records)
    assert problems_of(path) == []
    records["metadata_id"][3] = 2
    replace(path, ".stream", records)
    (problem,) = problems_of(path)
    assert "00001.stream: metadata_id exceeds the 2 spans" in problem


def test_every_directory_is_held_to_its_own_vocabulary(path, tmp_path):
    with millstream.Writer(tmp_path / "other", vocab_size=500, metadata=bytes) as writer:
        writer.append([400])
    assert find_problems(millstream.open([path, tmp_path / "other"])) == []
    records = np.fromfile(path / "00001.stream", millstream.open(path).fields)
    records["token"][2] = 300
    replace(path, ".stream", records)
    assert any(
        "300" in problem for problem in find_problems(millstream.open([path, tmp_path / "other"]))
    )


def test_files_larger_than_a_chunk_are_checked_to_the_end(tmp_path):
    tokens = np.full(9_000_000, 7, np.uint16)
    with millstream.Writer(tmp_path, vocab_size=100) as writer:
        writer.append(tokens)
    assert problems_of(tmp_path) == []
    tokens[-1] = 100
    replace(tmp_path, ".stream", tokens, name="00000")
    (problem,) = problems_of(tmp_path)
    assert "token id 100" in problem


def test_a_path_is_verified_with_all_its_splits(tmp_path):
    corpus = tmp_path / "corpus"
    for split in ("train", "val"):
        with millstream.Writer(corpus / split, vocab_size=10) as writer:
            writer.append([1, 2, 3])
    report = millstream.verify(corpus)
    assert report.is_sound
    assert (report.num_files, report.unlisted) == (4, ())
    assert report.size_bytes == sum(
        millstream.open(corpus / s).size_bytes for s in ("train", "val")
    )
    (corpus / "val" / "00000.stream").write_bytes(b"\0\0")
    (problem,) = millstream.verify(corpus).problems
    assert f"{corpus / 'val' / '00000.stream'}: 2 bytes" in problem


def test_files_without_checksums_are_listed(path, tmp_path):
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "x.bin")
    data = millstream.open(tmp_path / "x.bin", format="flat:uint16", check_sizes=False)
    assert millstream.verify(data).unlisted == (tmp_path / "x.bin",)
    assert millstream.verify(data, add_checksums=True).unlisted == ()
    assert millstream.verify(path).unlisted == ()


def test_text_shards_are_verified_like_datasets(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    millstream.repack(tmp_path / "a.txt", tmp_path / "out", to="text")
    report = millstream.verify(tmp_path / "out")
    assert report.is_sound
    assert report.num_files == 1
    (shard,) = (tmp_path / "out").glob("shard_*.txt*")
    shard.unlink()
    assert str(shard) in millstream.verify(tmp_path / "out").problems[0]


def test_a_source_that_cannot_be_opened_is_an_error(tmp_path):
    with pytest.raises(millstream.MissingDataError):
        millstream.verify(tmp_path / "nothing")
