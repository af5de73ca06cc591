"""ZeroBatch's names, for its files of batches (LLMBATCH) and of records (LLMCHNK).

For code written for ZeroBatch: change `zerobatch` to `millstream.compat.zerobatch` in its imports.

    batch_writer   write_batch_file, write_batch_dataset
    batch_loader   BatchFileReader, BatchNativeLoader
    chunk_writer   write_chunk_file
    chunk_loader   ChunkFileReader, ChunkNativeLoader

ZeroBatch does not publish the names that its first version has for files of records; these follow
the pattern of the others. For row-wise shuffling, any batch size, ranks and exact resume, open
either file with `millstream.open` instead. `docs/zerobatch.md` lists the differences from
ZeroBatch.
"""

from millstream.compat.zerobatch.batch_loader import BatchFileReader, BatchNativeLoader
from millstream.compat.zerobatch.batch_writer import (
    HEADER_SIZE,
    write_batch_dataset,
    write_batch_file,
)
from millstream.compat.zerobatch.chunk_loader import ChunkFileReader, ChunkNativeLoader
from millstream.compat.zerobatch.chunk_writer import write_chunk_file

__all__ = [
    "HEADER_SIZE",
    "BatchFileReader",
    "BatchNativeLoader",
    "ChunkFileReader",
    "ChunkNativeLoader",
    "write_batch_dataset",
    "write_batch_file",
    "write_chunk_file",
]
