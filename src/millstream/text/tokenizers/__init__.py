"""Tokenizers: a batch of texts in, token ids and document offsets out, as arrays.

    vocabulary     tokens, merges, split pattern and special tokens of a byte-level BPE
    engine         what computes the ids: `fast` (ours, for known split patterns), `tiktoken`,
                   `huggingface` or `bytes`
    special token  a token that no text encodes to, such as `<|endoftext|>`; its text inside a
                   document is ordinary text. Only writers of documents add special tokens
    fingerprint    a hash, equal for tokenizers that give every text the same ids

The rest of Millstream knows only the protocol `Tokenizer` (`tokenizer.py`). `loading.py` loads one
from a tokenizer.json (`tokenizer_json.py`) or tiktoken ranks (`vocabulary.py`), never from a
pickle; `adapter.py` makes one of any Python object with `encode`; `dataset_tokenizer.py` stores one
with a dataset. The engines: `fast_engine.py` with the kernel of `encoding.pyx`,
`library_engines.py` (tiktoken and tokenizers) and `byte_tokenizer.py`.
"""
