"""Block checksums of every file that we write: each flipped bit is found and located."""

import gzip
import json
import shutil

import numpy as np
import pytest

import millstream
from millstream.cli import main
from millstream.compat.zerobatch import write_batch_file
from millstream.errors import FormatError, MillstreamError
from millstream.formats.checksums import read_companion
from millstream.system.checksums import BLOCK_BYTES, block_checksums
from millstream.text.repacking import repack
from millstream.text.sources import Source
from millstream.text.tokenize.tokenizing import tokenize
from millstream.text.tokenizers.byte_tokenizer import ByteTokenizer
from millstream.text.training import train_tokenizer
from millstream.verifying import find_problems, verify_files

RANDOM = np.random.default_rng(5)
LENGTHS = RANDOM.integers(1, 60, 900).tolist()
VIEWS = {
    "best_fit": lambda data: data.packed(32),
    "bos_best_fit": lambda data: data.packed(32, policy="bos_best_fit"),
    "documents": lambda data: data.documents(32),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Two shards with metadata, and the rows of some views."""
    path = tmp_path_factory.mktemp("sound") / "data"
    writer = millstream.Writer(
        path, vocab_size=60_000, metadata=bytes, shard_bytes=80_000, tokenizer={"name": "gpt2"}
    )
    with writer:
        for length in LENGTHS:
            writer.append(RANDOM.integers(0, 60_000, length), b"about it")
    for view in VIEWS.values():
        len(view(millstream.open(path)))
    return path


@pytest.fixture
def path(sound, tmp_path, monkeypatch):
    """A copy, for a test to damage."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(sound, tmp_path / "data")


def files_in(path):
    return sorted(file for file in path.rglob("*") if file.is_file())


def flip(content, random):
    """The content with one bit flipped, and its byte."""
    place = int(random.integers(0, len(content)))
    flipped = bytearray(content)
    flipped[place] ^= 1 << int(random.integers(0, 8))
    return bytes(flipped), place


def problems_of(path):
    """What opening and verifying have to say."""
    try:
        return find_problems(millstream.open(path, check_sizes=False))
    except MillstreamError as error:
        return [str(error)]


@pytest.mark.slow
def test_every_flipped_bit_of_every_file_is_named(path):
    assert problems_of(path) == []
    random = np.random.default_rng(6)
    names = {file.name for file in files_in(path)}
    assert {"millstream.json", "millstream.checksums", "00001.checksums", "00001.metadata"} < names
    for file in files_in(path):
        content = file.read_bytes()
        for _ in range(20):
            flipped, place = flip(content, random)
            file.write_bytes(flipped)
            assert any(str(file) in problem for problem in problems_of(path)), (file.name, place)
        file.write_bytes(content)
    assert problems_of(path) == []


def test_damage_is_told_to_the_block(path):
    file = path / "00000.stream"
    content = bytearray(file.read_bytes())
    for block in (2, 3, 6):
        content[BLOCK_BYTES * block + 17] ^= 4
    content[-1] ^= 1
    file.write_bytes(content)
    problem, *_ = problems_of(path)
    last = (len(content) - 1) // BLOCK_BYTES * BLOCK_BYTES
    assert "damaged in bytes 8,192 to 16,383, 24,576 to 28,671, " in problem
    assert problem.endswith(f", {last:,} to {len(content) - 1:,}")


def test_many_damaged_places_are_counted(path):
    file = path / "00000.stream"
    content = np.fromfile(file, np.uint8)
    content[:: 2 * BLOCK_BYTES] ^= 1
    content.tofile(file)
    problem, *_ = problems_of(path)
    assert f"and in {len(content[:: 2 * BLOCK_BYTES]) - 5} more places" in problem


def rows_or_refusal(path, name, access):
    """All tokens of a view, or why they cannot be had."""
    try:
        view = VIEWS[name](millstream.open(path, access=access))
        loader = millstream.Loader(view, 8, tail="keep", seed=1, output="numpy")
        with loader:
            return [batch["input_ids"].tolist() for batch in loader]
    except FormatError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWS)
