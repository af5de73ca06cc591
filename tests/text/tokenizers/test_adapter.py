"""Users' tokenizers: the fast engine where it gives the same ids, else their own `encode`."""

import os
import pickle
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import tiktoken
import tokenizers

import millstream
from millstream.errors import FormatError, UsageError
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.tokenizers.adapter import adapt
from tests.helpers.vocabularies import gpt2_json, some_text, trained_ranks

TEXTS = [
    "",
    "a",
    "Hello, it's 12345!\n\n  naïve 日本語 😀 <|bos|>",
    *some_text().split("\n\n")[:200],
]


def encoding(pattern=PATTERNS["nanochat"].regex):
    ranks = trained_ranks(PATTERNS["nanochat"].regex)
    return tiktoken.Encoding(
        "made", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|bos|>": len(ranks)}
    )


def ids_of(tokenizer, texts=TEXTS):
    """What an adapted tokenizer makes of texts, as lists."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    ids, ends = tokenizer.encode(np.frombuffer(b"".join(encoded), np.uint8), offsets)
    assert ids.dtype == np.uint32
    assert ends.dtype == np.int64
    return [part.tolist() for part in np.split(ids, ends[1:-1])]


class Holder:
    """As nanochat's own tokenizer, which is an encoding and a little more."""

    def __init__(self, enc, prepare=str):
        self.enc, self._prepare, self.num_calls = enc, prepare, 0

    def get_bos_token_id(self):
        return self.enc.encode_single_token("<|bos|>")

    def encode(self, texts, prepend, num_threads):
        self.num_calls += 1
        texts = [self._prepare(text) for text in texts]
        found = self.enc.encode_ordinary_batch(texts, num_threads=num_threads)
        return [[prepend, *ids] for ids in found]


def test_a_tokenizer_that_holds_an_encoding_is_computed_by_the_fast_engine():
    holder = Holder(encoding())
    adapted = adapt(holder)
    num_calls = holder.num_calls
    assert adapted.engine == "fast"
    assert adapted.bos_id == holder.get_bos_token_id()
    assert ids_of(adapted) == holder.enc.encode_ordinary_batch(TEXTS)
    assert holder.num_calls == num_calls


def test_an_encoding_of_tiktoken_is_computed_by_the_fast_engine():
    adapted = adapt(encoding())
    assert (adapted.engine, adapted.bos_id) == ("fast", 1200)
    assert ids_of(adapted) == encoding().encode_ordinary_batch(TEXTS)


def test_an_unknown_pattern_is_left_to_tiktoken():
    other = encoding(r"\p{L}+|[^\p{L}]")
    adapted = adapt(Holder(other))
    assert adapted.engine == "tiktoken"
    assert ids_of(adapted) == other.encode_ordinary_batch(TEXTS)


def test_a_pattern_that_leaves_characters_out_is_asked():
    other = encoding(r"\p{L}+")
    assert ids_of(adapt(Holder(other))) == other.encode_ordinary_batch(TEXTS)


def test_a_tokenizer_that_does_more_than_its_encoding_is_asked():
    holder = Holder(encoding(), str.upper)
    adapted = adapt(holder)
    assert adapted.engine == "its own"
    upper = [text.upper() for text in TEXTS]
    assert ids_of(adapted) == holder.enc.encode_ordinary_batch(upper)


def utf8(text):
    return list(text.encode())


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: utf8(text),
        lambda text: np.array(utf8(text)),
        lambda text: SimpleNamespace(ids=utf8(text)),
        lambda text, add_special_tokens=True: [0] * add_special_tokens + utf8(text),
        lambda texts: [utf8(text) for text in texts],
        lambda texts, prepend, num_threads: [[prepend, *utf8(text)] for text in texts],
        lambda texts, prepend=None, num_threads=1: (
            utf8(texts) if isinstance(texts, str) else [[prepend, *utf8(each)] for each in texts]
        ),
    ],
    ids=["text", "array", "object", "specials", "list", "nanochat", "either"],
)
def test_any_way_to_encode_is_found_out(encode):
    adapted = adapt(SimpleNamespace(encode=encode, bos_token_id=256))
    assert adapted.bos_id == 256
    assert ids_of(adapted) == [utf8(text) for text in TEXTS]


