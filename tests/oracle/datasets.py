"""Random datasets: documents of tokens in every layout that a writer has."""

import itertools
import json

import numpy as np

EOS = 1

FIELDS = {
    "narrow": [("token", "<u2")],
    "wide": [("token", "<u4")],
    "masked": [("token", "<u2"), ("loss_mask", "u1")],
    "many": [("token", "<u4"), ("score", "<f4"), ("loss_mask", "?"), ("frame", "u1", (2, 2))],
    "nested": [("token", "<u2"), ("box", [("corner", "<i2", (2,)), ("kind", "u1")])],
}


def draw_lengths(draw, count, longest=40):
    """Lengths of documents: short, equal or mixed, some of them empty."""
    shape = draw.one_of("short", "equal", "mixed", "mixed", "mixed")
    if shape == "equal":
        return [draw.integer(1, longest)] * count
    limits = [longest if shape == "mixed" and draw.chance(0.3) else 7 for _ in range(count)]
    return [0 if draw.chance(0.05) else draw.integer(1, limit) for limit in limits]


def draw_records(draw, length, fields, vocab_size):
    """One document, which may end with the token `EOS`."""
    dtype = np.dtype(fields)
    records = np.zeros(length, dtype)
    records["token"] = 2 + draw.numbers(length, vocab_size - 2)
    if length and draw.chance(0.7):
        records["token"][-1] = EOS
    for name in dtype.names[1:]:
        if dtype[name].names:
            for part in dtype[name].names:
                shape = records[name][part].shape
                records[name][part] = draw.numbers(int(np.prod(shape)), 100).reshape(shape)
        else:
            limit = 2 if name == "loss_mask" else 100
            shape = records[name].shape
            records[name] = draw.numbers(int(np.prod(shape)), limit).reshape(shape)
    return records


def encode(metadata):
    return json.dumps(metadata).encode()


def decode(content):
    return json.loads(bytes(content))


def draw_spans(draw, length):
    """Spans of metadata in a document, which need not cover it."""
    edges = sorted({draw.integer(0, length) for _ in range(draw.integer(0, 4))})
    pairs = [pair for pair in itertools.pairwise(edges) if draw.chance(0.8)]
    return [(start, stop, [start, "é" * (stop % 3)]) for start, stop in pairs]


def write_tokens(case, path, *, kind, num_documents, with_metadata=False, group_size=1):
    """Write random documents into a new directory, in one of the ways that a writer offers."""
    draw = case.draw
    vocab_size = draw.one_of(12, 60, 3000)
    lengths = draw_lengths(draw, num_documents)
    documents = [draw_records(draw, length, FIELDS[kind], vocab_size) for length in lengths]
    options = {
        "fields": FIELDS[kind],
        "shard_bytes": draw.one_of(1, 60, 250, 1 << 20),
        "group_size": group_size,
        "metadata": encode if with_metadata else None,
        "vocab_size": draw.one_of(None, 3000),
        "eos_id": draw.one_of(None, EOS),
    }
    num_parts = draw.one_of(1, 1, 1, 2, 3)
    case.note(f"write {path.name}", f"{lengths} as {kind} in {num_parts} parts, {options}")
    size = -(-num_documents // num_parts // group_size) * group_size
    for part in range(num_parts):
        given = None if num_parts == 1 else part
        with case.engine.Writer(path, part=given, **options) as writer:
            _append(draw, writer, documents[part * size :][:size], with_metadata, group_size)
    if num_parts > 1:
        case.engine.finish(path, parts=num_parts)


def _append(draw, writer, documents, with_metadata, group_size):
    """Append documents one by one, many at once, or in pieces."""
    while documents:
        count = draw.one_of(1, draw.integer(1, 5)) * group_size
        some, documents = documents[:count], documents[count:]
        lengths = [len(document) for document in some]
        metadata = {}
        if with_metadata and draw.chance(0.5):
            metadata["metadata"] = [
                {"score": draw.integer(0, 9)} if length and draw.chance(0.7) else None
                for length in lengths
            ]
        elif with_metadata:
            metadata["spans"] = [draw_spans(draw, length) for length in lengths]
        if count == 1 and draw.chance(0.6):
            whole = metadata.get("metadata", [None])[0]
            writer.append(some[0], whole, spans=metadata.get("spans", [[]])[0])
        elif with_metadata or group_size > 1 or lengths[-1] < 2 or draw.chance(0.7):
            writer.extend(np.concatenate(some), lengths, **metadata)
        else:  # the last document in two calls
            cut = draw.integer(1, lengths[-1] - 1)
            first = np.concatenate([*some[:-1], some[-1][:cut]])
            writer.extend(first, [*lengths[:-1], cut], continues=True)
            writer.extend(some[-1][cut:], [lengths[-1] - cut])


def open_tokens(case, *, group_size=1, kind=None, max_documents=30, with_metadata=None):
    """A dataset of one to three directories, with any kind of fields unless one is given."""
    draw = case.draw
    kind = kind or draw.one_of("narrow", "narrow", "wide", "masked", "many", "nested")
    with_metadata = draw.chance(0.35) if with_metadata is None else with_metadata
    paths = []
    for _ in range(draw.one_of(1, 1, 2, 3)):
        paths.append(case.new_path())
        count = draw.integer(1, max_documents // group_size) * group_size
        write_tokens(
            case,
            paths[-1],
            kind=kind,
            num_documents=count,
            with_metadata=with_metadata,
            group_size=group_size,
        )
    paths = draw.shuffled(paths)
    return case.engine.open(paths, access=draw.one_of("pread", "mmap"))
