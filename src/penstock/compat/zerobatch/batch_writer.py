"""ZeroBatch's module `batch_writer`: see `penstock.write.llmbatch`."""

from penstock.formats.llmbatch import HEADER_BYTES as HEADER_SIZE
from penstock.write.llmbatch import write_batch_dataset, write_batch_file

__all__ = ["HEADER_SIZE", "write_batch_dataset", "write_batch_file"]