@pytest.mark.slow
def test_a_tokenizer_of_hugging_face_is_that_of_its_file(tmp_path):
    tokenizer = tokenizers.Tokenizer.from_str(gpt2_json())
    template = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 50256)]
    )
    tokenizer.post_processor = template
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    adapted, loaded = adapt(tokenizer), millstream.load_tokenizer(tmp_path)
    assert (adapted.engine, adapted.bos_id, adapted.eos_id) == ("fast", None, 50256)
    assert adapted.fingerprint == loaded.fingerprint
    texts = [*TEXTS[:3], "long " * 5000]
    expected = [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert ids_of(adapted, texts) == expected
    tokenizer.enable_truncation(512)
    assert ids_of(adapt(tokenizer), texts) == expected
    # Special tokens come only from options.
    assert ids_of(adapted, ["a<|endoftext|>"]) == ids_of(loaded, ["a<|endoftext|>"])
    assert 50256 not in ids_of(adapted, ["a<|endoftext|>"])[0]


class OfTransformers:
    """What its tokenizers show: a backend, names of marks, and `encode` with special tokens."""

    bos_token, bos_token_id, eos_token, eos_token_id = None, None, "<|endoftext|>", 50256

    def __init__(self, change=str):
        self.backend_tokenizer = tokenizers.Tokenizer.from_str(gpt2_json())
        self._change = change

    def encode(self, text, add_special_tokens=True):
        ids = self.backend_tokenizer.encode(self._change(text), add_special_tokens=False).ids
        return ids + [50256] * add_special_tokens


@pytest.mark.slow
def test_a_tokenizer_of_transformers_is_that_of_its_backend_with_its_own_marks():
    adapted = adapt(OfTransformers())
    assert (adapted.engine, adapted.bos_id, adapted.eos_id) == ("fast", None, 50256)
    named = OfTransformers()
    named.bos_token = "<|endoftext|>"
    assert adapt(named).bos_id == 50256


@pytest.mark.slow
def test_a_tokenizer_of_transformers_that_does_more_than_its_backend_is_asked():
    changed = OfTransformers(str.upper)
    adapted = adapt(changed)
    assert (adapted.engine, adapted.bos_id, adapted.eos_id) == ("its own", None, 50256)
    assert ids_of(adapted, ["abc"]) == [changed.encode("ABC", add_special_tokens=False)]


@pytest.mark.slow
def test_a_tokenizer_that_is_asked_can_be_sent_to_another_process():
    copy = pickle.loads(pickle.dumps(adapt(OfTransformers(str.upper))))
    assert copy.engine == "its own"
    assert ids_of(copy, ["abc"]) == ids_of(adapt(OfTransformers(str.upper)), ["abc"])


def test_millstreams_own_tokenizer_stays_as_it_is():
    own = millstream.load_tokenizer("bytes")
    assert adapt(own) is own


def test_what_cannot_encode_is_refused():
    with pytest.raises(UsageError, match=r"expected a tokenizer with encode.*found object"):
        adapt(object())
    with pytest.raises(UsageError, match="returns token ids neither"):
        adapt(SimpleNamespace(encode=lambda text: text))
    with pytest.raises(UsageError, match="do not start with it"):
        adapt(
            SimpleNamespace(bos_id=1, encode=lambda texts, prepend, num_threads: [[2]] * len(texts))
        )


def test_a_tokenizer_that_is_asked_is_asked_by_one_thread_at_a_time():
    inside, most = 0, 0

    def encode(text):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.001)
        inside -= 1
        return utf8(text)

    adapted = adapt(SimpleNamespace(encode=encode))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda text: ids_of(adapted, [text]), ["a", "b", "c", "d"] * 5))
    assert found == [[utf8(text)] for text in ["a", "b", "c", "d"] * 5]
    assert most == 1


def test_ids_that_are_held_stay_as_they_are():
    adapted = adapt(encoding())
    data = [np.frombuffer(text.encode(), np.uint8) for text in TEXTS[2:]]
    held = [adapted.encode(text, np.array([0, text.size]))[0] for text in data]
    expected = encoding().encode_ordinary_batch(TEXTS[2:])
    assert [ids.tolist() for ids in held] == expected
    parts = [ids[:3] for ids in held]
    del held
    assert [ids_of(adapted, [text])[0] for text in TEXTS[2:]] == expected
    assert [part.tolist() for part in parts] == [ids[:3] for ids in expected]


def test_wrong_answers_are_errors_that_say_so():
    answers = {"big": [1 << 32], "low": [-1]}
    many = SimpleNamespace(encode=lambda texts: [answers.get(text, []) for text in texts])
    tokenizer = adapt(many)
    for text in ("big", "low"):
        with pytest.raises(FormatError, match="other than token ids"):
            ids_of(tokenizer, [text])
    short = adapt(SimpleNamespace(encode=lambda texts: [[1]] * min(len(texts), 5)))
    with pytest.raises(FormatError, match="returned 5 lists of ids for 6 texts"):
        ids_of(short, list("abcdef"))


def test_fingerprints_tell_tokenizers_apart():
    by_shift = [
        adapt(SimpleNamespace(encode=lambda text, k=k: [b + k for b in text.encode()], bos_id=bos))
        for k, bos in [(0, 256), (0, 256), (1, 256), (0, 257)]
    ]
    first, same, other_ids, other_start = (each.fingerprint for each in by_shift)
    assert first == same
    assert len({first, other_ids, other_start}) == 3


class InThreads:
    """Holds every thread but the main one in `encode`."""

    def __init__(self):
        self.started, self.may_end = threading.Event(), threading.Event()

    def encode(self, text):
        if threading.current_thread() is not threading.main_thread():
            self.started.set()
            self.may_end.wait()
        return [len(text)]


@pytest.mark.process
def test_a_forked_child_can_ask_even_if_a_thread_of_its_parent_was_asking():
    asked = InThreads()
    adapted = adapt(asked)
    thread = threading.Thread(target=ids_of, args=(adapted, ["abc"]))
    thread.start()
    asked.started.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process with threads
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if ids_of(adapted, ["ab", "c"]) == [[2], [1]] else 1)
    asked.may_end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


class Words:
    """A tokenizer that can be pickled."""

    bos_token_id = 0

    def encode(self, text):
        return [len(word) for word in text.split()]


def test_a_tokenizer_that_is_asked_can_be_pickled_if_the_object_can():
    adapted = adapt(Words())
    copy = pickle.loads(pickle.dumps(adapted))
    assert ids_of(copy) == ids_of(adapted)
    assert (copy.fingerprint, copy.bos_id) == (adapted.fingerprint, 0)
