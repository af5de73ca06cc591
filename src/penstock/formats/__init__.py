"""Formats: where on disk the records, documents and metadata of a dataset lie.

    manifest    what is known of a dataset without reading its data, checked before it is believed
    shard       one file set; shards laid end to end make the stream of records
    record      one element of the stream, a NumPy struct of fields, `token` among them
    companion   a file that belongs to one with tokens, such as its index

A format reads no tokens. There is a file for each; `shard` has what all of them answer with, and
`detection` finds out which of them a path is in.
"""
