"""Live text: documents are tokenized and packed while a model trains, and nothing is stored.

    block     what is read as a whole: a row group, some lines, some frames of zstd, or a file
    lane      a share of the blocks that never changes, and the endless stream of its documents.
              Lanes belong to ranks by arithmetic, and are packed into rows each on its own
    ordinal   how many blocks of its lane come before this one, over all epochs
    number    of a document: how many of its block come before it
    position  rows that all ranks together have been handed: row p is the next one of lane
              p % lanes. So a step is the same rows for every number of ranks that divides lanes

    lanes ──reading──▶ text ──tokenizing──▶ tokens ──packer──▶ batches ──loader──▶ training

Reading and tokenizing run in a few threads, the packer in one more, all mostly outside the GIL.
What was handed out is described by the place of each lane's next document and by the documents
that wait to be packed, named by block and number: that is the state.
"""
