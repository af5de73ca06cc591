"""The known split patterns, in every spelling in use.

Kernels split by these. A tokenizer with any other pattern runs on the engine it was made for.
"""

from typing import NamedTuple

from millstream.text.splitting.pieces import PatternFamily, pattern_code

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"


class Pattern(NamedTuple):
    """A known split pattern."""

    name: str
    regex: str
    """as published with the tokenizers of this name"""
    code: int
    """for kernels; see `pattern_code`"""


def _code(family: PatternFamily, max_digits: int, *, joins_trailing: bool = False) -> int:
    return pattern_code(family, max_digits, joins_trailing)


def _gpt4(digits: str) -> str:
    return (
        rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_KNOWN = (
    Pattern(
        "gpt2",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        _code(PatternFamily.GPT2, 0),
    ),
    Pattern("gpt4", _gpt4(r"\p{N}{1,3}"), _code(PatternFamily.GPT4, 3)),
    Pattern(
        "cl100k",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        _code(PatternFamily.GPT4, 3, joins_trailing=True),
    ),
    Pattern(
        "nanochat",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
        _code(PatternFamily.GPT4, 2),
    ),
    Pattern("qwen2", _gpt4(r"\p{N}"), _code(PatternFamily.GPT4, 1)),
    Pattern(
        "o200k",
        rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        _code(PatternFamily.O200K, 3),
    ),
)
PATTERNS = {pattern.name: pattern for pattern in _KNOWN}
# Other spellings of the same patterns.
_SPELLINGS = {
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": "gpt2",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "gpt4",
}


def find_pattern(regex: str) -> Pattern | None:
    """Return the known pattern with this regular expression or name; None if there is none.

    >>> find_pattern("nanochat").code == find_pattern(PATTERNS["nanochat"].regex).code
    True
    """
    for pattern in _KNOWN:
        if regex in (pattern.name, pattern.regex):
            return pattern
    name = _SPELLINGS.get(regex)
    return PATTERNS[name]._replace(regex=regex) if name else None
