"""Special tokens in texts: against a plain search, and against Hugging Face's tokenizers."""

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.text.sources.batch_builder import concatenate
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.tokenizers.byte_tokenizer import ByteTokenizer
from millstream.text.tokenizers.fast_tokenizer import FastTokenizer
from millstream.text.tokenizers.special_tokens import SpecialTokens, join_runs, trained_tokens
from millstream.text.tokenizers.tokenizer_json import to_tokenizer_json
from tests.helpers.vocabularies import vocabulary

pytestmark = pytest.mark.kernels

# Prefixes of each other, one byte, several bytes of one character, overlapping ends.
NAMES = [
    "<",
    "<|",
    "<|a",
    "<|a|>",
    "<|a|><",
    "|>",
    "a",
    "ab",
    "b<",
    "é",
    "😀",
    "\0",
    "a\0",
    "😀é",
    ">",
]
PIECES = st.sampled_from([*NAMES, "<|", "|", "x", " ", "\n", "\u0301", "日"])
TEXTS = st.lists(PIECES, max_size=12).map("".join)
SPECIALS = st.lists(st.sampled_from(NAMES), unique=True, max_size=8)


def as_arrays(texts, before=b""):
    data, offsets = concatenate([text.encode() for text in texts])
    return np.frombuffer(before + data + b"<|a|>", np.uint8), offsets + len(before)


def plain_runs(text, specials):
    """Runs of one document: at each place the longest special token that begins there."""
    runs, at, begun = [], 0, 0
    while at < len(text):
        found = [name for name in specials if text.startswith(name, at)]
        if not found:
            at += 1
            continue
        if begun < at:
            runs.append((text[begun:at], -1))
        name = max(found, key=len)
        runs.append((name, specials[name]))
        at = begun = at + len(name)
    if begun < at or not runs:
        runs.append((text[begun:], -1))
    return runs


@settings(max_examples=300)
@given(st.lists(TEXTS, max_size=4), SPECIALS, st.sampled_from([b"", b"<|a", b"\xff"]))
@example(["", "<", "a\0", "a"], ["<", "a", "a\0"], b"")
def test_runs_are_those_of_a_plain_search(texts, names, before):
    specials = {name.encode(): 1000 + k for k, name in enumerate(names)}
    data, offsets = as_arrays(texts, before)
    found = SpecialTokens({name.decode(): k for name, k in specials.items()})
    starts, numbers, first_runs = found.runs(data, offsets)
    assert starts[-1] == offsets[-1]
    for k, text in enumerate(texts):
        own = range(first_runs[k], first_runs[k + 1])
        runs = [(bytes(data[starts[r] : starts[r + 1]]), numbers[r]) for r in own]
        assert runs == plain_runs(text.encode(), specials)


def theirs(specials):
    """A tokenizer of Hugging Face with the same special tokens."""
    chosen = vocabulary(PATTERNS["gpt4"].regex, specials=specials)
    return tokenizers.Tokenizer.from_str(to_tokenizer_json(chosen)), FastTokenizer(chosen, "x")


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), SPECIALS)
def test_tokens_and_their_ends_are_those_of_hugging_face(texts, names):
    names = [name for name in names if name not in ("ab", "é", "\0", "<", ">", "a")]  # tokens
    first = len(vocabulary(PATTERNS["gpt4"].regex).tokens)
    expected, ours = theirs({name: first + k for k, name in enumerate(names)})
    ids, id_offsets, ends = ours.encode_with_specials(*as_arrays(texts, b"<|"))
    for k, text in enumerate(texts):
        own = slice(id_offsets[k], id_offsets[k + 1])
        encoded = expected.encode(text, add_special_tokens=False)
        assert ids[own].tolist() == encoded.ids
        # Theirs are characters: tokens of one character end together.
        ours_in_characters = [len(text.encode()[:end].decode(errors="ignore")) for end in ends[own]]
        for ours_end, (start, stop) in zip(ours_in_characters, encoded.offsets, strict=True):
            assert start <= ours_end <= stop


