"""What fuzzing feeds to every parser of foreign formats, and what it expects; see `fuzz.py`.

The first byte chooses the kind of file, the rest is its content; where a kind has two files, the
first four bytes say where the second begins. Whatever comes must be read consistently or refused
with an error of ours.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import pyarrow as pa

import millstream.formats.arrow
import millstream.formats.litdata
import millstream.formats.mds
import millstream.opening  # and all that it imports
from millstream.errors import MillstreamError
from millstream.text.sources import Source

GOLDEN = Path(__file__).parent.parent / "golden" / "formats"
# Names of the files of each kind, the one that is opened first, and golden files to start from.
KINDS = [
    (("x.batch",), []),
    (("x.chnk",), []),
    (("x.bin",), ["llmc/gpt2.bin", "llmc/llama3.bin", "llmc/nanogpt/val.bin"]),
    (("x.npy",), ["dolma/numpy/u16_1d.npy", "dolma/numpy/u16_2d.npy", "dolma/numpy/u16_1d_v2.npy"]),
    (("x.bin", "x.idx"), ["megatron/multi", "megatron/empty", "megatron/dtype_uint8"]),
    (("x.ds", "x.ds.index"), ["datatrove/t2.ds", "datatrove/zero.ds"]),
    (("x.npy", "x.csv.gz"), ["dolma/memmap_uint32", "dolma/memmap_empty"]),
    (("chunk-0-0.bin", "index.json"), []),
    (("shard.00000.mds", "index.json"), []),
    (("files.json", "x.bin"), []),
    (
        ("x.arrow",),
        [
            *("arrow/sliced.arrow", "arrow/sliced.arrows", "arrow/list_view.arrow"),
            "huggingface/sft_left/data-00000-of-00002.arrow",
        ],
    ),
    (("x.parquet",), ["arrow/list_uint16.parquet", "huggingface/sft_right.parquet"]),
    (("x.txt.zst",), []),
    (("x.jsonl",), []),
]
TEXTS = ("x.txt.zst", "x.jsonl")


def seeds() -> list[bytes]:
    """Inputs that are golden files, in the form above."""
    text = "".join(f"Line {k} of this text.\n" for k in range(200)).encode()
    frames = b"".join(
        pa.compress(text[k : k + 900], "zstd", asbytes=True) for k in range(0, 4000, 900)
    )
    lines = b"".join(b'{"text": "line %d \\u00e9"}\n' % k for k in range(50))
    numbers = {names[0]: number for number, (names, _) in enumerate(KINDS)}
    found = [bytes([numbers["x.txt.zst"]]) + frames, bytes([numbers["x.jsonl"]]) + lines]
    for number, (names, golden) in enumerate(KINDS):
        for start in golden:
            if len(names) == 1:
                found.append(bytes([number]) + (GOLDEN / start).read_bytes())
            else:
                stem = str(GOLDEN / start).removesuffix(".ds")
                first, second = (
                    Path(f"{stem}{''.join(Path(name).suffixes)}").read_bytes() for name in names
                )
                found.append(bytes([number]) + len(first).to_bytes(4, "little") + first + second)
    return found


def read_input(data: bytes) -> None:
    """Write the files, and read all that they may hold."""
    names, _ = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
    contents = [data[1:]]
    if len(names) == 2:
        size = int.from_bytes(data[1:5], "little")
        contents = [data[5 : 5 + size], data[5 + size :]]
    for name, content in zip(names, contents, strict=True):
        Path(name).write_bytes(content)
    with contextlib.suppress(MillstreamError):
        if names[0] in TEXTS:
            _read_text(names[0])
        else:
            _read_tokens("." if "index.json" in names else names[0])
    for name in names:
        Path(name).unlink()


def _read_tokens(path: str) -> None:
    dataset = millstream.open(path)
    lengths = [len(dataset.document(k)) for k in range(min(dataset.num_documents, 100))]
    assert dataset.num_documents > 100 or sum(lengths) == dataset.num_records
    for view in (dataset.windows(seq_len=7), dataset.packed(seq_len=7)):
        if len(view):
            samples = view.read(range(min(len(view), 20)))
            assert samples is not None


def _read_text(path: str) -> None:
    source = Source(path, bad_rows="skip")
    source.blocks()
    for piece in source.slices(1000):
        for batch in source.read(piece):
            assert all(batch.text(k).decode() is not None for k in range(batch.num_documents))


@contextlib.contextmanager
def empty_directory():
    """Work in a directory of its own, with a cache of its own."""
    kept = Path.cwd()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_CACHE_HOME"] = directory + "/cache"
        Path(directory, "work").mkdir()
        os.chdir(Path(directory, "work"))
        try:
            yield Path(directory)
        finally:
            os.chdir(kept)
