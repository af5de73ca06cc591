"""Saves a trained vocabulary as a directory, atomically.

tokenizer.json         for Hugging Face's tokenizers and for Millstream
tokenizer.tiktoken     the same tokens as tiktoken ranks
tokenizer_config.json  the special tokens and the split pattern, which ranks do not hold
token_bytes.npy        int32, by id: number of bytes of each token, 0 for special tokens
"""

import errno
import io
import json
import shutil
from pathlib import Path

import numpy as np

from millstream.atomic import NewFile, sync_directory, temporary_path
from millstream.errors import DatasetExistsError
from millstream.new_directory import new_directory
from millstream.text.tokenizers.tokenizer_json import to_tokenizer_json
from millstream.text.tokenizers.vocabulary import Vocabulary, to_tiktoken

# Special tokens that start and end documents in published tokenizers.
_BOS = ("<|bos|>", "<|begin_of_text|>", "<s>", "<|endoftext|>")
_EOS = ("<|eos|>", "<|end_of_text|>", "</s>", "<|endoftext|>")


def refuse_existing(directory: Path) -> None:
    """Raise if the path exists and is not an empty directory."""
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise DatasetExistsError(f"{directory}: already exists; remove it, or choose another name")


def save_vocabulary(vocabulary: Vocabulary, directory: Path) -> None:
    """Write the directory; nothing is left behind if that fails."""
    sizes = np.zeros(vocabulary.vocab_size, np.int32)
    sizes[: len(vocabulary.tokens)] = [len(token) for token in vocabulary.tokens]
    token_bytes = io.BytesIO()
    np.save(token_bytes, sizes, allow_pickle=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": next((name for name in _BOS if name in vocabulary.specials), None),
        "eos_token": next((name for name in _EOS if name in vocabulary.specials), None),
        "pattern": vocabulary.pattern,
        "specials": dict(vocabulary.specials),
    }
    files = {
        "tokenizer.json": to_tokenizer_json(vocabulary).encode(),
        "tokenizer.tiktoken": to_tiktoken(vocabulary),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1).encode(),
        "token_bytes.npy": token_bytes.getvalue(),
    }
    temporary = temporary_path(directory)
    with new_directory(directory.parent):
        try:
            temporary.mkdir()
            for name, content in files.items():
                file = NewFile(temporary / name)
                file.write(content)
                file.finish()
            sync_directory(temporary)
            _give_name(temporary, directory)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_directory(directory.parent)


def _give_name(temporary: Path, directory: Path) -> None:
    try:
        temporary.rename(directory)
    except OSError as error:  # only an empty directory can be replaced
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            refuse_existing(directory)
        raise
