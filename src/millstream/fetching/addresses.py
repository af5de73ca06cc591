"""Turns patterns, lists of URLs and checksums into targets."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256 as hash_of
from itertools import chain, product, zip_longest
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.fetching.objects import find_objects, is_object
from millstream.remote.options import Remote

_RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
_PLACE = re.compile(r"\{(?::0?\d{1,2}d)?\}")
_SHARDS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_SUM_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
# Names with a leading dot are reserved for the workplace; names of parts are 22 bytes longer.
_NAME = re.compile(r"[^./\x00-\x1f\x7f][^/\x00-\x1f\x7f]*")
_HOST = re.compile(r"([\w.-]+|\[[\da-fA-F:.]+\])(:\d{0,5})?", re.ASCII)
_MOST_NAME_BYTES = 230
_MOST_TARGETS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadTarget:
    """A URL and the file to fetch it into."""

    url: str
    name: str
    sha256: str | None
    """the checksum that the user expects, in lower case"""


def find_targets(
    urls: Iterable[str],
    shards: Sequence[int] | None = None,
    sha256: Mapping[str, str] | None = None,
    remote: Remote | None = None,
) -> list[DownloadTarget]:
    """Return the targets that URLs, patterns and lines of a list describe, without duplicates.

    Object stores are asked what a URL names there; `remote` says how they are reached.
    """
    targets: dict[str, DownloadTarget] = {}
    urls = [urls] if isinstance(urls, str) else list(urls)
    if shards is not None and not any(map(_PLACE.search, urls)):
        raise UsageError("shards are given, but no URL contains {} or {:05d} for their numbers")
    for entry in urls:
        pattern, given = _split_entry(entry)
        expanded = _expand(pattern, shards, remote or Remote())
        if given and len(expanded) > 1:
            raise UsageError(
                f"{entry}: one sha256 cannot match {len(expanded):,} files; list them separately"
            )
        for url in expanded:
            name = _name_of(url)
            target = DownloadTarget(url=url, name=name, sha256=_sum_of(name, given, sha256))
            if targets.setdefault(name, target) != target:
                raise UsageError(
                    f"{shown(targets[name].url)} and {shown(url)} have the same file name; "
                    "fetch them into different directories"
                )
            if len(targets) > _MOST_TARGETS:
                raise UsageError(f"more than {_MOST_TARGETS:,} files; fetch fewer at a time")
    if not targets:
        raise UsageError("no URL was given")
    return list(targets.values())


def _expand(pattern: str, shards: Sequence[int] | None, remote: Remote) -> list[str]:
    """Return every URL of a file that a pattern describes."""
    urls = expand(pattern, shards)
    if not is_object(pattern):
        return list(map(_checked, urls))
    return [found for url in urls for found in find_objects(url, remote)]


def expand(pattern: str, shards: Sequence[int] | None = None) -> list[str]:
    """Return every URL that a pattern describes: ranges as in a shell, and numbers of shards.

    >>> expand("https://host/{08..10}.txt")
    ['https://host/08.txt', 'https://host/09.txt', 'https://host/10.txt']
    >>> expand("https://host/shard_{:05d}.parquet", shards=[0, 6542])
    ['https://host/shard_00000.parquet', 'https://host/shard_06542.parquet']
    """
    patterns = [pattern]
    if _PLACE.search(pattern):
        if shards is None:
            raise UsageError(
                f"{pattern}: the pattern needs shard numbers; give them as in --shards 0-239,6542"
            )
        places = _PLACE.findall(pattern)
        patterns = [
            _interleave(_PLACE.split(pattern), [p.format(n) for p in places]) for n in shards
        ]
    if re.search("[{}]", _RANGE.sub("", _PLACE.sub("", pattern))):
        raise UsageError(
            f"{pattern}: braces must contain a range, as in {{00000..00239}}, or stand for shard "
            "numbers, as {} or {:05d}"
        )
    ranges = [_range(pattern, *ends) for ends in _RANGE.findall(pattern)]
    _limit(pattern, len(patterns) * math.prod(map(len, ranges)))
    return [
        _interleave(_RANGE.split(each)[::3], values)
        for each in patterns
        for values in product(*ranges)
    ]


def _interleave(literals: Sequence[str], values: Sequence[str]) -> str:
    return "".join(chain.from_iterable(zip_longest(literals, values, fillvalue="")))


def _range(pattern: str, first: str, last: str) -> list[str]:
    """Return the numbers of a range; as in Bash, a leading zero at either end pads them."""
    low, high = int(first), int(last)
    if low > high:
        raise UsageError(f"{pattern}: {first} is larger than {last}; write {{{last}..{first}}}")
    _limit(pattern, high - low + 1)
    padded = any(len(end) > 1 and end[0] == "0" for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in range(low, high + 1)]


def _limit(pattern: str, num_urls: int) -> None:
    if num_urls > _MOST_TARGETS:
        raise UsageError(f"{pattern}: {num_urls:,} URLs; the limit is {_MOST_TARGETS:,} at a time")


def parse_shards(text: str) -> list[int]:
    """Return the numbers that `0-239,6542` describes.

    >>> parse_shards("0-3,6542")
    [0, 1, 2, 3, 6542]
    """
    numbers: list[int] = []
    for part in text.split(","):
        found = _SHARDS.fullmatch(part.strip())
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if low > high:
            raise UsageError(
                f"shards {text!r}: {part.strip()!r} is invalid; write them as in 0-239,6542"
            )
        _limit(text, len(numbers) + high - low + 1)
        numbers.extend(range(low, high + 1))
    return numbers


def read_list(path: Path) -> list[str]:
    """Return the lines of a list of URLs, without comments."""
    lines = (line.strip() for line in _lines(path))
    return [line for line in lines if line and not line.startswith("#")]


def read_sums(path: Path) -> dict[str, str]:
    """Read the output of sha256sum: checksums by file name."""
    sums: dict[str, str] = {}
    for number, line in enumerate(_lines(path), 1):
        found = _SUM_LINE.fullmatch(line)
        if not found and line.strip():
            raise FormatError(
                f"{path}, line {number}: {line!r} is not output of sha256sum: 64 hexadecimal "
                "digits, two spaces, a file name"
            )
        if found:
            name, value = Path(found[2]).name, found[1].lower()
            if sums.setdefault(name, value) != value:
                raise FormatError(
                    f"{path}, line {number}: {name!r} already has a different checksum"
                )
    return sums


def shown(url: str) -> str:
    """Return a URL that is safe to show and store: its query, maybe a secret, becomes a hash."""
    if is_object(url):
        return url
    parts = urlsplit(url)
    query = parts.query and f"({hash_of(parts.query.encode()).hexdigest()[:8]})"
    return urlunsplit(parts._replace(query=query))


def _lines(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise MissingDataError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text ({error})") from None
    yield from text.splitlines()


def _split_entry(entry: str) -> tuple[str, str | None]:
    """Split a line into a URL and the checksum before or after it."""
    words = entry.split()
    sums = [word for word in words if _SHA256.fullmatch(word)]
    rest = [word for word in words if word not in sums]
    if len(rest) != 1 or len(sums) > 1:
        raise UsageError(f"{entry!r} is neither a URL nor a URL with its sha256")
    return rest[0], sums[0].lower() if sums else None


def _sum_of(name: str, given: str | None, sha256: Mapping[str, str] | None) -> str | None:
    if sha256 is None:
        return given
    if name not in sha256:
        raise UsageError(
            f"{name!r} has no entry in the {len(sha256):,} checksums; nothing was fetched"
        )
    listed = sha256[name].lower()
    if not _SHA256.fullmatch(listed):
        raise UsageError(f"the sha256 of {name!r} is {listed!r}; it must be 64 hexadecimal digits")
    if given not in (None, listed):
        raise UsageError(
            f"{name!r} has two checksums: {given} beside its URL, {listed} in the list"
        )
    return listed


def _checked(url: str) -> str:
    try:
        url = quote(url.partition("#")[0], safe="%/:=&?~+!$,;'@()*[]")
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"{_without_query(url)!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{_without_query(url)!r}: a URL must start with https:// or http:// and a host, or "
            "with s3://, gs:// or az:// and a bucket"
        )
    if "@" in parts.netloc:
        raise UsageError(
            f"{parts.scheme}://…@{parts.hostname}: pass credentials in a header, as in "
            "--header 'Authorization: Bearer …'"
        )
    if not _HOST.fullmatch(parts.netloc):
        raise UsageError(
            f"{_without_query(url)!r}: {unquote(parts.netloc)!r} is not a host name; write "
            "names that are not ASCII in the form that starts with xn--"
        )
    return url


def _without_query(url: str) -> str:
    """Return what may be a URL, without the parts that may be secret."""
    start, mark, _ = url.partition("?")
    return re.sub("//[^/]*@", "//…@", start) + (mark and "?…")


def _name_of(url: str) -> str:
    name = (url if is_object(url) else urlsplit(url).path).rpartition("/")[2]
    name = name if is_object(url) else unquote(name)
    if not _NAME.fullmatch(name) or len(name.encode()) > _MOST_NAME_BYTES:
        raise UsageError(
            f"{shown(url)}: {name!r} cannot be used as a file name: it must not be empty, start "
            f"with a dot, contain / or control characters, or exceed {_MOST_NAME_BYTES} bytes"
        )
    return name