def test_bytes_find_their_one_special_token():
    data, offsets = as_arrays(["a<|endoftext|>b", "<|endoftext", ""])
    ids, id_offsets, ends = ByteTokenizer().encode_with_specials(data, offsets)
    assert ids.tolist() == [97, 256, 98, *b"<|endoftext"]
    assert id_offsets.tolist() == [0, 3, 14, 14]
    assert ends.tolist() == [1, 14, 15, *range(1, 12)]


def test_special_tokens_that_take_white_space_need_the_other_engine():
    chosen = vocabulary(PATTERNS["gpt4"].regex, plain_specials=False)
    with pytest.raises(UsageError, match="only the engine 'huggingface' does"):
        FastTokenizer(chosen, "x").encode_with_specials(*as_arrays(["a"]))


def plain_trained(id_offsets, ends, offsets, spans):
    """1 for tokens that overlap a span, or have an empty one inside."""
    found = []
    for k in range(len(offsets) - 1):
        begin = offsets[k]
        for t in range(id_offsets[k], id_offsets[k + 1]):
            end = offsets[k] + ends[t]
            if end <= begin and t > id_offsets[k]:
                found.append(found[-1])
            else:
                found.append(int(any(first < end and begin < last for first, last in spans)))
            begin = max(begin, end)
    return found


@settings(max_examples=300)
@given(st.data())
def test_trained_tokens_are_those_that_overlap_a_span(data):
    lengths = data.draw(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=4))
    id_offsets = np.cumsum([0, *map(len, lengths)])
    offsets = np.cumsum([2, *map(sum, lengths)])
    ends = np.concatenate([np.cumsum(each) for each in lengths] + [[]]).astype(np.int64)
    places = data.draw(st.lists(st.integers(2, int(offsets[-1])), max_size=8))
    edges = sorted(places)[: len(places) // 2 * 2]
    spans = np.array(edges, np.int64).reshape(-1, 2)
    expected = plain_trained(id_offsets, ends, offsets, spans.tolist())
    assert trained_tokens(id_offsets, ends, offsets, spans).tolist() == expected


GOOD = {
    "ids": np.array([1, 2], np.uint32),
    "id_offsets": np.array([0, 1, 2]),
    "starts": np.array([0, 3, 4]),
    "numbers": np.array([-1, 9]),
    "first_runs": np.array([0, 2]),
    "token_bytes": np.array([0, 3, 1], np.int32),
}


def test_special_tokens_replace_those_of_their_spelling():
    ids, id_offsets, ends = join_runs(**GOOD)
    assert ids.tolist() == [1, 9]
    assert id_offsets.tolist() == [0, 2]
    assert ends.tolist() == [3, 4]


@pytest.mark.parametrize(
    "change",
    [
        {"ids": np.array([1, 3], np.uint32)},
        {"ids": np.array([1], np.uint32)},
        {"id_offsets": np.array([0, 1])},
        {"id_offsets": np.array([0, 2, 1])},
        {"id_offsets": np.array([1, 1, 2])},
        {"id_offsets": np.array([0, 1, 3])},
        {"starts": np.array([0, 3])},
        {"numbers": np.array([-1])},
        {"first_runs": np.array([0, 1])},
        {"first_runs": np.array([0, 3, 2])},
        {"first_runs": np.array([], np.int64)},
    ],
)
def test_runs_that_do_not_fit_are_refused(change):
    with pytest.raises(ValueError, match=r"runs|vocabulary|negative"):
        join_runs(**GOOD | change)


@pytest.mark.parametrize(
    ("id_offsets", "offsets", "spans"),
    [
        ([0, 3], [0, 2], [[0, 1]]),
        ([0, 2], [0], [[0, 1]]),
        ([], [], [[0, 1]]),
        ([1, 0], [0, 2], [[0, 1]]),
        ([0, 2], [0, 2], [[1, 0]]),
        ([0, 2], [0, 2], [[0, 2], [1, 2]]),
        ([0, 2], [0, 2], [[0, 1, 2]]),
    ],
)
def test_spans_that_do_not_fit_are_refused(id_offsets, offsets, spans):
    arrays = [np.array(each, np.int64) for each in (id_offsets, [1, 2], offsets, spans)]
    with pytest.raises(ValueError, match=r"document|span|pairs"):
        trained_tokens(*arrays)
