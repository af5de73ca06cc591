"""A model of live packing: plain lists and linear searches."""

import itertools
from collections.abc import Iterator
from functools import partial

Document = tuple[int, list[int]]
Row = list[tuple[int, list[int], int | None]]
"""pieces: the document's id, tokens, and the token that follows where a row ends inside of it"""


def lane_blocks(num_blocks: int, lane: int, lanes: int) -> Iterator[int]:
    """The blocks of a lane, for ever, where they are not shuffled."""
    return (position % num_blocks for position in itertools.count(lane, lanes))


def rows(
    blocks: Iterator[tuple[int, list[list[int]]]],
    policy: str,
    seq_len: int,
    buffer_size: int = 1000,
    refill: int = 128,
    overflow: str | None = None,
) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """Inputs, labels and document ids of each row; blocks are a number and documents with marks."""
    made = {
        "flat": flat,
        "best_fit": best_fit,
        "bos_best_fit": bos_best_fit,
        "full_best_fit": keep,
        "best_fit, repeat_bos": partial(repeated, cuts=False),
        "full_best_fit, repeat_bos": partial(repeated, cuts=True),
    }[policy]
    return made(blocks, seq_len, buffer_size, refill, overflow)


def with_masks(
    rows: Iterator[tuple[list[int], list[int], list[int]]],
) -> Iterator[tuple[list[int], list[int], list[int], list[int]]]:
    """Rows of tokens that are pairs of an id and its mask, as inputs, labels, ids and masks."""
    for tokens, labels, documents in rows:
        pairs = [token if isinstance(token, tuple) else (token, 0) for token in tokens]
        following = [label if isinstance(label, tuple) else (label, 1) for label in labels]
        yield (
            [token for token, _ in pairs],
            [label if mask else -100 for label, mask in following],
            documents,
            [mask for _, mask in pairs],
        )


def flat(blocks, seq_len, buffer_size, refill, overflow=None):
    stream = (
        (token, (block << 32) + number)
        for block, documents in blocks
        for number, document in enumerate(documents)
        for token in document
    )
    row = list(itertools.islice(stream, seq_len))
    while row:
        following = list(itertools.islice(stream, 1))
        yield finished(row, following[0][0] if following else None, seq_len)
        row = following + list(itertools.islice(stream, seq_len - len(following)))


def finished(row, label, seq_len, pad=0):
    """A row of (token, document) pairs with its last label, padded."""
    tokens = [token for token, _ in row]
    labels = [*tokens[1:], -100 if label is None else label]
    missing = seq_len - len(row)
    documents = [document for _, document in row]
    return tokens + [pad] * missing, labels + [-100] * missing, documents + [-1] * missing


def pieces_of(blocks, seq_len, overflow):
    """Documents cut into full rows and a rest: id, tokens, and those that follow in it."""
    for block, documents in blocks:
        for number, document in enumerate(documents):
            if overflow == "drop" and len(document) > seq_len:
                continue
            stop = min(len(document), seq_len) if overflow == "truncate" else len(document)
            for start in range(0, stop, seq_len):
                after = document[start + seq_len :]
                yield (block << 32) + number, document[start : start + seq_len], after


def fullest(buffer, space):
    fitting = [len(tokens) for _, tokens, _ in buffer if len(tokens) <= space]
    if not fitting:
        return None
    return next(i for i, piece in enumerate(buffer) if len(piece[1]) == max(fitting))


def shortest(buffer):
    least = min(len(piece[1]) for piece in buffer)
    return next(i for i, piece in enumerate(buffer) if len(piece[1]) == least)


def best_fit(blocks, seq_len, buffer_size, refill, overflow=None):
    return through_buffer(blocks, seq_len, buffer_size, overflow, cuts=False)


def keep(blocks, seq_len, buffer_size, refill, overflow=None):
    return through_buffer(blocks, seq_len, buffer_size, overflow, cuts=True)


def through_buffer(blocks, seq_len, buffer_size, overflow, *, cuts):
    coming, buffer, row, label = pieces_of(blocks, seq_len, overflow), [], [], None
    while True:
        while len(buffer) < buffer_size and (piece := next(coming, None)):
            buffer.append(piece)
        space = seq_len - len(row)
        chosen = fullest(buffer, space) if space else None
        if not row and buffer:
            chosen = 0  # what has waited longest
        if chosen is None and (not space or not cuts or not buffer):
            if not row:
                return
            yield finished(row, label, seq_len)
            row, label = [], None
            continue
        document, tokens, after = buffer.pop(shortest(buffer) if chosen is None else chosen)
        row += [(token, document) for token in tokens[:space]]
        if len(tokens) > space:
            buffer.append((document, tokens[space:], after))
        if len(row) == seq_len:
            label = next(iter([*tokens[space:], *after]), None)


def repeated(blocks, seq_len, buffer_size, refill, overflow=None, *, cuts):
    """Every piece starts with BOS, the first token of its document; the oldest is cut, in place."""

    def pieces():
        for block, documents in blocks:
            for number, (bos, *document) in enumerate(documents):
                for start in range(0, max(1, len(document)), seq_len - 1):
                    after = document[start + seq_len - 1 :]
                    piece = [bos, *document[start : start + seq_len - 1]]
                    yield (block << 32) + number, piece, after

    coming, buffer, row, label = pieces(), [], [], None
    while True:
        while len(buffer) < buffer_size and (piece := next(coming, None)):
            buffer.append(piece)
        space = seq_len - len(row)
        chosen = fullest(buffer, space) if row else 0
        if not buffer or not space or (chosen is None and not cuts):
            if not row:
                return
            yield finished(row, label, seq_len)
            row, label = [], None
            continue
        document, tokens, after = buffer[chosen or 0]
        row += [(token, document) for token in tokens[:space]]
        if len(row) == seq_len:
            label = next(iter([*tokens[space:], *after]), None)
        if len(tokens) > space:
            buffer[0] = document, [tokens[0], *tokens[space:]], after
        else:
            del buffer[chosen or 0]


def bos_best_fit(blocks, seq_len, buffer_size, refill, overflow=None):
    """As nanochat: whole documents of up to `refill` of a block at a time, rests dropped."""

    def units():
        for block, documents in blocks:
            for start in range(0, len(documents), refill):
                unit = documents[start : start + refill]
                yield [((block << 32) + start + k, document) for k, document in enumerate(unit)]

    coming, buffer, row = units(), [], []
    while True:
        while len(buffer) < buffer_size and (unit := next(coming, None)):
            for document, tokens in unit:
                used = tokens if overflow is None else tokens[: seq_len + 1]
                if used and not (overflow == "drop" and len(used) < len(tokens)):
                    buffer.append((document, used, ()))
        if not buffer:
            return
        space = seq_len + 1 - len(row)
        chosen = fullest(buffer, space)
        document, tokens, _ = buffer.pop(shortest(buffer) if chosen is None else chosen)
        row += [(token, document) for token in tokens[:space]]
        if len(row) == seq_len + 1:
            yield finished(row[:-1], row[-1][0], seq_len)
            row = []