def test_stored_rows_with_a_flipped_bit_give_the_same_tokens_or_are_refused(path, name):
    expected = rows_or_refusal(path, name, "pread")
    assert isinstance(expected, list)
    file = VIEWS[name](millstream.open(path)).stored_in
    content = file.read_bytes()
    random = np.random.default_rng(7)
    num_refused = 0
    for k in range(100):
        flipped, place = flip(content, random)
        file.write_bytes(flipped)
        found = rows_or_refusal(path, name, "mmap" if k % 2 else "pread")
        if found != expected:
            first = 4096 + (place - 4096) // BLOCK_BYTES * BLOCK_BYTES
            assert str(file) in found
            assert "remove this file, and it will be made again" in found
            assert (
                f"bytes {first:,} to " in found
                or place > 4096 + json.loads(content[:4096])["body_bytes"]
            )
            num_refused += 1
    assert num_refused > 30
    file.unlink()
    assert rows_or_refusal(path, name, "pread") == expected


@pytest.mark.parametrize("name", ["best_fit", "documents"])
def test_a_row_of_a_sound_block_can_be_read_beside_a_damaged_one(path, name):
    view = VIEWS[name](millstream.open(path))
    assert view.rows.pieces.nbytes > 2 * BLOCK_BYTES
    expected = view.rows.pieces_of(0).tolist()
    content = bytearray(view.stored_in.read_bytes())
    content[4096 + BLOCK_BYTES] ^= 1
    view.stored_in.write_bytes(content)
    again = VIEWS[name](millstream.open(path))
    assert again.rows.pieces_of(0).tolist() == expected
    assert again[0]["input_ids"].tolist() == view[0]["input_ids"].tolist()
    row = next(r for r in range(len(again)) if refused(again.rows.pieces_of, r))
    assert refused(again.__getitem__, row)
    assert refused(again.rows.check)


def refused(function, *arguments):
    try:
        function(*arguments)
    except FormatError as error:
        return "bytes 8,192 to 12,287" in str(error)
    return False


def test_no_rows_are_made_of_a_damaged_table_of_documents(path):
    shutil.rmtree(path / "plans")
    offsets = np.memmap(path / "00000.documents", "<u8", "r+")
    longest = int(np.argmax(np.diff(offsets)))
    offsets[longest + 1] ^= 1  # still in order
    offsets.flush()
    assert np.all(np.diff(offsets.astype(np.int64)) >= 0)
    with pytest.raises(FormatError, match=r"00000\.documents: xxh3 is .*; run millstream verify"):
        len(millstream.open(path).packed(32))
    assert not list(path.glob("plans/*.rows"))


def test_no_rows_are_made_of_a_damaged_table_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (np.arange(4000, dtype="<u2") % 50).tofile(tmp_path / "train.bin")
    assert len(millstream.open(tmp_path / "train.bin", eos_id=7).packed(32)) > 0
    (table,) = (tmp_path / "cache").rglob("*.documents")
    content = bytearray(table.read_bytes())
    content[8 * 20] ^= 1
    table.write_bytes(content)
    with pytest.raises(FormatError, match="remove it, and it is made again"):
        len(millstream.open(tmp_path / "train.bin", eos_id=7).documents(32))


def remove_companions(path):
    for companion in path.glob("*.checksums"):
        companion.unlink()


def test_a_dataset_without_companions_is_valid_and_gets_the_same_ones_on_request(path):
    before = {file.name: file.read_bytes() for file in files_in(path)}
    fingerprint = millstream.open(path).fingerprint
    remove_companions(path)
    data = millstream.open(path)
    assert data.fingerprint == fingerprint
    assert find_problems(data) == []
    assert not any(path.glob("*.checksums"))
    assert find_problems(data, add_checksums=True) == []
    assert {file.name: file.read_bytes() for file in files_in(path)} == before


@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_checksums_are_not_made_of_a_damaged_shard(path, damage):
    remove_companions(path)
    file = path / "00001.metadata"
    content = file.read_bytes()
    file.write_bytes(b"!" + content[1:] if damage == "changed" else content[1:])
    if damage == "missing":
        file.unlink()
    assert len(find_problems(millstream.open(path, check_sizes=False), add_checksums=True)) == 1
    assert (path / "00000.checksums").exists()
    assert not (path / "00001.checksums").exists()


def test_a_companion_that_cannot_be_written_is_named(path):
    remove_companions(path)
    (path / "00000.checksums").mkdir()
    problems = find_problems(millstream.open(path), add_checksums=True)
    assert any(f"{path / '00000.checksums'}: cannot be written: " in each for each in problems)
    assert (path / "00001.checksums").is_file()


