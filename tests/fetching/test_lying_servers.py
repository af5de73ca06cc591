"""Servers that lie, contradict themselves, or send too much."""

import contextlib
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.cli import main
from millstream.errors import DatasetExistsError, FetchError, UsageError
from tests.helpers.fetching import BODY, OTHER, fetch, parts


def answer(*headers, status="200 OK", body=b"hello"):
    """The bytes of an answer, with just these headers."""
    lines = [f"HTTP/1.1 {status}", *headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def test_a_resumed_answer_with_another_total_length_starts_over(server, tmp_path):
    def grow(file):
        file.body = OTHER + b"more"

    url = server.add("a.bin", BODY, "truncate", grow, headers={"ETag": '"the same"'})
    _, notes = fetch(url, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == OTHER + b"more"
    assert any("the file on the server has changed" in note for note in notes)


def test_another_total_length_is_noticed_by_a_later_call(server, tmp_path):
    url = server.add("a.bin", BODY, "truncate", headers={"ETag": '"the same"'})
    with pytest.raises(FetchError, match="gave up after 1 attempt"):
        fetch(url, tmp_path, attempts=1)
    server.files["/a.bin"].body = OTHER + b"more"
    fetch(url, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == OTHER + b"more"


@pytest.mark.parametrize(
    "content_range",
    [
        "bytes 7-2999999/3000000",  # another start
        "bytes 1499999-2999999/*",
        "bytes 1499999-1499998/3000000",
        "bytes 1499999-3000000/3000000",
        "bytes 1499999-1500009/3000000",  # not as long as the Content-Length
        "items 1499999-2999999/3000000",
        "bytes 1499999-2999999/3000000, bytes 1499999-2999999/3000000",
    ],
)
def test_a_range_that_was_not_asked_for_is_not_joined(server, tmp_path, content_range):
    wrong = answer(
        "Content-Length: 1500001",
        f"Content-Range: {content_range}",
        'ETag: "x"',
        status="206 Partial Content",
        body=OTHER[1499999:],
    )
    url = server.add("a.bin", BODY, "truncate", wrong, headers={"ETag": '"x"'})
    _, notes = fetch(url, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert any("the server sent" in note and "starting over" in note for note in notes)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (["Content-Length: 5", "Content-Length: 6"], "Content-Length is '5' and '6'"),
        (["Content-Length: 5, 6"], "Content-Length is '5' and '6'"),
        (["Content-Length: -5"], "an invalid Content-Length, '-5'"),
        (["Content-Length: 5x"], "an invalid Content-Length"),
        (["Content-Length: +5"], "an invalid Content-Length"),
        (["Content-Length: 5_0"], "an invalid Content-Length"),
        (["Content-Length: \xb2"], "an invalid Content-Length"),
        (["Content-Length:"], "an invalid Content-Length, ''"),
        (["Content-Length: " + "9" * 5000], "an invalid Content-Length"),
        (["Content-Length: 5", "Transfer-Encoding: chunked"], "which exclude each other"),
        (["Transfer-Encoding: gzip, chunked"], "unknown Transfer-Encoding, 'gzip, chunked'"),
        (["Content-Length: 5", 'ETag: "a"', 'ETag: "b"'], "ETag is '\"a\"' and '\"b\"'"),
        (
            ["Content-Length: 5", "Content-Encoding: br", "Content-Encoding: gzip"],
            "contradicting headers",
        ),
        (["Content-Length: 100000000000000000"], "but the disk has only"),
        (["Content-Length: 5", "X: " + "a" * (1 << 20)], "header line"),
        ([f"X-{n}: a" for n in range(200)], "more than 100 headers"),
    ],
)
def test_headers_that_cannot_be_right_are_refused(server, tmp_path, headers, message):
    url = server.add("a.bin", BODY, answer(*headers), answer(*headers))
    with pytest.raises(FetchError, match=message):
        fetch(url, tmp_path / "out", attempts=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lengths", [["Content-Length: 5"] * 2, ["Content-Length: 5, 5"]])
def test_equal_lengths_that_come_twice_are_one(server, tmp_path, lengths):
    fetch(server.add("a.bin", BODY, answer(*lengths)), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == b"hello"


def test_a_body_longer_than_its_length_is_refused(server, tmp_path):
    long = answer("Content-Length: 4, 4")  # http.client then reads to the end of the connection
    with pytest.raises(FetchError, match="sent more than the 4 bytes that it announced"):
        fetch(server.add("a.bin", BODY, long), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "location", ["http://[::1/x", "file:///etc/passwd", "http://h:port/", "data:,x"]
)
def test_redirects_to_what_is_not_http_are_refused(server, tmp_path, location):
    url = server.add("a.bin", BODY, answer(f"Location: {location}", status="302 Found"))
    with pytest.raises(FetchError):
        fetch(url, tmp_path / "out", attempts=1)
    assert not (tmp_path / "out").exists()


_VALUE = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=9)
_NAMES = (
    "Content-Length Content-Range Transfer-Encoding ETag Last-Modified Location Retry-After "
    "Content-Encoding X-Linked-ETag"
)
_NAME = st.sampled_from(_NAMES.split())
_STATUS = st.sampled_from(["200 OK", "206 Partial", "302 Found", "416 No", "503 Later", "-1", ""])


@pytest.mark.slow
@given(_STATUS, st.lists(st.tuples(_NAME, st.one_of(_VALUE, st.just("5")))), st.binary(max_size=9))
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_whatever_a_server_sends_is_a_file_or_a_fetch_error(
    server, tmp_path, status, headers, body
):
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    raw = answer(*(f"{name}: {value}" for name, value in headers), status=status, body=body)
    url = server.add("a.bin", BODY, raw)
    with contextlib.suppress(FetchError):
        report, _ = fetch(url, tmp_path / "out", attempts=1)
        assert report.files[0].is_file()


def test_a_file_larger_than_allowed_is_refused_before_its_body_is_read(server, tmp_path):
    url = server.add("a.bin", BODY)
    with pytest.raises(FetchError, match=r"has 3,000,000 bytes; .*allows 2,999,999"):
        fetch(url, tmp_path / "out", max_bytes=len(BODY) - 1)
    assert not (tmp_path / "out").exists()
    report, _ = fetch(url, tmp_path / "out", max_bytes=len(BODY))
    assert report.received_bytes == len(BODY)


def test_a_body_that_does_not_say_its_length_ends_at_the_limit(server, tmp_path):
    url = server.add("a.bin", BODY, "chunked")
    with pytest.raises(FetchError, match=r"the file is larger; .*allows 2,000,000"):
        fetch(url, tmp_path / "out", max_bytes=2_000_000)
    assert not (tmp_path / "out").exists()


def test_a_part_of_a_file_that_is_too_large_is_not_gone_on_with(server, tmp_path):
    url = server.add("a.bin", BODY, "truncate")
    with pytest.raises(FetchError):
        fetch(url, tmp_path, attempts=1)
    with pytest.raises(FetchError, match=r"has 3,000,000 bytes; .*allows 1,000,000"):
        fetch(url, tmp_path, max_bytes=1_000_000)
    assert len(parts(tmp_path)) == 1  # which a call with a higher limit goes on with
    report, _ = fetch(url, tmp_path, max_bytes=len(BODY))
    assert report.received_bytes < len(BODY)


@pytest.mark.parametrize(("size", "status"), [("2999999", 1), ("3MB", 0), ("3 MiB", 0)])
def test_the_limit_of_the_command_may_have_a_unit(server, tmp_path, capsys, size, status):
    url = server.add("a.bin", BODY)
    assert main(["fetch", url, "--out", str(tmp_path), "--max-bytes", size]) == status
    assert ("max_bytes (--max-bytes) allows 2,999,999" in capsys.readouterr().err) == bool(status)


@pytest.mark.parametrize("size", ["0", "-1", "1.5GB", "GB", "10 zebras", "1e9"])
def test_a_limit_that_is_not_a_size_is_explained(tmp_path, capsys, size):
    with pytest.raises(SystemExit):
        main(["fetch", "http://h/a", "--out", str(tmp_path), f"--max-bytes={size}"])
    assert "is not a size; write it as in 1000000, 500MB or 2GiB" in capsys.readouterr().err
    with pytest.raises(UsageError, match="max_bytes"):
        fetch("http://h/a", tmp_path, max_bytes=0)


def test_a_file_where_the_directory_should_be_is_said(tmp_path):
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(DatasetExistsError, match="is a file, not a directory"):
        fetch("http://127.0.0.1:9/a", tmp_path / "out")


@pytest.mark.parametrize("status", ["404 \x1b[2Jgone", "599 \x9b2Jgone", "299 \x1b]0;title\x07"])
def test_what_a_server_says_reaches_the_terminal_escaped(server, tmp_path, capsys, status):
    url = server.add("a.bin", BODY, *[answer(status=status)] * 2)
    assert main(["fetch", url, "--out", str(tmp_path), "--attempts", "1"]) == 1
    error = capsys.readouterr().err
    assert "\\x" in error
    assert all(c.isprintable() or c == "\n" for c in error)
