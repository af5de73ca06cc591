"""What users are told about remote data that cannot be read: what it is, and what to do."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream.errors import MissingDataError, ReadError, UsageError
from tests.helpers.programs import run_python
from tests.helpers.remote_data import upload, write_tokens
from tests.helpers.waiting import wait_until

pytest.importorskip("obstore")
pytestmark = pytest.mark.process


def inspect(url, **environment):
    """The one line that `millstream inspect` prints about a URL that it cannot open."""
    command = [sys.executable, "-m", "millstream", "inspect", url]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=os.environ | environment,
    )
    assert done.returncode not in (0, -6, -11)
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def url(tmp_path, s3, bucket):
    write_tokens(tmp_path / "data", 5000)
    upload(s3.store(bucket), tmp_path / "data", "data/")
    return f"s3://{bucket}/data"


@pytest.mark.slow
def test_wrong_credentials(url, s3):
    text = inspect(url, **s3.environment() | {"AWS_SECRET_ACCESS_KEY": "wrong"})
    for part in (url, "access denied", "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"):
        assert part in text


@pytest.mark.slow
def test_no_credentials(url, s3):
    environment = s3.environment()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.pop(name)
    text = inspect(url, HOME="/nowhere", **environment)
    for part in (url, "no credentials found", "AWS_PROFILE", "anonymous=True"):
        assert part in text


@pytest.mark.usefixtures("s3_environment")
def test_a_key_without_its_secret(monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UsageError, match=r"s3://bucket: Missing SecretAccessKey; set AWS_ACCESS"):
        millstream.open("s3://bucket/data")


@pytest.mark.usefixtures("s3_environment")
def test_a_bucket_that_is_not_public(url):
    with pytest.raises(ReadError, match="not public: leave out anonymous=True"):
        millstream.open(url, remote=millstream.Remote(anonymous=True))


@pytest.mark.usefixtures("s3_environment")
@pytest.mark.parametrize("rest", ["data", "data.bin", "*.bin", ""])
def test_a_missing_bucket(rest):
    remote = millstream.Remote(total_seconds=1000)  # it must not be asked for again until then
    with pytest.raises(
        MissingDataError, match=r"s3://no-such-bucket: no such bucket.*check its name"
    ):
        millstream.open(f"s3://no-such-bucket/{rest}", remote=remote)


@pytest.mark.slow
@pytest.mark.usefixtures("s3_environment")
def test_a_missing_object(url):
    for name in ("nothing", "nothing.bin", "nothing/millstream.json"):
        with pytest.raises(MissingDataError, match=f"{url}/{name}: no such object"):
            millstream.open(f"{url}/{name}")
    with pytest.raises(MissingDataError, match="the pattern matches nothing"):
        millstream.open(f"{url}/x*.bin")
    assert f"{url}/nothing: no such object" in inspect(f"{url}/nothing")


@pytest.mark.slow
@pytest.mark.usefixtures("s3_environment")
def test_a_lost_network(url, s3_proxy):
    s3_proxy.down()
    remote = millstream.Remote(endpoint=s3_proxy.endpoint, total_seconds=0.5)
    with pytest.raises(ReadError) as failure:
        millstream.open(url, remote=remote)
    for part in (
        url,
        "attempts",
        "the last: Connection refused",
        "check the network",
        s3_proxy.endpoint,
        "total_seconds",
    ):
        assert part in str(failure.value)
    s3_proxy.up()

    def can_be_opened():
        with contextlib.suppress(ReadError):  # half a second may not be enough
            return millstream.open(url, remote=remote).num_records == 5000

    wait_until(can_be_opened)


@pytest.mark.parametrize("url", ["s3://bucket/data", "https://{}/data"])
@pytest.mark.usefixtures("s3_environment")
def test_a_server_without_tls(url, s3):
    endpoint = s3.endpoint.replace("http:", "https:")
    url = url.format(endpoint.removeprefix("https://"))
    with pytest.raises(ReadError, match="does not use TLS; write http://"):
        millstream.open(url, remote=millstream.Remote(endpoint=endpoint))


def test_a_web_server_that_is_down():
    with pytest.raises(ReadError, match="check the network and the URL, or allow more time"):
        millstream.open("http://127.0.0.1:9/data", remote=millstream.Remote(total_seconds=0.1))


@pytest.mark.slow
def test_a_clock_that_is_wrong(url, s3, s3_proxy):
    s3_proxy.set(rates={"403": 1.0})
    text = inspect(url, **s3.environment(s3_proxy.endpoint))
    for part in (url, "clock", "timedatectl set-ntp true"):
        assert part in text


@pytest.mark.slow
def test_an_http_directory_without_a_manifest(file_server):
    (file_server.directory / "data").mkdir()
    (file_server.directory / "data" / "x.bin").write_bytes(bytes(100))
    for name in ("data", "data/*.bin"):
        text = inspect(f"{file_server.endpoint}/{name}")
        assert "HTTP servers do not list files" in text
        assert "millstream.json" in text


@pytest.mark.parametrize("read", [millstream.open, lambda url: millstream.copy(url, "nowhere")])
def test_a_url_with_a_query_does_not_repeat_its_secrets(read):
    with pytest.raises(UsageError, match="millstream fetch") as failure:
        read("https://host/a.bin?X-Amz-Signature=secret")
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("url", ["https://me:secret@host/a.bin", "s3://key:secret@bucket/data"])
def test_a_url_with_a_password_does_not_repeat_it(url):
    with pytest.raises(UsageError, match="a password in a URL") as failure:
        millstream.open(url)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("variable", [None, "AWS_ENDPOINT_URL"])
def test_an_endpoint_with_a_password_is_neither_repeated_nor_stored(
    variable, tmp_path, monkeypatch
):
    endpoint = "http://me:secret@127.0.0.1:9"
    if variable:
        monkeypatch.setenv(variable, endpoint)
    remote = millstream.Remote(endpoint=None if variable else endpoint, anonymous=True)
    with pytest.raises(UsageError, match="has a login in its URL") as failure:
        millstream.open("s3://bucket/data", remote=remote)
    assert "secret" not in str(failure.value)
    stored = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert not any("secret" in text for text in stored)


@pytest.mark.parametrize(
    ("url", "variable"),
    [("s3://bucket/data", "AWS_ENDPOINT_URL"), ("az://bucket/data", "AZURE_STORAGE_ENDPOINT")],
)
def test_an_endpoint_that_is_empty(url, variable, monkeypatch):
    """obstore would panic."""
    monkeypatch.setenv(variable, "")
    with pytest.raises(UsageError, match=f"{variable} is empty; unset it"):
        millstream.open(url)


@pytest.mark.usefixtures("s3_environment")
def test_memory_maps_are_for_local_files(url):
    with pytest.raises(UsageError, match='access="mmap" is for local files; leave it out'):
        millstream.open(url, access="mmap")


@pytest.mark.parametrize("url", ["s3:///x", "s3://", "https://", "s3://bucket/../x"])
def test_urls_that_name_nothing(url):
    with pytest.raises(UsageError, match=f"^{url}: (no (bucket|host) in the URL|contains)"):
        millstream.open(url)


@pytest.mark.slow
def test_a_missing_obstore(tmp_path):
    (tmp_path / "obstore.py").write_text("raise ModuleNotFoundError('obstore')")
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import millstream
try:
    millstream.open("s3://bucket/data")
except millstream.MillstreamError as error:
    print(error)
"""
    done = run_python(program, tmp_path)
    assert (
        "remote data needs obstore; install it with pip install 'millstream[remote]'" in done.stdout
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_requests", 0), ("cache_bytes", -1), ("request_seconds", 0), ("hedge_seconds", -1.0)],
)
def test_options_that_cannot_be_are_refused(option, value):
    with pytest.raises(UsageError, match=option):
        millstream.Remote(**{option: value})