@pytest.mark.parametrize("how", ["of another shard", "damaged", "another file"])
def test_a_companion_that_does_not_fit_is_a_problem_with_a_remedy(path, how):
    companion = path / "00000.checksums"
    content = companion.read_bytes()
    if how == "of another shard":
        other = (path / "00001.checksums").read_bytes()
        companion.write_bytes(other)
    elif how == "damaged":
        companion.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        companion.write_text("something else")
    problems = problems_of(path)
    if how == "of another shard":
        assert problems == []  # it lists none of this shard's files, which is as good as none
    else:
        assert all(str(companion) in problem for problem in problems)
        assert all("millstream verify --add-checksums" in problem for problem in problems)
        assert len(problems) == 1
    assert find_problems(millstream.open(path), add_checksums=True) == []
    assert companion.read_bytes() == content


def test_a_manifest_that_somebody_changed_is_named_with_what_to_do(path):
    manifest = path / "millstream.json"
    manifest.write_text(manifest.read_text().replace("gpt2", "gpt4"))
    (problem,) = problems_of(path)
    assert problem.startswith(f"{manifest}: damaged in bytes 0 to ")
    assert "remove millstream.checksums" in problem
    (path / "millstream.checksums").unlink()
    assert problems_of(path) == []


def test_rows_in_the_user_s_cache_are_verified(path, tmp_path):
    shutil.rmtree(path / "plans")
    (path / "plans").write_text("in the way")
    file = millstream.open(path).packed(32).stored_in
    assert file.is_relative_to(tmp_path / "cache")
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)
    (problem,) = problems_of(path)
    assert problem.startswith(f"{file}: bytes 4,096 to 8,191 are damaged")


def test_rows_of_the_version_before_checksums_are_made_again(path):
    view = VIEWS["best_fit"](millstream.open(path))
    content = view.stored_in.read_bytes()
    header = json.loads(content[:4096])
    end = 4096 + header.pop("body_bytes")
    view.stored_in.write_bytes(
        json.dumps(header | {"version": 1}).encode().ljust(4096) + content[4096:end]
    )
    assert np.array_equal(VIEWS["best_fit"](millstream.open(path))[:]["labels"], view[:]["labels"])
    assert view.stored_in.read_bytes() == content


def assert_all_listed(path):
    """Every file of a directory but the marks of jobs is in a companion, and as that says."""
    listed = {}
    for companion in path.glob("*.checksums"):
        listed |= read_companion(companion)
    files = [file for file in path.glob("[!.]*") if file.is_file() and file.suffix != ".checksums"]
    assert sorted(listed) == sorted(file.name for file in files)
    for file in files:
        content = file.read_bytes()
        assert listed[file.name].written.size_bytes == len(content)
        assert np.array_equal(listed[file.name].blocks, block_checksums(content))


def test_parts_that_are_joined_have_checksums(tmp_path):
    for part in range(2):
        with millstream.Writer(tmp_path, vocab_size=100, part=part) as writer:
            writer.extend(np.arange(9000) % 100, [9000])
    millstream.finish(tmp_path, parts=2)
    assert_all_listed(tmp_path)
    assert problems_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("has_splits", [False, True])
def test_what_tokenize_writes_has_checksums(tmp_path, has_splits):
    lines = "".join(f"{k} words\n" for k in range(3000))
    (tmp_path / "text.txt").write_text(lines)
    out, split = tmp_path / "out", {"split": millstream.Split(fraction=0.1)} if has_splits else {}
    tokenize(tmp_path / "text.txt", ByteTokenizer(), out, shuffle=1, **split)
    parts = [out / "train", out / "val"] if has_splits else [out]
    for part in {out, *parts}:
        assert_all_listed(part)
    report = out / "report.json"
    report.write_text(report.read_text().replace("0", "1"))
    for part in parts:
        (problem,) = problems_of(part)
        assert problem.startswith(f"{report}: damaged in bytes 0 to ")


