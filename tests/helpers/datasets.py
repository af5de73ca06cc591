"""Datasets that tests write, and what is read of them."""

import numpy as np

import penstock


def write_dataset(path, tokens, *, cuts=(), shard_bytes=1, **options):
    """One document per piece between `cuts`, and a shard per document unless told otherwise."""
    options = {"vocab_size": 1 << 16} | options
    with penstock.Writer(path, shard_bytes=shard_bytes, **options) as writer:
        for document in np.split(np.asarray(tokens), list(cuts)):
            writer.append(document)
    return penstock.open(path)


def tokens_of(records):
    """The tokens of records, with or without other fields, as a list."""
    return records[records.dtype.names[0]].tolist() if records.dtype.names else records.tolist()


def documents_of(data):
    """The tokens of every document."""
    return [tokens_of(data.document(k)) for k in range(data.num_documents)]


def inputs_of(batches):
    """The input ids of every batch."""
    return [batch["input_ids"].tolist() for batch in batches]
