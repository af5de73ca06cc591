"""Splits: which part of a corpus a file belongs to, by the names that people use.

A path names a split if one of its words does: `fineweb_val_000000.bin`, `train/000.npy`,
`validation-00000-of-00002.parquet`, but not `latest.bin`, `trainer.bin` or `trainval.bin`. The last
part of the path that names exactly one split decides; `train_test_split/` names none. Callers pass
paths below what the user opened, so the user's own directories are never read as splits.

Spellings of one word are the same split: val, valid and validation. `dev`, `eval` and `holdout` are
splits of their own, because a corpus may have them beside `val` and `test`.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from penstock.errors import SplitsError, UsageError
from penstock.suggestions import did_you_mean

TRAIN = "train"
_SPELLINGS = {
    TRAIN: ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
    "dev": ("dev", "devel", "development"),
    "eval": ("eval", "evaluation"),
    "holdout": ("holdout", "heldout"),
}
_SPLITS = {word: name for name, words in _SPELLINGS.items() for word in words}
_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
_WORD = re.compile(r"h[eo]ld[-_. ]out(?![^\W\d_])|[^\W\d_]+")
# Numbered files differ in digits only, so most names need to be read once.
_ONE_DIGIT = str.maketrans("123456789", "000000000")


def split_of(path: str) -> str:
    """The split that a relative path names, or "".

    >>> split_of("fineweb_val_000000.bin"), split_of("Validation/0.npy"), split_of("latest.bin")
    ('val', 'val', '')
    """
    for part in reversed(path.split("/")):
        words = _WORD.findall(_CAMEL_CASE.sub("_", part).lower())
        named = {_SPLITS.get(re.sub(r"[-_. ]", "", word), "") for word in words} - {""}
        if len(named) == 1:
            return named.pop()
    return ""


def divide(paths: Iterable[str]) -> dict[str, list[int]]:
    """Which paths, by their numbers, name which split; those that name none are under "".

    >>> divide(["train.bin", "val.bin", "train_2.bin"])
    {'train': [0, 2], 'val': [1]}
    """
    found = dict[str, list[int]]()
    known = dict[str, list[int]]()  # the same lists, by the shape of the path
    for number, path in enumerate(paths):
        shape = path.translate(_ONE_DIGIT)
        numbers = known.get(shape)
        if numbers is None:
            numbers = known[shape] = found.setdefault(split_of(shape), [])
        numbers.append(number)
    return found


def choose(
    where: object,
    splits: Mapping[str, Sequence[int]],
    wanted: str | None = None,
    *,
    of: str = "",
) -> list[int]:
    """The numbers of the paths to open: those of the split that is wanted, or all of them.

    Without `wanted`, paths that name different splits are refused, and so are paths that name none
    beside a split that is held out: it may well have been taken from them. `of` says of what
    `split` is an argument.
    """
    counts = {name: len(numbers) for name, numbers in splits.items()}
    if wanted is not None and set(splits) == {""}:
        raise UsageError(
            f"{where}: has no splits to choose from; leave out split={wanted!r} (--split)"
        )
    if wanted is not None:
        return sorted(splits[find(where, counts, wanted)])
    if len(splits) > 1 and set(splits) != {"", TRAIN}:
        refuse(where, counts, of)
    return sorted(itertools.chain.from_iterable(splits.values()))


def refuse(where: object, counts: Mapping[str, int], of: str = "") -> NoReturn:
    """Say which splits there are, with how many files each, and how to choose one."""
    names = tuple(name for name in counts if name)
    first = TRAIN if TRAIN in names else names[0]
    one = f'split="{first}"{of} (--split {first})'
    if "" in counts and TRAIN not in counts:
        raise SplitsError(
            f"{where}: holds {_list(counts)}; all together would mix held-out data into training: "
            f"list the files to open, or choose {one}"
        )
    found = f"{'several splits' if len(names) > 1 else 'a split'}: {_list(counts)}"
    raise SplitsError(
        f"{where}: holds {found}; choose one with {one}, or list the files to open",
        names if "" not in counts else (),
    )


def find(where: object, counts: Mapping[str, int], wanted: str) -> str:
    """The split that is meant: by name, by another spelling, or the only one with that word."""
    if not isinstance(wanted, str):
        raise UsageError(f"split is {wanted!r:.60}; it must be a name such as 'train'")
    name, names = wanted.lower(), [name for name in counts if name]
    meant = _SPLITS.get(name)
    for found in (
        [each for each in names if each == wanted],
        [each for each in names if each.lower() == name],
        [each for each in names if meant and _SPLITS.get(each.lower()) == meant],
        [each for each in names if meant and split_of(each) == meant],
    ):
        if len(found) == 1:
            return found[0]
    hint = did_you_mean(name, [*names, *(word for word in _SPLITS if _SPLITS[word] in names)])
    raise UsageError(f"{where}: no split {wanted!r}; it holds {_list(counts)}{hint}")


def _list(counts: Mapping[str, int]) -> str:
    shown = [f"{name} ({_files(count)})" for name, count in counts.items() if name]
    if counts.get(""):
        shown.append(f"{_files(counts[''])} without a split in the name")
    return ", ".join(shown)


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"
