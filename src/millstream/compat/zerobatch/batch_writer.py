"""ZeroBatch's module `batch_writer`: see `millstream.write.llmbatch`."""

from millstream.formats.llmbatch import HEADER_BYTES as HEADER_SIZE
from millstream.write.llmbatch import write_batch_dataset, write_batch_file

__all__ = ["HEADER_SIZE", "write_batch_dataset", "write_batch_file"]
