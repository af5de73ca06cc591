"""The real datatrove, in its own environment and process (`peer_process`)."""

from benchmarks import peer_process
from benchmarks.peer_process import PeerProcess

# What its Parquet reader and tokenizer need; the extras install much more.
_PACKAGES = ("datatrove==0.10.1", "pyarrow", "tokenizers")


def start(script: str, *args: str) -> tuple[PeerProcess | None, str]:
    """Return a process that runs the script, or None, and a note for the report."""
    return peer_process.start("datatrove", _PACKAGES, script, *args)
