"""From text to shards, once: `sources → documents → tokenizer → records → writer`.

A source is files of text, of any kind that people keep it in. It is cut into slices, and every
slice is read as text batches: documents as UTF-8, end to end in one array, which a tokenizer turns
into token ids in one array. Nothing on that way is a Python object for each token, and only
metadata is one for each document.

A task is what is done with one slice: it reads, tokenizes and writes a part of the dataset, always
the same bytes, whoever runs it and how often. So any number of processes or machines can share the
tasks, and whatever was killed is simply run again.
"""