@pytest.mark.slow
@pytest.mark.parametrize("to", ["millstream", "datatrove", "megatron", "llmbatch", "llmc", "flat"])
def test_what_convert_writes_has_checksums_and_opens_by_a_pattern(path, tmp_path, to):
    shape = {"seq_len": 16, "batch_size": 4} if to == "llmbatch" else {}
    with millstream.Writer(tmp_path / "plain", vocab_size=60_000) as writer:
        for length in LENGTHS:
            writer.append(np.arange(length))
    data = millstream.open(tmp_path / "plain")
    millstream.convert(data, tmp_path / to, to, shard_bytes=30_000, **shape)
    assert_all_listed(tmp_path / to)
    assert problems_of(tmp_path / to) == []
    if to not in ("millstream", "flat"):
        by_pattern = millstream.open(str(tmp_path / to / "*"))
        assert by_pattern.num_records == millstream.open(tmp_path / to).num_records
    file = max(files_in(tmp_path / to), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[BLOCK_BYTES + 2] ^= 1
    file.write_bytes(content)
    problems = problems_of(tmp_path / to)
    assert any(f"{file}: " in each and "in bytes 4,096 to 8,191" in each for each in problems)


def test_a_batch_file_has_a_companion_and_can_do_without(tmp_path):
    file = tmp_path / "train.batch"
    write_batch_file(file, np.arange(40_000).reshape(-1, 10) % 7, 8, 10, 0)
    companion = tmp_path / "train.batch.checksums"
    content = companion.read_bytes()
    assert list(read_companion(companion)) == ["train.batch"]
    companion.unlink()
    assert problems_of(file) == []
    assert find_problems(millstream.open(file), add_checksums=True) == []
    assert companion.read_bytes() == content
    damaged = bytearray(file.read_bytes())
    damaged[4096 + 3] ^= 1
    file.write_bytes(damaged)
    (problem,) = problems_of(file)
    assert "damaged in bytes 4,096 to 8,191" in problem
    assert "remove train.batch.checksums" in problem


@pytest.mark.parametrize("to", ["parquet", "jsonl", "text"])
def test_what_repack_writes_has_checksums_and_is_read_again_by_a_pattern(tmp_path, to):
    (tmp_path / "text.txt").write_text("some words\n" * 3000)
    repack(tmp_path / "text.txt", tmp_path / "out", to=to, shard_chars=5000)
    assert len(files_in(tmp_path / "out")) > 3
    assert_all_listed(tmp_path / "out")
    again = repack(str(tmp_path / "out" / "*"), tmp_path / "again", to=to)
    assert again.num_documents == 3000
    shards = sorted((tmp_path / "out").glob("shard_*[!s]"))
    assert verify_files(tmp_path / "out", shards) == ([], [])
    assert main(["verify", str(tmp_path / "out")]) == 0
    file = max(files_in(tmp_path / "out"))
    content = file.read_bytes()
    file.write_bytes(flip(content, np.random.default_rng(8))[0])
    (problem,) = verify_files(tmp_path / "out", shards).problems
    assert problem.startswith(f"{file}: damaged in bytes 0 to {len(content) - 1:,}")
    assert main(["verify", str(tmp_path / "out")]) == 1


@pytest.mark.parametrize("to", ["parquet", "jsonl", "text"])
def test_text_shards_without_checksums_are_named_and_get_them_on_request(tmp_path, to, capsys):
    (tmp_path / "text.txt").write_text("some words\n" * 3000)
    out = tmp_path / "out"
    repack(tmp_path / "text.txt", out, to=to, shard_chars=10_000)
    before = {file.name: file.read_bytes() for file in files_in(out)}
    (out / "shard_00001.checksums").unlink()
    assert main(["verify", str(out)]) == 0
    said = capsys.readouterr().out
    assert "2 have correct checksums; not checked, because they have none: shard_00001." in said
    for companion in out.glob("*.checksums"):
        companion.unlink()
    assert main(["verify", str(out)]) == 0
    assert "0 have correct checksums; not checked" in capsys.readouterr().out
    assert main(["verify", "--add-checksums", str(out)]) == 0
    assert "3 text shards: all checksums are correct" in capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in files_in(out)} == before
    for shard in out.glob("shard_*[!s]"):
        shard.unlink()
    assert main(["verify", str(out)]) == 1
    assert "missing; copy it again" in capsys.readouterr().out


def test_damaged_checksums_of_several_text_shards_are_made_again(tmp_path):
    with gzip.open(tmp_path / "text.txt.gz", "wt") as file:
        file.write("some words\n" * 3000)
    out = tmp_path / "out"
    repack(tmp_path / "text.txt.gz", out, shard_chars=10_000)
    assert len(list(out.glob("*.checksums"))) == 1  # of a file that cannot be cut
    (out / "shard_00000.checksums").write_text("damaged")
    assert main(["verify", str(out)]) == 1
    assert main(["verify", "--add-checksums", str(out)]) == 0
    assert_all_listed(out)


