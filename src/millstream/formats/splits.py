"""Splits: which part of a corpus a file belongs to, by the names that people use.

A path names a split if one of its words does: `fineweb_val_000000.bin`, `train/000.npy`,
`validation-00000-of-00002.parquet`, but not `latest.bin`, `trainer.bin` or `trainval.bin`. The last
part of the path that names exactly one split decides; `train_val.bin` is a split of its own.
Callers pass paths below what the user opened, so the user's own directories are never read as
splits.

Spellings of one word are the same split: val, valid and validation. `dev`, `eval` and `holdout` are
splits of their own, because a corpus may have them beside `val` and `test`.

Corpora have such words in their names too: `web-development`, `valid_json`. Beside files that name
no split, and where nothing names train, only a clear name counts: val, test and holdout as the
first or last word of a name, valid and eval as the last, dev alone.

Short words count only in pairs: `data_tr.bin` beside `data_va.bin`, `trn.bin` beside `vld.bin`.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from millstream.errors import SplitsError, UsageError
from millstream.suggestions import did_you_mean

TRAIN = "train"
_SPELLINGS = {
    TRAIN: ("train", "training", "trn"),
    "val": ("val", "valid", "validation", "validate", "minival", "crossval", "xval"),
    "test": ("test", "tests", "testing", "tst"),
    "dev": ("dev", "devel", "development"),
    "eval": ("eval", "evaluation"),
    "holdout": ("holdout", "heldout"),
}
_ENDINGS = ("set", "data", "split")  # valset, val_set, valdata
_SPLITS = {
    word + ending: name
    for name, words in _SPELLINGS.items()
    for word in words
    for ending in ("", *_ENDINGS)
}
_ONLY_LAST = ("valid", "validate", *_SPELLINGS["eval"])
_PASSED_OVER = (*_ENDINGS, "of", "text", "document")  # Megatron-LM's val_text_document.bin
_SUFFIXES = re.compile(
    r"(\.(bin|npy|ds|parquet|arrows?|batch|chnk|jsonl?|ndjson|txt|text|md|gz|zst|xz|bz2|lz4))+$",
    re.IGNORECASE,
)
_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"h[eo]ld[-_. ]out(?![^\W\d_])|[^\W\d_]+")
_SHORT = {"tr": TRAIN, "va": "val", "te": "test", "trn": TRAIN, "vld": "val"}
_SHORT_WORD = re.compile(r"(?<![^\W\d_])[a-z]{2,3}(?![^\W\d_])", re.IGNORECASE)
# Numbered files differ in digits only, so most names need to be read once.
_ONE_DIGIT = str.maketrans("123456789", "000000000")


def split_of(path: str) -> str:
    """The split that a relative path names, or "".

    >>> split_of("fineweb_val_000000.bin"), split_of("Validation/0.npy"), split_of("latest.bin")
    ('val', 'val', '')
    """
    several = ""
    for part in reversed(path.split("/")):
        named = dict.fromkeys(_SPLITS[word] for word in _words(part) if word in _SPLITS)
        if len(named) == 1:
            return next(iter(named))
        several = several or "+".join(named)
    return several


def _words(part: str) -> list[str]:
    words = _WORD.findall(_CAMEL_CASE.sub("_", part).lower())
    return [re.sub(r"[-_. ]", "", word) for word in words]


def _short_names(shapes: Iterable[str]) -> dict[str, str]:
    """The splits of paths that differ only in tr and va (and te), or in trn and vld.

    Beside other words of their length they mean something else: languages, countries.
    """
    families = dict[str, dict[str, str]]()
    for shape in shapes:
        for found in _SHORT_WORD.finditer(shape):
            family = f"{shape[: found.start()]}*{shape[found.end() :]}"
            families.setdefault(family, {})[found.group().lower()] = shape
    return {
        shape: _SHORT[word]
        for family in families.values()
        if family.keys() <= _SHORT.keys()
        and ({"tr", "va"} <= family.keys() or {"trn", "vld"} <= family.keys())
        for word, shape in family.items()
    }


def _is_clear(path: str) -> bool:
    """True if a path names a split where other words are unlikely."""
    for part in path.split("/"):
        stem = _SUFFIXES.sub("", part)
        words = [word for word in _words(stem) if word not in _PASSED_OVER] or [""]
        first, last = words[0], words[-1]
        names = {last} if len(words) == 1 or _SPLITS.get(last) != "dev" else set()
        names |= {first} if _SPLITS.get(first) != "dev" and first not in _ONLY_LAST else set()
        if names & _SPLITS.keys():
            return True
    return False


def divide(paths: Iterable[str], wanted: str | None = None) -> dict[str, list[int]]:
    """Group paths, by number, by the split they name; "" for those that name none.

    If a split is wanted, every word counts; otherwise the rules above apply.

    >>> divide(["train.bin", "val.bin", "train_2.bin"])
    {'train': [0, 2], 'val': [1]}
    """
    shapes = dict[str, list[int]]()
    for number, path in enumerate(paths):
        shapes.setdefault(path.translate(_ONE_DIGIT), []).append(number)
    names = {shape: split_of(shape) for shape in shapes}
    names |= _short_names(shape for shape, name in names.items() if name in ("", TRAIN))
    if wanted is None and "" in names.values() and TRAIN not in names.values():
        names = {shape: name if _is_clear(shape) else "" for shape, name in names.items()}
    found = dict[str, list[int]]()
    for shape, numbers in shapes.items():
        found.setdefault(names[shape], []).extend(numbers)
    return {name: sorted(numbers) for name, numbers in found.items()}


def choose(
    where: object,
    splits: Mapping[str, Sequence[int]],
    wanted: str | None = None,
    *,
    of: str = "",
) -> list[int]:
    """The numbers of the paths to open: those of the wanted split, or all.

    Without `wanted`, paths of different splits are refused. So are paths without a split beside a
    held-out one, which may have been taken from them. `of` names the function or class that takes
    `split`, for messages.
    """
    counts = {name: len(numbers) for name, numbers in splits.items()}
    if wanted is not None and set(splits) == {""}:
        raise UsageError(f"{where}: has no splits; leave out split={wanted!r} (--split)")
    if wanted is not None:
        found = find(where, counts, wanted)
        return sorted(itertools.chain.from_iterable(splits[name] for name in found))
    if len(splits) > 1 and set(splits) != {"", TRAIN}:
        refuse(where, counts, of)
    return sorted(itertools.chain.from_iterable(splits.values()))


def refuse(where: object, counts: Mapping[str, int], of: str = "") -> NoReturn:
    """Raise an error that lists the splits with their file counts, and how to choose one."""
    names = tuple(name for name in counts if name)
    train = [name for name in names if split_of(name) == TRAIN]
    first = next(iter(train or names))
    one = f'split="{first}"{of} (--split {first})'
    if "" in counts and not train:
        raise SplitsError(
            f"{where}: contains {_list(counts)}, judging by their names; opening all could mix "
            f"held-out data into training. Choose {one}, or list the files to open if {first} is "
            "not a split here"
        )
    if len(counts) == 1:
        raise SplitsError(f"{where}: contains only the split {_list(counts)}; choose {one}", names)
    found = f"{'several splits' if len(names) > 1 else 'a split'}: {_list(counts)}"
    raise SplitsError(
        f"{where}: contains {found}; choose one with {one}, or list the files to open",
        names if "" not in counts else (),
    )


def find(where: object, counts: Mapping[str, int], wanted: str) -> list[str]:
    """The split of that name, or all splits with that word in their names."""
    if not isinstance(wanted, str):
        raise UsageError(f"split is {wanted!r:.60}; it must be a name such as 'train'")
    if wanted and wanted in counts:
        return [wanted]
    name, names = wanted.lower(), [name for name in counts if name]
    meant = _SPLITS.get(name)
    found = [each for each in names if each.lower() == name or (meant and split_of(each) == meant)]
    if found:
        return found
    hint = did_you_mean(name, [*names, *(word for word in _SPLITS if _SPLITS[word] in names)])
    raise UsageError(f"{where}: no split {wanted!r}; found {_list(counts)}{hint}")


def _list(counts: Mapping[str, int]) -> str:
    shown = [f"{name} ({_files(count)})" for name, count in counts.items() if name]
    if counts.get(""):
        shown.append(f"{_files(counts[''])} without a split in the name")
    return ", ".join(shown)


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"
