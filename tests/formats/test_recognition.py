"""Files without tokens are recognised by content, even with format="flat"."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import re
import shlex
import sqlite3
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import millstream
from millstream.cli import main
from millstream.errors import FormatError, MillstreamError, MissingDataError, UsageError
from millstream.formats.files import Head
from millstream.formats.recognition import recognise
from millstream.formats.signatures import is_arrow_stream

pa = pytest.importorskip("pyarrow")
TOKENS = np.random.default_rng(0).integers(16, 50_000, 3000)
JSONL = b'{"text": "hello world"}\n' * 50
# The start of a file by array_record 0.8.6, and of every file of Riegeli.
RIEGELI = bytes.fromhex(
    "83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9"
    "0000000000000000e19f13c0e9b1c37273000000000000000000000000000000"
)


def in_memory(write):
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def tar_of(names):
    def write(file):
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size = 5
                archive.addfile(member, io.BytesIO(b"hello"))

    return in_memory(write)


def zip_of(name):
    def write(file):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(name, "x" * 99)

    return in_memory(write)


def crc32c(content):
    crc = (1 << 32) - 1
    for byte in content:
        for bit in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if (crc ^ byte >> bit) & 1 else 0)
    return crc ^ ((1 << 32) - 1)


def tfrecord(content):
    def masked(part):
        crc = crc32c(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + masked(content)


def safetensors():
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


def sqlite(path):
    with sqlite3.connect(path) as connection:
        connection.execute("create table t(a)")
    connection.close()
    return path.read_bytes()


def parquet(**columns):
    import pyarrow.parquet as pq

    return in_memory(lambda file: pq.write_table(pa.table(columns), file))


PICKLED = ([1, 2], TOKENS.tolist(), {"a": bytes(9999)}, {"a": TOKENS})
KINDS = {
    "tar": (tar_of(["000000.txt", "000001.txt"]), "a tar archive.*; unpack it"),
    "zip": (zip_of("a/b.txt"), "a zip archive; unpack it"),
    "npz": (in_memory(lambda file: np.savez(file, a=TOKENS)), r"a NumPy archive \(\.npz\)"),
    "pt": (in_memory(lambda file: torch.save({"a": torch.arange(9)}, file)), "torch.load"),
    "old pt": (
        in_memory(
            lambda file: torch.save(torch.arange(9), file, _use_new_zipfile_serialization=False)
        ),
        "a PyTorch checkpoint",
    ),
    **{
        f"pickle {protocol} {number}": (
            pickle.dumps(value, protocol),
            "a pickle; if you trust it, load it",
        )
        for protocol in range(6)
        for number, value in enumerate(PICKLED)
    },
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file; read it with h5py"),
    "gzip": (gzip.compress(TOKENS.tobytes()), r"compressed \(gzip\); decompress it"),
    "zstd": (b"\x28\xb5\x2f\xfd\x24\x03\x19\x00\x00abc" + bytes(3), r"compressed \(zstd\)"),
    "bzip2": (bz2.compress(TOKENS.tobytes()), r"compressed \(bzip2\)"),
    "xz": (lzma.compress(TOKENS.tobytes()), r"compressed \(xz\)"),
    "safetensors": (safetensors(), "a safetensors file"),
    "TFRecord": (tfrecord(b"z" * 100), "a TFRecord file"),
    "ArrayRecord": (RIEGELI + bytes(1000), r"an ArrayRecord \(Riegeli\) file"),
    "ELF": (b"\x7fELF\2\1\1" + bytes(60), "an ELF program or library"),
    "PNG": (b"\x89PNG\r\n\x1a\n" + bytes(60), "an image"),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + b"1 0 obj\n" * 9, "a PDF document"),
    "JSONL": (JSONL, "JSON, not tokens; tokenize it .millstream tokenize .* --kind jsonl"),
    "text": ("Zwölf Boxkämpfer. ".encode() * 300, "text, not tokens; tokenize it"),
    "Chinese": ("今天天气很好我们去公园散步吧".encode() * 300, "text, not tokens"),
    "LFS": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 9\n",
        "a Git LFS pointer.*git lfs pull",
    ),
    "ORC": (b"ORC\n" + bytes(60) + b"\3\3ORC\x18", r"an ORC file; read it with pyarrow\.orc"),
    "Feather": (b"FEA1" + bytes(60) + b"\x80\0\0\0FEA1", "a Feather V1 file; read it"),
    "JSONL of ids": (
        b'{"id": 1, "input_ids": [1, 22]}\n' * 9,
        "JSON with token ids; write it as P",
    ),
    "ids": (
        b"17 4 2981\n15 6\n" * 9,
        "numbers as text; if they are token ids, .*millstream.Writer",
    ),
    "HTML": (b"<!DOCTYPE html><html><title>404 Not Found</title></html>" * 2, "an HTML page"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_files_are_named_whatever_they_are_called_and_said_to_be(tmp_path, kind):
    content, message = KINDS[kind]
    for name, format in (
        ("a.bin", None),
        ("a.dat", None),
        ("a.ds", None),
        ("a.npy", None),
        ("b.bin", "flat:uint16"),
        ("b.dat", "datatrove:uint16"),
        ("b.dat", "dolma:uint32"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match=f"{name}: is (a .*)?{message}") as found:
            millstream.open(tmp_path / name, format=format)
        assert "flat" not in str(found.value)


def test_databases_are_named(tmp_path):
    sqlite(tmp_path / "data.bin")
    with pytest.raises(FormatError, match="an SQLite database"):
        millstream.open(tmp_path / "data.bin")


def test_files_that_open_as_what_they_are_are_not_read_as_bare_tokens(tmp_path):
    np.save(tmp_path / "a.npy", TOKENS.astype("<u2"))
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 3
    (tmp_path / "b.bin").write_bytes(header.tobytes() + bytes(6))
    (tmp_path / "c.parquet").write_bytes(parquet(ids=[[1, 2]]))
    for name in ("a.npy", "b.bin", "c.parquet"):
        assert millstream.open(tmp_path / name).num_records > 0
        with pytest.raises(FormatError, match="open it without format"):
            millstream.open(tmp_path / name, format="flat:uint16")


@pytest.mark.parametrize("kind", [pa.uint16(), pa.int32(), pa.int64()])
@pytest.mark.parametrize("is_old", [False, True])
def test_arrow_streams_are_not_read_as_bare_tokens_whatever_they_are_called(tmp_path, kind, is_old):
    table = pa.table({"input_ids": pa.array([[5, 6, 7]] * 30, pa.list_(kind))})
    table = table.replace_schema_metadata({"huggingface": "x" * 5000})  # longer than is looked at
    options = pa.ipc.IpcWriteOptions(use_legacy_format=is_old)
    for name in ("a.bin", "a.npy", "a.ds", "a.dat"):
        with pa.ipc.new_stream(tmp_path / name, table.schema, options=options) as writer:
            writer.write_table(table)
        assert millstream.open(tmp_path / name).document(1).tolist() == [5, 6, 7]
        with pytest.raises(FormatError, match="an Arrow stream; open it without format"):
            millstream.open(tmp_path / name, format="flat:uint16")


@given(st.integers(0, 2**32 - 1), st.integers(2, 70), st.sampled_from(["<u1", "<u2", "<u4"]))
def test_tokens_are_not_taken_for_an_arrow_stream(seed, vocab_size, dtype):
    rng = np.random.default_rng(seed)
    for before in (b"", b"\xff" * 4, struct.pack("<iI", 200, 16), struct.pack("<iI", 200, 4)):
        content = before + rng.integers(0, vocab_size, 400).astype(dtype).tobytes()
        assert not is_arrow_stream(Head(None, content, len(content), (0, 0)))


def test_any_file_may_be_read_as_bytes(tmp_path):
    for number, (content, _) in enumerate(KINDS.values()):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(content)
        assert millstream.open(path, format="flat:uint8").num_records == len(content)


@pytest.mark.slow
@given(st.binary(max_size=600), st.sampled_from(sorted(KINDS)))
@example(b"MMIDIDX\0\0", "ArrayRecord")
def test_no_start_of_a_file_breaks_recognition(tmp_path_factory, noise, kind):
    path, content = tmp_path_factory.getbasetemp() / "any.bin", KINDS[kind][0]
    for some in (noise, content[: len(noise)], content[:30] + noise):
        path.write_bytes(some)
        num_bytes, said = 0, ""
        try:
            data = millstream.open(path)
            num_bytes = data.num_records * data.fields.itemsize
        except MillstreamError as error:
            said = str(error)
        assert 0 < num_bytes <= len(some) or str(path) in said or not some


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([257, 32_768, 50_257, 65_536]),
    st.sampled_from(["<u2", "<u4", "<i8"]),
)
def test_tokens_are_not_taken_for_anything_else(seed, vocab_size, dtype):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocab_size, 1024).astype(dtype).tobytes()[:4096]
    head = Head(None, ids, len(ids), (0, 0))
    assert recognise(head) is None


def test_tokens_in_a_few_bytes_that_look_like_text_can_be_said_to_be_tokens(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"Hi there")
    with pytest.raises(FormatError, match=r'text, not tokens.*pass format="flat:uint16"'):
        millstream.open(tmp_path / "a.bin")
    assert millstream.open(tmp_path / "a.bin", format="flat:uint16").num_records == 4


def test_names_in_capitals_are_the_same(tmp_path):
    TOKENS.astype("<u2").tofile(tmp_path / "A.BIN")
    assert millstream.open(tmp_path).num_records == millstream.open(tmp_path / "A.BIN").num_records


def test_files_that_belong_to_others_point_to_them(tmp_path):
    with millstream.Writer(tmp_path / "own", vocab_size=99) as writer:
        writer.append(np.arange(9, dtype="<u2"))
    for name in ("00000.stream", "00000.documents", "00000.checksums"):
        with pytest.raises(
            FormatError, match=rf"{name}: is a companion of other files; open .*/own$"
        ):
            millstream.open(tmp_path / "own" / name)
    (tmp_path / "a.ds.index").write_bytes(bytes(8))
    with pytest.raises(FormatError, match=r"a\.ds is missing; copy it here"):
        millstream.open(tmp_path / "a.ds.index")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "a.idx").write_bytes(b"MMIDIDX\0\0" + bytes(64))
    with pytest.raises(MissingDataError, match=r"copy the \.bin of the same name beside it"):
        millstream.open(tmp_path / "m")


def test_json_that_is_no_list_of_files_is_never_to_be_removed(tmp_path):
    (tmp_path / "a.json").write_bytes(JSONL)
    for source in (tmp_path / "a.json", tmp_path):
        with pytest.raises((FormatError, MissingDataError), match="millstream tokenize") as found:
            millstream.open(source)
        assert "remove" not in str(found.value)
    (tmp_path / "b.json").write_text('[{"text": "a"}, {"text": "b"}]')
    with pytest.raises(FormatError, match="an array of records, not of files; write one record"):
        millstream.open(tmp_path / "b.json")


def test_misspelt_types_are_noticed_where_no_file_is_of_the_format(tmp_path):
    with pytest.raises(UsageError, match="uint16"):
        millstream.open(tmp_path, format="flat:unit16")


def test_directories_with_data_below_are_named(tmp_path):
    for name in ("wiki/train", "wiki/val", "books/train", "empty", ".cache"):
        (tmp_path / name).mkdir(parents=True)
        if "/" in name:
            TOKENS.astype("<u2").tofile(tmp_path / name / "0.bin")
    for name in ("README.md", "LICENSE", ".gitattributes"):
        (tmp_path / name).write_text("All rights are yours. " * 9)
    with pytest.raises(MissingDataError, match=r"but books, wiki may be; open '.*/books'"):
        millstream.open(tmp_path)


def test_an_empty_path_is_not_the_current_directory(tmp_path, monkeypatch):
    TOKENS.astype("<u2").tofile(tmp_path / "a.bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the path is empty"):
        millstream.open("")
    assert millstream.open(".").num_records == TOKENS.size


def test_flat_is_offered_for_what_may_be_tokens_with_the_right_width(tmp_path):
    for dtype, said in (("<u2", "uint16"), ("<u4", "uint32"), ("<i8", "int64")):
        TOKENS.astype(dtype).tofile(tmp_path / "a.tokens")
        with pytest.raises(FormatError, match=f'if it contains bare tokens.*format="flat:{said}"'):
            millstream.open(tmp_path / "a.tokens")


def test_flat_is_offered_only_for_what_can_be_tokens_of_that_width(tmp_path):
    noise = np.random.default_rng(0).bytes(10_000)
    for content, message in (
        (noise, 'read it as bytes, pass format="flat:uint8"'),
        (noise[:777], 'read it as bytes, pass format="flat:uint8"'),
        (b"", "is empty"),
        (b"hi", "text, not tokens"),
        (("Zwölf Boxkämpfer. " * 9).encode("utf-16"), "text in UTF-16.*convert it to UTF-8"),
        (("\ufeff" + "Zwölf Boxkämpfer. " * 9).encode("utf-16-be"), "text in UTF-16"),
        ("Zwölf Boxkämpfer. ".encode("latin1") * 9, "text in Latin-1.*convert it to UTF-8"),
    ):
        (tmp_path / "a.dat").write_bytes(content)
        with pytest.raises(FormatError, match=message) as found:
            millstream.open(tmp_path / "a.dat")
        assert "flat:uint16" not in str(found.value)


# Text


def test_text_in_tables_points_to_tokenize_with_its_column(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(content=["a", "b"], n=[1, 2]))
    with pytest.raises(
        FormatError, match=r"they contain text, not tokens.*tokenize .* --text content "
    ):
        millstream.open(path)
    path.write_bytes(parquet(n=[1, 2]))
    with pytest.raises(FormatError, match=r"columns are n \(int64\); name the column"):
        millstream.open(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt", "a.bin", 'a"b.bin'])
def test_the_advice_for_text_works(tmp_path, name, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content = b"a document\n" * 99 if name == "a.txt" else JSONL
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(FormatError) as found:
        millstream.open(name)
    command, _, rest = str(found.value).partition("(millstream ")[2].partition("), or ")
    arguments = shlex.split(command.replace("TOKENIZER", "bytes").replace("DIRECTORY", "out"))
    assert main(arguments) == 0, capsys.readouterr().err
    assert millstream.open("out").num_documents > 0
    call = rest.partition("(")[2].removesuffix(")").replace("tokenizer, batch_size, seq_len", "")
    loader = eval(call.rstrip(") ").rstrip(", ") + ", 'bytes', 2, 8, output='numpy')")
    assert next(iter(loader))["input_ids"].shape == (2, 8)
    loader.close()


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("column", ["text", "my text"])
def test_the_advice_for_text_in_arrow_works(tmp_path, new, column, capsys):
    import pyarrow.parquet

    table = pa.table({column: ["a document"] * 9})
    path = tmp_path / 'it"s.arrow'
    with new(path, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(FormatError, match="they contain text, not tokens") as found:
        millstream.open(path)
    call = re.search(r"\((pyarrow\.parquet\.write_table.*?), or Dataset", str(found.value)).group(1)
    eval(call, {"pyarrow": pyarrow})
    command = re.search(r"\(millstream (.* --out) DIRECTORY\)", str(found.value)).group(1)
    arguments = shlex.split(command.replace("TOKENIZER", "bytes"))
    assert main([*arguments, str(tmp_path / "out")]) == 0, capsys.readouterr().err
    assert millstream.open(tmp_path / "out").num_documents == 9


@pytest.mark.parametrize(
    ("name", "content"),
    [("ids.jsonl", b'{"input_ids": [1, 22, 3]}\n' * 9), ("a.csv", b"text,n\nhello world,1\n" * 5)],
)
def test_the_advice_for_tables_in_text_works(tmp_path, name, content):
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match="write it as Parquet") as found:
        millstream.open(tmp_path / name)
    call = re.search(r"\((pyarrow\.parquet\.write_table.*)\) and", str(found.value)).group(1)
    eval(call, {"pyarrow": pyarrow})
    if name == "ids.jsonl":
        data = millstream.open((tmp_path / name).with_suffix(".parquet"))
        assert data.document(8).tolist() == [1, 22, 3]


def test_a_directory_of_text_points_to_tokenize(tmp_path):
    (tmp_path / "README.md").write_text("read me " * 30)
    with pytest.raises(MissingDataError, match="contains no dataset"):
        millstream.open(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(JSONL)
    with pytest.raises(
        MissingDataError, match=rf"a.jsonl is text, not tokens.*tokenize {tmp_path} "
    ):
        millstream.open(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(KINDS["LFS"][0])
    with pytest.raises(MissingDataError, match=r"a\.jsonl is a Git LFS pointer"):
        millstream.open(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(tar_of(["x"]))
    with pytest.raises(MissingDataError, match=r"contains no tokens; a.jsonl is a tar archive"):
        millstream.open(tmp_path)


# Places


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("hdfs://host/data", "hdfs dfs -get"),
        ("sftp://host/*.bin", "scp -r"),
        ("hf://datasets/a/b", "hf download"),
        ("weird+thing://x", "copy it to this machine first"),
    ],
)
def test_other_remote_data_are_said_to_be_elsewhere(url, advice, tmp_path):
    from pathlib import Path

    for source in (url, Path(url), [url]):
        with pytest.raises(UsageError, match="is not read in place") as found:
            millstream.open(source)
        assert advice in str(found.value)
        assert url in str(found.value)
    with pytest.raises(UsageError, match="is not read in place"):
        millstream.open(tmp_path, file_list=url)
    with pytest.raises(UsageError, match="is not read in place"):
        millstream.TextLoader(url, "bytes", 1, 8)


def test_a_path_is_not_a_url():
    from pathlib import Path

    with pytest.raises(UsageError, match="give the URL as a string, not as a Path"):
        millstream.open(Path("s3://bucket/data"))


def test_file_urls_are_paths(tmp_path):
    folder = tmp_path / "my data"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.bin").write_bytes(b"\1\0")
    assert millstream.open(folder.as_uri()).num_records == 2
    assert millstream.open(f"{folder.as_uri()}/?.bin").num_records == 2
    assert millstream.open(f"file://localhost{tmp_path}/my%20data/a.bin").num_records == 1
    with pytest.raises(UsageError, match="write file:/// with three slashes"):
        millstream.open("file://data/a.bin")
