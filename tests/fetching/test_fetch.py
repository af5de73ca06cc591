"""`fetch` against a real server: retries, resumption, checksums, several processes."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import millstream
from millstream.cli import main
from millstream.errors import FetchError, UsageError
from tests.helpers.bad_server import serving
from tests.helpers.fetching import BODY, OTHER, fetch, parts
from tests.helpers.waiting import wait_until

HALF = len(BODY) // 2


def sha256(body):
    return hashlib.sha256(body).hexdigest()


def start(*arguments):
    command = [sys.executable, "-m", "millstream", "fetch", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("no_thread_is_left")
def test_many_files_arrive_whole_and_a_second_call_asks_for_nothing(server, tmp_path):
    bodies = {f"shard_{n:05d}.bin": random.Random(n).randbytes(n * 1000) for n in range(20)}
    for name, body in bodies.items():
        server.add(name, body)
    pattern = f"{server.url}/shard_{{00000..00019}}.bin"
    report, notes = fetch(pattern, tmp_path / "out")
    assert [path.name for path in report.files] == list(bodies)
    assert {path.name: path.read_bytes() for path in report.files} == bodies
    assert (report.num_fetched, report.num_skipped, report.failed) == (20, 0, ())
    assert report.received_bytes == sum(map(len, bodies.values()))
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [".fetch", *bodies]
    assert [each.name for each in (tmp_path / "out" / ".fetch").iterdir()] == ["records.jsonl"]
    server.requests.clear()
    again, notes = fetch(pattern, tmp_path / "out")
    assert (again.num_fetched, again.num_skipped, notes) == (0, 20, [])
    assert again.files == report.files
    assert server.requests == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "sent"),
    [
        ([(500, {}), (502, {})], [0, 0, len(BODY)]),
        (["truncate"], [HALF, HALF]),
        (["stall"], [HALF, HALF]),
        (["truncate", "truncate", "stall"], [HALF, HALF // 2, HALF // 4, HALF // 4]),
        (["truncate", "range as 200"], [HALF, HALF]),
        (["truncate", "ignore range"], [HALF, len(BODY)]),
        (["truncate", "ignore range", "truncate"], [HALF, len(BODY)]),
        (["chunked"], [None]),
        (["chunked cut"], [None, HALF]),
        (["too long"], [len(BODY), 0, len(BODY)]),
    ],
    ids=str,
)
def test_a_server_that_fails_is_asked_for_the_rest(server, tmp_path, faults, sent):
    url = server.add("a.bin", BODY, *faults)
    fetch(url, tmp_path, timeout_s=1 if "stall" in faults else 20)
    assert (tmp_path / "a.bin").read_bytes() == BODY
    wait_until(lambda: server.sent("a.bin")[-1])  # the server counts after it has sent
    found = server.sent("a.bin")
    assert [want and got for want, got in zip(sent, found, strict=True)] == sent
    assert parts(tmp_path) == []


def test_a_connection_that_is_reset_is_gone_on_with(server, tmp_path):
    url = server.add("a.bin", BODY, "reset", "reset")
    fetch(url, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_a_file_that_changes_between_attempts_is_never_mixed(server, tmp_path):
    def change(file):
        file.body = OTHER

    url = server.add("a.bin", BODY, "truncate", change)
    _, notes = fetch(url, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == OTHER
    assert server.sent("a.bin")[-1] == len(OTHER)
    assert any(
        "the file on the server has changed, after 1,500,000 bytes; starting over" in n
        for n in notes
    )


def test_a_file_that_becomes_shorter_starts_over(server, tmp_path):
    def shorten(file):
        file.body = OTHER[:1000]

    url = server.add("a.bin", BODY, "truncate", shorten)
    fetch(url, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == OTHER[:1000]


def test_without_anything_to_tell_versions_apart_a_part_is_not_trusted(server, tmp_path):
    url = server.add("a.bin", BODY, "truncate", validators=False)
    fetch(url, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert server.sent("a.bin")[0] == HALF
    assert server.sent("a.bin")[-1] == len(BODY)
    url = server.add("b.bin", BODY, "truncate", validators=False)
    fetch(f"{url} {sha256(BODY)}", tmp_path)  # the checksum tells them apart
    assert server.sent("b.bin") == [HALF, HALF]


def test_last_modified_serves_where_the_etag_is_weak(server, tmp_path):
    headers = {"ETag": 'W/"x"', "Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT"}
    url = server.add("a.bin", BODY, "truncate", headers=headers, validators=False)
    fetch(url, tmp_path)
    assert server.sent("a.bin") == [HALF, HALF]

    def change(file):
        file.body = OTHER
        file.headers["Last-Modified"] = "Mon, 07 Nov 1994 08:49:37 GMT"

    url = server.add("b.bin", BODY, "truncate", change, headers=headers, validators=False)
    fetch(url, tmp_path)
    assert (tmp_path / "b.bin").read_bytes() == OTHER


@pytest.mark.slow
def test_retry_after_is_waited_for(server, tmp_path):
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - 100))
    url = server.add(
        "a.bin", BODY, (503, {"Retry-After": "1"}), (429, {"Retry-After": date}), (503, {})
    )
    _, notes = fetch(url, tmp_path)
    waits = [note.rpartition("; ")[2] for note in notes]
    assert waits == [
        "attempt 2 of 6 in 1.0 s",
        "attempt 3 of 6 in 0.0 s",
        "attempt 4 of 6 in 0.0 s",
    ]
    url = server.add("b.bin", BODY, (503, {"Retry-After": "86400"}))
    with pytest.raises(FetchError, match="the server asks to wait 86,400 s"):
        fetch(url, tmp_path)


def test_attempts_are_bounded_and_what_arrived_stays_for_the_next_call(server, tmp_path):
    small = BODY[:1000]
    url = server.add("a.bin", small, *["truncate"] * 3)
    with pytest.raises(FetchError, match="at byte 875; gave up after 3 attempts"):
        fetch(url, tmp_path, attempts=3)
    assert server.sent("a.bin") == [500, 250, 125]
    assert [part.stat().st_size for part in parts(tmp_path)] == [875]
    fetch(url, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == small
    assert server.sent("a.bin")[-1] == 126  # and the last byte again


@pytest.mark.slow
def test_attempts_that_bring_much_do_not_count(server, tmp_path):
    body = random.Random(2).randbytes(20_000_000)
    url = server.add("a.bin", body, "truncate", "truncate", "truncate")
    fetch(url, tmp_path, attempts=2)
    assert (tmp_path / "a.bin").read_bytes() == body


def test_attempts_that_bring_the_same_again_count(server, tmp_path):
    url = server.add("a.bin", BODY, *["truncate whole"] * 9)
    with pytest.raises(FetchError, match="gave up after 3 attempts"):
        fetch(url, tmp_path, attempts=3)
    assert server.sent("a.bin") == [HALF] * 3


def test_files_that_fail_do_not_hinder_others(server, tmp_path):
    for name in ("0", "2", "4"):
        server.add(name, BODY)
    server.add("3", BODY, (403, {}))
    with pytest.raises(FetchError, match=r"/1: the server has no such file \(HTTP 404") as caught:
        fetch(f"{server.url}/{{0..4}}", tmp_path, workers=2)
    report = caught.value.report
    assert [path.name for path in report.files] == ["0", "2", "4"]
    assert len(report.failed) == 2
    assert "denies access (HTTP 403 Forbidden); if it needs a login" in report.failed[1]
    assert len(server.sent("1")) == len(server.sent("3")) == 1  # not asked again


def test_a_checksum_that_is_wrong_leaves_nothing(server, tmp_path):
    url = server.add("a.bin", BODY)
    wrong = sha256(OTHER)
    with pytest.raises(FetchError, match=f"the sha256 is {sha256(BODY)}, expected {wrong}"):
        fetch(f"{wrong}  {url}", tmp_path)
    assert not (tmp_path / "a.bin").exists()
    assert parts(tmp_path) == []
    assert len(server.sent("a.bin")) == 1
    fetch(url, tmp_path, sha256={"a.bin": sha256(BODY).upper()})
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_a_part_with_wrong_bytes_is_found_out_by_the_checksum(server, tmp_path):
    url = server.add("a.bin", BODY, "truncate")
    with pytest.raises(FetchError):
        fetch(f"{url} {sha256(BODY)}", tmp_path, attempts=1)
    with parts(tmp_path)[0].open("r+b") as file:
        file.write(b"damage")
    fetch(f"{url} {sha256(BODY)}", tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert server.sent("a.bin")[1:] == [HALF + 1, len(BODY)]


def test_files_that_are_there_are_compared_with_the_server_once(server, tmp_path):
    url = server.add("a.bin", BODY)
    (tmp_path / "a.bin").write_bytes(BODY)
    report, _ = fetch(url, tmp_path)
    assert (report.num_skipped, report.received_bytes) == (1, 0)
    fetch(url, tmp_path)
    assert len(server.requests) == 1
    (tmp_path / "b.bin").write_bytes(BODY[:-1])
    report, notes = fetch(server.add("b.bin", BODY), tmp_path)
    assert (tmp_path / "b.bin").read_bytes() == BODY
    assert notes == ["b.bin: the existing file has 2,999,999 bytes; fetching it again"]
    (tmp_path / "c.bin").write_bytes(OTHER)
    report, notes = fetch(f"{server.add('c.bin', BODY)} {sha256(BODY)}", tmp_path)
    assert (tmp_path / "c.bin").read_bytes() == BODY
    assert "another sha256" in notes[0]


def test_verify_finds_damage_and_fetches_again(server, tmp_path):
    url = server.add("a.bin", BODY)
    fetch(url, tmp_path)
    (tmp_path / "a.bin").write_bytes(OTHER)
    report, _ = fetch(url, tmp_path)
    assert report.num_skipped == 1  # the size is right, and nobody looked
    report, notes = fetch(url, tmp_path, verify=True)
    assert report.num_fetched == 1
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert "another sha256" in notes[0]
    assert fetch(url, tmp_path, verify=True)[0].num_skipped == 1


def test_the_same_name_from_elsewhere_is_not_taken_for_it(server, tmp_path):
    fetch(server.add("get?id=1", BODY), tmp_path)
    fetch(server.add("get?id=2", OTHER), tmp_path)
    assert (tmp_path / "get").read_bytes() == OTHER
    assert "id=2" not in (tmp_path / ".fetch" / "records.jsonl").read_text()
    report, _ = fetch(server.add("get?id=2&signed=now", OTHER), tmp_path)
    assert report.num_skipped == 1


def test_headers_are_not_sent_to_another_host_and_hugging_face_checksums_are_checked(
    server, tmp_path
):
    with serving() as elsewhere:
        there = elsewhere.add("blob", BODY, validators=False)
        linked = {"X-Linked-ETag": f'"{sha256(BODY)}"'}
        url = server.add("a.bin", b"", *[(302, {"Location": "/hop"} | linked)] * 2)
        server.add("hop", b"", *[(307, {"Location": there})] * 2)
        headers = {"Authorization": "Bearer secret"}
        fetch(url, tmp_path, headers=headers)
        assert (tmp_path / "a.bin").read_bytes() == BODY
        sent = [request.headers.get("Authorization") for request in server.requests]
        assert sent == ["Bearer secret", "Bearer secret"]
        assert "Authorization" not in elsewhere.requests[0].headers
        assert elsewhere.requests[0].headers["Accept-Encoding"] == "identity"
        elsewhere.add("blob", OTHER)
        with pytest.raises(
            FetchError, match=f"the sha256 is {sha256(OTHER)}, expected {sha256(BODY)}"
        ):
            fetch(url, tmp_path / "again", headers=headers)


@pytest.mark.parametrize(
    ("faults", "more", "message"),
    [
        (["no length"], {}, "does not announce the size"),
        ([], {"headers": {"Content-Encoding": "gzip"}}, "the server compresses the file as gzip"),
        ([(302, {"Location": "file:///etc/passwd"})], {}, "HTTP 302"),
        ([(302, {"Location": "/a.bin"})] * 20, {}, "HTTP 302"),
        ([(206, {"Content-Range": "bytes 5-9/100"})], {}, "bytes 5-9/100', not from byte 0"),
        ([(204, {})], {}, "HTTP 204 No Content, not the file"),
    ],
)
def test_answers_that_are_not_the_file_are_refused(server, tmp_path, faults, more, message):
    url = server.add("a.bin", BODY, *faults, **more)
    with pytest.raises(FetchError, match=message):
        fetch(url, tmp_path)
    assert not (tmp_path / "a.bin").exists()


def test_files_that_are_stored_compressed_stay_so(server, tmp_path):
    url = server.add("a.jsonl.gz", BODY, headers={"Content-Encoding": "gzip"})
    fetch(url, tmp_path)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == BODY


def test_a_body_of_unknown_length_is_taken_with_its_checksum(server, tmp_path):
    fetch(f"{server.add('a.bin', BODY, 'no length')} {sha256(BODY)}", tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_nobody_listens(tmp_path):
    with serving() as server:
        url = f"{server.url}/a"
    with pytest.raises(FetchError, match="Connection refused, at byte 0; gave up after 2 attempts"):
        fetch(url, tmp_path, attempts=2)


@pytest.mark.process
def test_a_killed_process_is_gone_on_with(server, tmp_path):
    url = server.add("a.bin", BODY, "stall")
    process = start(url, "--out", str(tmp_path))
    wait_until(lambda: sum(part.stat().st_size for part in parts(tmp_path)) == HALF)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "a.bin").exists()
    report, _ = fetch(url, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert server.sent("a.bin") == [HALF, HALF + 1]
    assert report.received_bytes == HALF + 1
    assert os.listdir(tmp_path / ".fetch") == ["records.jsonl"]


def test_a_process_killed_between_the_last_byte_and_the_name_needs_one_byte(server, tmp_path):
    url = server.add("a.bin", BODY, "truncate")
    with pytest.raises(FetchError):
        fetch(url, tmp_path, attempts=1)
    parts(tmp_path)[0].write_bytes(BODY)
    fetch(url, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert server.sent("a.bin")[-1] == 1


@pytest.mark.process
def test_ctrl_c_ends_at_once_and_leaves_what_arrived(server, tmp_path):
    url = server.add("a.bin", BODY, "stall")
    process = start(url, "--out", str(tmp_path), "--timeout", "100")
    wait_until(lambda: sum(part.stat().st_size for part in parts(tmp_path)) == HALF)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "millstream fetch: interrupted; run it again to continue\n"
    fetch(url, tmp_path)
    assert server.sent("a.bin") == [HALF, HALF + 1]


@pytest.mark.process
def test_two_processes_fetch_every_file_once(server, tmp_path):
    names = [f"{n}.bin" for n in range(6)]
    for name in names:
        server.add(name, BODY, "stall" if name == "0.bin" else "truncate")
    arguments = (f"{server.url}/{{0..5}}.bin", "--out", str(tmp_path), "--timeout", "3")
    processes = [start(*arguments), start(*arguments, "--workers", "3")]
    printed = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    for name in names:
        assert (tmp_path / name).read_bytes() == BODY
        assert server.sent(name) == [HALF, HALF]
    fetched = [int(out.split()[0]) for out, _ in printed]
    assert sum(fetched) == 6


@pytest.mark.process
def test_the_command_line_sums_up(server, tmp_path, capsys):
    server.add("a_00000.bin", BODY)
    server.add("a_00007.bin", OTHER)
    listed = tmp_path / "urls.txt"
    listed.write_text(
        f"# some\n\n{server.add('b.bin', BODY)}  {sha256(BODY)}\n{server.url}/c.bin\n"
    )
    pattern = f"{server.url}/a_{{:05d}}.bin"
    out = tmp_path / "out"
    arguments = ["fetch", pattern, "--shards", "0,7", "--list", str(listed), "--out", str(out)]
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("3 fetched (9.0 MB in ")
    assert printed.out.endswith("/s), 0 already there, 1 failed\n")
    assert printed.err == (
        f"not fetched: {server.url}/c.bin: the server has no such file (HTTP 404 Not Found)\n"
    )
    sums = subprocess.run(["sha256sum", *out.glob("*.bin")], capture_output=True, check=True)
    (tmp_path / "SHA256SUMS").write_bytes(sums.stdout)
    arguments = ["fetch", pattern, "--shards", "0,7", "--out", str(out), "--verify"]
    assert main([*arguments, "--sha256-from", str(tmp_path / "SHA256SUMS")]) == 0
    assert ", 2 already there, 0 failed" in capsys.readouterr().out
    assert main([*arguments, "--header", "secret"]) == 1
    assert "secret" not in capsys.readouterr().err


@pytest.mark.process
def test_a_disk_without_room_is_said_and_the_rest_comes_later(server, tmp_path):
    url = server.add("a.bin", BODY)
    program = (
        "import resource, sys, millstream.cli\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "sys.exit(millstream.cli.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, "fetch", url, "--out", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == (
        f"millstream fetch: {tmp_path}/a.bin: File too large; fetched data is kept; run it "
        "again to continue\n"
    )
    report, _ = fetch(url, tmp_path)
    assert report.received_bytes == len(BODY) - 1_000_000 + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"headers": {"Bad name": "x"}}, "the header 'Bad name' is invalid"),
        ({"headers": {"X": "secret\r\nEvil: 1"}}, "the header 'X' is invalid"),
        ({"workers": 0}, "workers is 0"),
        ({"attempts": 0}, "attempts is 0"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"sha256": {}}, "'a' has no entry in the 0 checksums; nothing was fetched"),
        ({"sha256": {"a": "12"}}, "the sha256 of 'a' is '12'"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_anything_is_done(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        millstream.fetch("http://127.0.0.1:9/a", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_login_that_was_given_is_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        url = server.add("a", b"x", (403, {}), (403, {}))
        with pytest.raises(FetchError, match="if it needs a login, give --header"):
            millstream.fetch(url, tmp_path)
        signed = server.add("b?signature=abc", b"x", (403, {}))
        with pytest.raises(FetchError, match="a signed URL may have expired: get a new one"):
            millstream.fetch(signed, tmp_path)
        with pytest.raises(FetchError, match="the given Authorization header is not valid"):
            millstream.fetch(url, tmp_path, headers={"authorization": "Bearer x"})
