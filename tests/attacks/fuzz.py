"""Feeds mutated files to every parser of foreign formats: `make fuzz` (needs atheris; not a test).

The first byte chooses the kind of file, the rest is its content; where a kind has two files, the
first four bytes say where the second begins. Whatever comes must be read consistently or refused
with an error of ours: anything else ends the run, and atheris keeps the input.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["penstock.formats", "penstock.opening"]):
    import penstock.formats.arrow
    import penstock.formats.litdata
    import penstock.formats.mds
    import penstock.opening  # and all that it imports

from penstock.errors import PenstockError

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
    (("x.arrow",), ["arrow/sliced.arrow", "arrow/sliced.arrows"]),
    (("x.parquet",), ["arrow/list_uint16.parquet"]),
]


def seeds() -> list[bytes]:
    """Inputs that are golden files, in the form above."""
    found = []
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


def test_one_input(data: bytes) -> None:
    """Write the files, and read all that they may hold."""
    names, _ = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
    contents = [data[1:]]
    if len(names) == 2:
        size = int.from_bytes(data[1:5], "little")
        contents = [data[5 : 5 + size], data[5 + size :]]
    for name, content in zip(names, contents, strict=True):
        Path(name).write_bytes(content)
    opened = "." if "index.json" in names else names[0]
    with contextlib.suppress(PenstockError):
        dataset = penstock.open(opened)
        lengths = [len(dataset.document(k)) for k in range(min(dataset.num_documents, 100))]
        assert dataset.num_documents > 100 or sum(lengths) == dataset.num_records
    for name in names:
        Path(name).unlink()


def main() -> None:
    """Run for as long as the command line says, with golden files as seeds."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_CACHE_HOME"] = directory + "/cache"
        corpus = Path(directory, "corpus")
        corpus.mkdir()
        for number, seed in enumerate(seeds()):
            (corpus / str(number)).write_bytes(seed)
        work = Path(directory, "work")
        work.mkdir()
        kept = Path.cwd()
        os.chdir(work)
        options = ["-max_len=16384", "-timeout=20", f"-artifact_prefix={kept}/", *sys.argv[1:]]
        atheris.Setup([sys.argv[0], *options, str(corpus)], test_one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
