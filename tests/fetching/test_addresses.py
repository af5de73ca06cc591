"""Addresses: patterns, repositories and lists to URLs and file names."""

import subprocess
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.fetching.addresses import (
    expand,
    find_targets,
    parse_shards,
    read_list,
    read_sums,
    shown,
)

HASH = "ab" * 32
ends = st.tuples(st.integers(0, 200), st.integers(0, 12), st.integers(1, 4), st.integers(1, 4))


@pytest.mark.process
@settings(max_examples=40, deadline=None)
@given(
    ranges=st.lists(ends, min_size=1, max_size=3),
    words=st.lists(st.text("ab-_./", max_size=4), min_size=4, max_size=4),
)
def test_ranges_are_those_of_bash(ranges, words):
    braces = [f"{{{low:0{width}d}..{low + more:0{other}d}}}" for low, more, width, other in ranges]
    pattern = "x" + "".join(word + brace for word, brace in zip(words, braces, strict=False))
    program = f"printf '%s\\n' {pattern}"
    bash = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert expand(pattern) == bash.stdout.splitlines()


@given(
    numbers=st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
    width=st.integers(1, 9),
    low=st.integers(0, 50),
)
def test_places_take_the_numbers_of_shards(numbers, width, low):
    pattern = f"https://h/{{:0{width}d}}/{{}}_{{{low}..{low + 1}}}"
    assert expand(pattern, numbers) == [
        f"https://h/{n:0{width}d}/{n}_{k}" for n in numbers for k in (low, low + 1)
    ]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), min_size=1, max_size=8))
def test_shards_are_numbers_and_ranges(parts):
    text = ", ".join(f"{low}-{low + more}" if more else f"{low}" for low, more in parts)
    assert parse_shards(text) == [n for low, more in parts for n in range(low, low + more + 1)]


@pytest.mark.parametrize(
    ("pattern", "shards", "message"),
    [
        ("https://h/{9..3}", None, r"9 is larger than 3; write \{3..9\}"),
        ("https://h/{a,b}", None, r"braces must contain a range, as in \{00000..00239\}"),
        ("https://h/{0..3", None, "braces must contain a range"),
        ("https://h/{0..3}}", None, "braces must contain a range"),
        ("https://h/{}", None, "needs shard numbers"),
        ("https://h/{:s}", [1], "braces must contain a range|no URL contains"),
        ("https://h/a", [1], "no URL contains"),
        ("https://h/{0..99999999999}", None, "100,000,000,000 URLs; the limit is 1,000,000"),
        ("https://h/{0..9999}/{0..9999}", None, "100,000,000 URLs; the limit is 1,000,000"),
    ],
)
def test_patterns_that_mean_nothing_are_explained(pattern, shards, message):
    with pytest.raises(UsageError, match=message):
        find_targets(pattern, shards)


@pytest.mark.parametrize("text", ["", "1-", "3-1", "a", "1,,2", "-3", "1.5"])
def test_shards_that_mean_nothing_are_explained(text):
    with pytest.raises(UsageError, match=r"is invalid; write them as in 0-239,6542"):
        parse_shards(text)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://h/a", "a URL must start with https:// or http:// and a host"),
        ("/etc/passwd", "a URL must start with"),
        ("https:///a", "a URL must start with"),
        ("https://u:secret@h/a", "https://…@h: pass credentials in a header"),
        ("https://h", "'' cannot be used as a file name"),
        ("https://h/a/", "'' cannot be used as a file name"),
        ("https://h/..", "'..' cannot be used as a file name"),
        ("https://h/a/..%2F..%2Fx", "'../../x' cannot be used as a file name"),
        ("https://h/.fetch", "'.fetch' cannot be used as a file name"),
        ("https://h/a%00b", "cannot be used as a file name"),
        (f"https://h/{'a' * 231}", "or exceed 230 bytes"),
        ("https://h/a b c", "is neither a URL nor a URL with its sha256"),
        ("", "'' is neither a URL"),
        ("http://[::1/x", "'http://\\[::1/x' is not a URL: Invalid IPv6 URL"),
        ("http://u:secret@[::1/x?token=secret", "'http://…@\\[::1/x\\?…' is not a URL"),
        ("http://h:port/x", "is not a URL: Port could not be cast"),
        ("http://h:65536/x", "is not a URL: Port out of range"),
        ("http://h%00.org/x", "is not a host name"),
        ("http://bücher.example/x", "'bücher.example' is not a host name; write names that"),
        ("http://h/\ud800", "is not a URL"),
        (f"https://h/{{0..1}} {HASH}", "one sha256 cannot match 2 files"),
    ],
)
def test_urls_that_cannot_become_files_are_refused(url, message):
    with pytest.raises(UsageError, match=message):
        find_targets([url])


@settings(max_examples=50, deadline=None)
@given(st.text(st.sampled_from("ab:/[]@?#%{}.0à\x00\ud800 \\"), max_size=20))
def test_any_text_behind_a_scheme_is_a_url_or_a_usage_error(near):
    for text in (near, f"{near}/a", f"[{near}/a"):
        try:
            targets = find_targets([f"http://{text}"])
        except UsageError as error:
            str(error).encode(errors="surrogatepass")
        else:
            # What is accepted is what http.client can be asked for.
            for target in targets:
                HTTPConnection(urlsplit(target.url).netloc).close()
                assert shown(target.url).isascii()


def test_two_urls_with_one_name_are_refused_and_one_twice_is_one():
    with pytest.raises(UsageError, match="https://h/a/x and https://h/b/x have the same file name"):
        find_targets(["https://h/a/x", "https://h/b/x"])
    assert len(find_targets(["https://h/x1", "https://h/x{0..2}"])) == 3


def test_names_are_decoded_and_urls_are_quoted():
    [target] = find_targets("https://h/b%C3%BCcher/tür%20a+b.txt?x=1&y=%20#part")
    assert target.name == "tür a+b.txt"
    assert target.url == "https://h/b%C3%BCcher/t%C3%BCr%20a+b.txt?x=1&y=%20"


def test_lists_have_checksums_before_or_after(tmp_path):
    path = tmp_path / "list"
    path.write_text(f"# c\n{HASH}  https://h/a\n\n  https://h/b {HASH.upper()}\nhttps://h/c\n")
    targets = find_targets(read_list(path))
    assert [(t.name, t.sha256) for t in targets] == [("a", HASH), ("b", HASH), ("c", None)]
    with pytest.raises(UsageError, match="'a' has two checksums"):
        find_targets(read_list(path), None, {"a": "cd" * 32})


def test_checksum_files_are_read_as_sha256sum_writes_them(tmp_path):
    path = tmp_path / "SHA256SUMS"
    path.write_text(f"{HASH}  a\n{HASH.upper()} *dir/b c\n\n")
    assert read_sums(path) == {"a": HASH, "b c": HASH}
    path.write_text(f"{HASH}  a\nmd5 a\n")
    with pytest.raises(FormatError, match="line 2: 'md5 a' is not output of sha256sum"):
        read_sums(path)
    path.write_text(f"{HASH}  x/a\n{'cd' * 32}  y/a\n")
    with pytest.raises(FormatError, match="line 2: 'a' already has a different checksum"):
        read_sums(path)
    with pytest.raises(MissingDataError, match="no such file"):
        read_sums(tmp_path / "none")
