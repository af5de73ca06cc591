"""Formats: where the records, documents and metadata of a dataset lie on disk.

    manifest    what is known about a dataset without reading its data; checked before it is used
    shard       one set of files; shards, end to end, are the stream of records
    record      one element of the stream, a NumPy struct of fields, usually with `token`
    companion   a file that belongs to a token file, such as its index

A format reads no tokens: it returns a manifest (`shard`), or says how to decode its files
(`undecoded`). Each format has a module; `detection` finds the format of a path.
"""
