"""Text files in every codec, and the documents that a source reads from them."""

import gzip
import itertools
import json
import struct
from dataclasses import asdict

import pyarrow as pa

from millstream.text.sources import Slice


def compress(content, codec, cuts=()):
    """Compress, in several members or frames if there are cuts."""
    ends = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    pieces = [content[a:b] for a, b in itertools.pairwise(ends)] or [content]
    if codec == ".gz":
        return b"".join(gzip.compress(piece) for piece in pieces)
    if codec == ".zst":
        return b"".join(pa.compress(piece, "zstd", asbytes=True) for piece in pieces)
    return content


def frame(text, *, is_streamed=False):
    """A zstd frame that states the size of its text, or one that does not, as streams have it."""
    if not is_streamed:
        return pa.compress(text, "zstd", asbytes=True)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for start in range(0, len(text), 1000):
            stream.write(text[start : start + 1000])
    return sink.getvalue().to_pybytes()


def skippable(content, number=0):
    """A zstd frame that readers skip."""
    return struct.pack("<II", 0x184D2A50 + number, len(content)) + content


def write_jsonl(path, texts, *, ensure_ascii=True, **columns):
    """One object a line: a text, and its value of every other column."""
    rows = ({"text": text} | {k: v[i] for k, v in columns.items()} for i, text in enumerate(texts))
    lines = [json.dumps(row, ensure_ascii=ensure_ascii) for row in rows]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())


def texts_of(source, slices=None, bad=None, **options):
    """The documents of some slices, or of all of the source, with their pieces joined.

    Every slice is read after a round trip through JSON, as another process gets it.
    """
    texts = []
    for piece in source.slices(1 << 40) if slices is None else slices:
        again = Slice(**json.loads(json.dumps(asdict(piece))))
        assert again == piece
        continues = False
        for batch in source.read(again, bad, **options):
            assert batch.num_documents == len(batch.rows) >= 1
            found = [batch.text(k) for k in range(batch.num_documents)]
            if continues:
                texts[-1] += found.pop(0)
            texts += found
            continues = batch.continues
        assert not continues
    for text in texts:
        text.decode()
    return texts
