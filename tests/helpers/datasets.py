"""Datasets that tests write, and what is read of them."""

import numpy as np

import millstream


def write_dataset(path, tokens, *, cuts=(), shard_bytes=1, **options):
    """One document per piece between `cuts`, and a shard per document unless told otherwise."""
    options = {"vocab_size": 1 << 16} | options
    with millstream.Writer(path, shard_bytes=shard_bytes, **options) as writer:
        for document in np.split(np.asarray(tokens), list(cuts)):
            writer.append(document)
    return millstream.open(path)


def write_random_documents(path, count, *, longest, num_ids=1000, shard_bytes=4000):
    """Documents of 1 to `longest` - 1 random tokens."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, longest, count)
    tokens = generator.integers(0, num_ids, lengths.sum())
    return write_dataset(path, tokens, cuts=np.cumsum(lengths)[:-1], shard_bytes=shard_bytes)


def write_documents(path, documents, *, masked=False, token="<u2", shard_bytes=1 << 20):
    """Documents, with a loss mask that leaves out even ids if it is `masked`."""
    fields = [("token", token), ("loss_mask", "u1")] if masked else [("token", token)]
    with millstream.Writer(path, fields=fields, shard_bytes=shard_bytes) as writer:
        for document in documents:
            ids = np.array(document, np.int64)
            writer.append({"token": ids, "loss_mask": ids % 2} if masked else ids)
    return millstream.open(path)


def tokens_of(records):
    """The tokens of records, with or without other fields, as a list."""
    return records[records.dtype.names[0]].tolist() if records.dtype.names else records.tolist()


def documents_of(data):
    """The tokens of every document."""
    return [tokens_of(data.document(k)) for k in range(data.num_documents)]


def inputs_of(batches):
    """The input ids of every batch."""
    return [batch["input_ids"].tolist() for batch in batches]