WRITERS = {
    "Writer": lambda out: millstream.Writer(out, vocab_size=9),
    "tokenize": lambda out: millstream.tokenize("text.txt", "bytes", out, workers=1),
    "repack": lambda out: millstream.repack("text.txt", out),
    "copy": lambda out: millstream.copy("text.txt", out),
    "finish": millstream.finish,
    "train_tokenizer": lambda out: millstream.train_tokenizer("text.txt", 300, out=out),
    "fetch": lambda out: millstream.fetch("https://host/file", out),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_url_as_a_target_never_becomes_a_directory(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some text\n")
    with pytest.raises(UsageError, match=r"s3://bucket/x: is remote.*not as a Path"):
        WRITERS[name](Path("s3://bucket/x"))
    with pytest.raises(UsageError, match="hf://x: hf:// cannot be written to"):
        WRITERS[name]("hf://x")
    if name in ("train_tokenizer", "fetch"):
        with pytest.raises(UsageError, match=r"is remote.*millstream copy DIRECTORY s3://bucket/x"):
            WRITERS[name]("s3://bucket/x")
    assert [each.name for each in tmp_path.iterdir()] == ["text.txt"]


def test_a_tokenizer_is_not_read_from_a_url():
    with pytest.raises(UsageError, match=r"millstream fetch s3://bucket/tokenizer\.json --out"):
        millstream.load_tokenizer("s3://bucket/tokenizer.json")
