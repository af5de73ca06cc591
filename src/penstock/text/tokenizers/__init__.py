"""Tokenizers: a batch of texts in, token ids and document offsets out, as arrays.

`Tokenizer` is all that the rest of Penstock knows of one. An engine is a way to compute it: `fast`
(ours, for byte-level BPE with a known split pattern), `tiktoken`, `huggingface` and `bytes`. What
`load_tokenizer` reads are vocabularies (tokenizer.json, tiktoken ranks), never pickles.

The text of a special token inside a document is ordinary text; special tokens come only from those
who write documents.
"""
