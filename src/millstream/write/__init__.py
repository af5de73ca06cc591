"""Writing datasets: documents in, shards and a manifest out, safe to kill at any moment.

A file is written under a temporary name, synced, and renamed; the manifest comes last, so what
opens as a dataset is whole. Every writer holds a lock on its name for as long as it lives (the
kernel lets go of it when the process dies), which tells the leftovers of a killed writer, which
are removed, from the files of a living one, which are not touched.

Several processes write parts of one dataset at once, each with a `part` number of its own, and
`finish` joins the parts, in the order of their numbers:

    with millstream.Writer("out", vocab_size=50_257, part=rank) as writer:   # in every process
        for document in my_share(rank):
            writer.append(document)

    millstream.finish("out", parts=8)                                        # then once
"""
