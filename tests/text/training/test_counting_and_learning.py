"""Counting words and learning merges (`text/training/word_table.pyx`, `merge_learner.pyx`)."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.text.splitting.character_classes import character_classes
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.splitting.pieces import split
from millstream.text.training.merge_learner import MergeLearner
from millstream.text.training.word_table import WordTable

pytestmark = pytest.mark.kernels

CODE = PATTERNS["gpt4"].code


def arrays(texts):
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)])


def counted(table):
    data, starts, counts = table.words
    words = [data[a:b].tobytes() for a, b in pairwise(starts)]
    assert len(set(words)) == len(words)
    return dict(zip(words, counts.tolist(), strict=True))


def pieces(text):
    data, ends = np.frombuffer(text, np.uint8), np.empty(len(text), np.int64)
    count = split(data, CODE, character_classes(), ends)
    return [text[a:b] for a, b in pairwise([0, *ends[:count].tolist()])]


def test_words_are_kept_once_in_the_order_in_which_they_were_found():
    table = WordTable()
    table.count_pieces(*arrays([b"the cat the dog", b" the"]), CODE, character_classes())
    assert list(counted(table).items()) == [(b"the", 1), (b" cat", 1), (b" the", 2), (b" dog", 1)]


@given(texts=st.lists(st.text("ab 1.é", max_size=30).map(str.encode), max_size=6))
def test_counts_are_those_of_the_pieces(texts):
    table = WordTable()
    for _ in range(2):
        table.count_pieces(*arrays(texts), CODE, character_classes())
    once = Counter(piece for text in texts for piece in pieces(text))
    assert counted(table) == {piece: 2 * count for piece, count in once.items()}


@pytest.mark.slow
def test_a_table_grows_with_its_words():
    words = [b"%d" % number for number in range(150_000)]
    table, other = WordTable(), WordTable()
    table.add_words(*arrays(words), np.arange(len(words)))
    table.count_pieces(*arrays([b"x" * 3_000_000, b"999"]), CODE, character_classes())
    expected = {word: number for number, word in enumerate(words)}
    assert counted(table) == {**expected, b"x" * 3_000_000: 1, b"999": 1000}
    other.add_words(*table.words)
    assert counted(other) == counted(table)


def test_wrong_words_are_refused():
    data, starts = arrays([b"one", b"two"])
    with pytest.raises(ValueError, match="count"):
        WordTable().add_words(data, starts, np.ones(1, np.int64))
    with pytest.raises(ValueError, match="beyond"):
        WordTable().count_pieces(data, starts + 1, CODE, character_classes())
    with pytest.raises(ValueError, match="count"):
        MergeLearner(data, starts, np.ones(3, np.int64), 1)
    with pytest.raises(ValueError, match="room"):
        MergeLearner(data, starts, np.ones(2, np.int64), 1).learn(np.empty((9, 3), np.int64), 2)


def learned(words, num_merges, step=1 << 30):
    """Merges, and how many tokens they make of the text."""
    learner = MergeLearner(
        *arrays(list(words)), np.array(list(words.values()), np.int64), num_merges
    )
    merges, known, wanted = np.empty((num_merges, 3), np.int64), 0, 0
    while known == wanted < num_merges:
        wanted = min(num_merges, wanted + step)
        known = learner.learn(merges, wanted)
    return merges[:known].tolist(), learner.num_tokens


def model(words, num_merges):
    """Merge the most frequent pair, of equals that of the smaller ids, in every word."""
    split_words, merges = [(list(word), count) for word, count in words.items()], []
    while len(merges) < num_merges:
        pairs = Counter()
        for ids, count in split_words:
            for pair in pairwise(ids):
                pairs[pair] += count
        if not pairs or max(pairs.values()) <= 0:
            break
        (left, right), _ = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        token = 256 + len(merges)
        merges.append([left, right, token])
        for ids, _ in split_words:
            i = 0
            while i + 1 < len(ids):
                if ids[i : i + 2] == [left, right]:
                    ids[i : i + 2] = [token]
                i += 1
    return merges, sum(len(ids) * count for ids, count in split_words)


def test_the_most_frequent_pair_comes_first():
    merges, num_tokens = learned({b"abab": 3, b"ab": 1, b"bc": 2}, 2)
    assert merges == [[*b"ab", 256], [256, 256, 257]]
    assert num_tokens == 3 + 1 + 4


@given(
    words=st.dictionaries(
        st.text("abc", min_size=1, max_size=12).map(str.encode), st.integers(1, 9), max_size=12
    ),
    step=st.sampled_from([1, 3, 100]),
)
def test_merges_are_those_of_the_model_to_the_last(words, step):
    if words:
        assert learned(words, 60, step) == model(words, 60)


def test_learning_ends_where_no_pairs_are_left():
    assert learned({b"ab": 1}, 10) == ([[*b"ab", 256]], 1)
    assert learned({b"a": 5}, 10) == ([], 5)
    assert learned({}, 10) == ([], 0)