@pytest.mark.parametrize("how", ["longer", "missing"])
def test_text_shards_without_checksums_have_the_size_that_repack_noted(tmp_path, how, capsys):
    (tmp_path / "text.txt").write_text("some words\n" * 3000)
    out = tmp_path / "out"
    repack(tmp_path / "text.txt", out, to="jsonl", shard_chars=10_000)
    (out / "shard_00001.checksums").unlink()
    shard = out / "shard_00001.jsonl.zst"
    size_bytes = shard.stat().st_size
    if how == "longer":
        shard.write_bytes(shard.read_bytes() + b"x")
    else:
        shard.unlink()
    assert main(["verify", "--add-checksums", str(out)]) == 1
    said = capsys.readouterr().out
    is_there = f"{size_bytes + 1} bytes" if how == "longer" else "missing"
    assert f"{shard}: {is_there}, expected {size_bytes} bytes; copy or write it again" in said
    assert not (out / "shard_00001.checksums").exists()
    (out / ".finished.json").write_text('{"files": {"shard_00001.jsonl.zst": []}}')
    assert main(["verify", str(out)]) == 1
    assert "expected [] bytes" in capsys.readouterr().out


@pytest.fixture(scope="module")
def sound_others(tmp_path_factory):
    """A dataset with a report and a tokenizer, and one with a list of files."""
    path = tmp_path_factory.mktemp("others")
    (path / "text.txt").write_text("some words\n" * 300)
    train_tokenizer(Source(path / "text.txt"), 260, specials=["<|bos|>"], out=path / "tok")
    tokenize(
        path / "text.txt",
        path / "tok",
        path / "out",
        split=millstream.Split(fraction=0.1),
        workers=1,
    )
    millstream.convert(millstream.open(path / "out" / "train"), path / "flat", "flat")
    return path


@pytest.fixture
def with_others(sound_others, tmp_path):
    """A copy, for a test to damage."""
    return shutil.copytree(sound_others, tmp_path / "copy")


OTHERS = {
    "out/report.json": "out/train",
    "out/train/tokenizer.json": "out/train",
    "out/train/tokenizer_config.json": "out/train",
    "flat/files.json": "flat",
}


@pytest.mark.parametrize("how", ["damaged", "removed"])
@pytest.mark.parametrize("name", OTHERS)
def test_checksums_of_any_file_are_made_again_as_is_said(with_others, name, how):
    companion = (with_others / name).with_suffix(".checksums")
    content, data = companion.read_bytes(), with_others / OTHERS[name]
    companion.write_bytes(content[:-1])
    (problem,) = problems_of(data)
    assert problem.startswith(f"{companion}: ")
    assert problem.endswith("remove it and run millstream verify --add-checksums to make a new one")
    if how == "removed":
        companion.unlink()
    assert find_problems(millstream.open(data), add_checksums=True) == []
    assert companion.read_bytes() == content


@pytest.mark.parametrize("name", ["out/report.json", "out/train/tokenizer.json"])
def test_a_missing_file_is_not_to_be_made_again_of_its_checksums(with_others, name):
    file = with_others / name
    file.unlink()
    (problem,) = problems_of(with_others / "out" / "train")
    checksums = f"{file.stem}.checksums"
    assert problem.startswith(f"{file}: ")
    assert problem.endswith(f"copy it again, or, if you removed it on purpose, remove {checksums}")
    companion = file.with_suffix(".checksums")
    companion.write_bytes(companion.read_bytes()[:-1])
    (problem,) = find_problems(millstream.open(with_others / "out" / "train"), add_checksums=True)
    assert problem.endswith("its files are missing too: copy them again, or remove it")


def test_a_report_of_somebody_else_gets_no_checksums(path):
    (path / "report.json").write_text("{}")
    assert find_problems(millstream.open(path), add_checksums=True) == []
    assert not (path / "report.checksums").exists()


def test_verify_says_that_it_compared_the_checksums_that_it_added(tmp_path, capsys):
    np.arange(3000, dtype="<u2").tofile(tmp_path / "train.bin")
    arguments = ["verify", str(tmp_path / "train.bin"), "--format", "flat:uint16"]
    assert main(arguments) == 0
    assert "bytes: sizes and documents are correct" in capsys.readouterr().out
    assert main([*arguments, "--add-checksums"]) == 0
    assert "bytes: sizes, checksums and documents are correct" in capsys.readouterr().out
    (tmp_path / "train.bin").write_bytes(bytes(6000))
    assert main(arguments) == 1
    assert "1 problem;" in capsys.readouterr().out


def test_a_companion_by_itself_is_no_dataset(path):
    with pytest.raises(FormatError, match="is a companion of other files"):
        millstream.open(path / "00000.checksums")
