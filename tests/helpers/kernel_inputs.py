"""Inputs of kernels: files, layouts and view states."""

from pathlib import Path

import numpy as np

from millstream.batches.layout_table import LayoutTable
from millstream.batches.view_state import ViewState
from millstream.read.files import GEOMETRY, FileKind, Files, OpenFiles, ShardFiles
from millstream.read.segments import OUTPUT

INT64 = 8


def write_files(directory, parts, kind=FileKind.RECORDS, **options):
    """Write an array for each shard, and make them `Files`."""
    directory = Path(directory)
    paths = []
    for number, part in enumerate(parts):
        paths.append(directory / f"{number:02}.{FileKind(kind).name}")
        part.tofile(paths[-1])
    return open_files(paths, [len(part) for part in parts], parts[0].itemsize, kind, **options)


def open_files(
    paths,
    counts,
    item_bytes,
    kind=FileKind.RECORDS,
    *,
    use_mmap=False,
    num_places=2,
    sizes=None,
    **geometry,
):
    names = [bytes(path) + b"\0" for path in paths]
    table = np.zeros(len(paths), GEOMETRY)
    table["name_start"] = np.cumsum([0, *map(len, names)])[:-1]
    table["size_bytes"] = sizes or [count * item_bytes for count in counts]
    for name, values in geometry.items():
        table[name] = values
    first_item = np.cumsum([0, *counts])
    shards = ShardFiles(kind, item_bytes, first_item, table, b"".join(names))
    return Files(shards, OpenFiles(num_places), use_mmap=use_mmap)


def token_layout(rows, width, *, token=2, derived=(), scratch_records=1 << 10, pad=0):
    """Tokens of `token` bytes as int64 `input_ids` and `labels`, and int32 derived outputs.

    Returns the table, and where the arrays start in the memory.
    """
    header = 48 + 8 * rows
    starts = {"input_ids": header, "labels": header + INT64 * rows * width}
    end = header + 2 * INT64 * rows * width
    described = {}
    for name in derived:
        size = INT64 if name == "document_ids" else 4
        most = width + 2 if name == "cu_seqlens" else 0
        starts[name] = end
        described[name] = (end, size, most)
        end += size * (rows * max(width, most) + 1)
        end += -end % 8
    outputs = np.array(
        [
            (0, token, token, 0, 8, 8, starts["input_ids"], 0, pad, 0, 0, 0),
            (0, token, token, 0, 8, 8, starts["labels"], 1, -100, 0, 0, 0),
        ],
        OUTPUT,
    )
    table = LayoutTable(
        outputs,
        np.empty(0, OUTPUT),
        described,
        scratch_records=scratch_records,
        num_bytes=end,
        rows=rows,
        width=width,
    )
    return table, starts


def array(memory, starts, name, rows, width):
    """Look at an output."""
    dtype = np.dtype("<i8" if name in ("input_ids", "labels", "document_ids") else "<i4")
    return np.ndarray((rows, width), dtype, memory, starts[name])


def view_state(kind, *, num_samples, num_records, width, pieces=(), row_first=(), **options):
    settings = {
        "num_base_samples": num_samples,
        "first_sample": 0,
        "table": None,
        "stride": width,
        "eos_id": -1,
        "mask_ends": False,
        "narrow_to": 0,
        "pad_boundaries": False,
        "is_plain": False,
    }
    return ViewState(
        kind,
        num_samples=num_samples,
        num_records=num_records,
        width=width,
        pieces=np.array(pieces, np.int64).reshape(-1, 3),
        row_first=np.array(row_first, np.int64),
        **(settings | options),
    )
