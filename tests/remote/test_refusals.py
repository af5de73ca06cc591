"""Answers of servers that another request would not change are told at once, with what to do."""

import numpy as np
import pytest

import millstream
from millstream.errors import MillstreamError, MissingDataError, ReadError, UsageError
from tests.helpers.remote_data import batches_of, write_tokens

pytest.importorskip("obstore")
pytestmark = pytest.mark.process

TOKENS = np.arange(5000, dtype=np.uint16)
BODY = TOKENS.tobytes()


def open_at(server, url, **options):
    options = {"endpoint": server.url, "total_seconds": 6, "request_seconds": 2} | options
    remote = millstream.Remote(**{name: each for name, each in options.items() if each is not None})
    return millstream.open(url, format="flat:uint16", remote=remote)


def refusal(server, url, **options):
    """The error of opening a URL, which comes without waiting."""
    with pytest.raises(MillstreamError) as failure:
        open_at(server, url, **{"total_seconds": 1000} | options)
    return failure.value


REGION = "The authorization header is malformed; the region 'x' is wrong; expecting 'eu-central-1'"


@pytest.mark.parametrize("url", ["s3://bucket/data", "s3://bucket/x.bin", "s3://bucket/*.bin"])
@pytest.mark.parametrize(
    ("status", "code", "message", "parts"),
    [
        (400, "ExpiredToken", "", ["credentials have expired", "renew them"]),
        (400, "AuthorizationHeaderMalformed", REGION, ["AWS_REGION=eu-central-1", "Remote(region"]),
        (301, "PermanentRedirect", "", ["another region", "AWS_REGION", "Remote(region=…)"]),
        (307, "TemporaryRedirect", "", ["another region", "AWS_REGION"]),
        (400, "InvalidBucketName", "It is bad.", ["InvalidBucketName: It is bad.", "endpoint"]),
        (402, "PaymentRequired", "", ["402 Payment Required", "refuses"]),
        (403, "InvalidAccessKeyId", "", ["access denied", "InvalidAccessKeyId"]),
        (403, "InvalidObjectState", "", ["archived", "restore it first"]),
        (407, "", "", ["proxy wants a login", "NO_PROXY"]),
        (410, "", "", ["no such object", "410 Gone"]),
        (501, "NotImplemented", "", ["does not support this", "endpoint"]),
    ],
)
def test_final_answers(odd_server, url, status, code, message, parts):
    odd_server.refuse(status, code, message)
    text = str(refusal(odd_server, url))
    assert text.startswith("s3://bucket/")
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("status", "code"), [(408, ""), (425, ""), (429, ""), (500, ""), (400, "RequestTimeout")]
)
def test_answers_that_may_change_are_asked_for_again(odd_server, status, code):
    odd_server.refuse(status, code)
    with pytest.raises(ReadError, match=r"no answer after [2-9] attempts"):
        open_at(odd_server, "s3://bucket/data", total_seconds=0.7)


def test_credentials_that_expire_in_a_run(odd_server):
    odd_server.files["bucket/x.bin"] = BODY * 100
    options = {"cache_bytes": 0, "ahead_bytes": 1 << 16, "total_seconds": 1000}
    data = open_at(odd_server, "s3://bucket/x.bin", **options)
    with (
        pytest.raises(ReadError, match="the credentials have expired; renew them"),
        millstream.Loader(data.windows(64), 4, seed=1, output="numpy") as loader,
    ):
        for _ in loader:
            odd_server.refuse(400, "ExpiredToken")


def test_a_web_page_as_an_endpoint(odd_server):
    page = b"<html>Hello</html>"
    odd_server.refusals = dict.fromkeys(("GET", "HEAD"), (200, {"ETag": '"page"'}, page))
    assert odd_server.url in str(refusal(odd_server, "s3://bucket/data"))
    text = str(refusal(odd_server, "s3://bucket/data/millstream.json"))
    assert f"not an object store; check the endpoint {odd_server.url}" in text


@pytest.mark.parametrize(("status", "error"), [(400, ReadError), (410, MissingDataError)])
def test_final_answers_of_http_servers(odd_server, status, error):
    odd_server.refuse(status)
    assert isinstance(refusal(odd_server, f"{odd_server.url}/x.bin", endpoint=None), error)


def test_a_redirect_in_a_circle(odd_server):
    odd_server.refuse(302, headers={"Location": f"{odd_server.url}/x.bin"})
    assert "in a circle" in str(refusal(odd_server, f"{odd_server.url}/x.bin", endpoint=None))


def test_a_server_without_ranges(odd_server):
    odd_server.files["x.bin"] = BODY
    odd_server.has_ranges = False
    text = str(refusal(odd_server, f"{odd_server.url}/x.bin", endpoint=None))
    assert "millstream fetch URL --out DIRECTORY" in text


@pytest.mark.parametrize("status", [400, 403, 405, 501])
def test_a_server_without_head(odd_server, status):
    odd_server.files = {"x.bin": BODY, "empty.bin": b""}
    odd_server.refuse(status, methods=["HEAD"])
    data = open_at(odd_server, f"{odd_server.url}/x.bin", endpoint=None)
    assert data.windows(100)[3]["input_ids"][:3].tolist() == TOKENS[300:303].tolist()
    assert open_at(odd_server, f"{odd_server.url}/empty.bin", endpoint=None).num_records == 0


def test_a_server_whose_head_tells_no_size(odd_server):
    odd_server.files["x.bin"] = BODY
    odd_server.refuse(200, headers={"Content-Length": None}, methods=["HEAD"])
    assert open_at(odd_server, f"{odd_server.url}/x.bin", endpoint=None).num_records == 5000


def test_a_server_that_answers_no_method(odd_server):
    odd_server.refuse(405)
    text = str(refusal(odd_server, f"{odd_server.url}/x.bin", endpoint=None))
    assert "405 Method Not Allowed" in text


@pytest.mark.parametrize("has_etag", [True, False])
@pytest.mark.parametrize("has_time", [True, False])
@pytest.mark.parametrize("name", ["x.bin", "data/files.json", "data"])
def test_a_server_that_cannot_tell_changes(odd_server, has_etag, has_time, name):
    odd_server.files = {"x.bin": BODY, "data/files.json": b"", "data/millstream.json": b""}
    odd_server.has_etag, odd_server.has_time = has_etag, has_time
    url = f"{odd_server.url}/{name}"
    if has_etag or has_time:
        if name == "x.bin":
            assert open_at(odd_server, url, endpoint=None).num_records == 5000
    else:
        text = str(refusal(odd_server, url, endpoint=None))
        for part in ("neither ETag nor Last-Modified", "millstream fetch URL --out DIRECTORY"):
            assert part in text


@pytest.mark.parametrize(
    ("endpoint", "part"),
    [
        ("localhost:9000", "write http://localhost:9000 or https://localhost:9000"),
        ("minio", "write http://minio or"),
        ("http://", "must be a URL"),
        ("ftp://host", "must be a URL"),
        ("http://127.0.0.1:99999", "must be a URL"),
        (" http://host", "must be a URL"),
        ("http://a b", "must be a URL"),
        ("http://host/?x=1", "must be a URL"),
    ],
)
@pytest.mark.parametrize(
    ("scheme", "variable"),
    [
        ("s3", "AWS_ENDPOINT_URL"),
        ("s3", "AWS_ENDPOINT_URL_S3"),
        ("gs", "GOOGLE_BASE_URL"),
        ("az", "AZURE_STORAGE_ENDPOINT"),
    ],
)
def test_endpoints_that_are_not_urls(odd_server, monkeypatch, scheme, variable, endpoint, part):
    url = f"{scheme}://of-{variable.lower().replace('_', '-')}/x"
    error = refusal(odd_server, url, endpoint=endpoint)
    assert isinstance(error, UsageError)
    assert f"the endpoint is {endpoint!r}" in str(error)
    assert part in str(error)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv(variable, endpoint)
    error = refusal(odd_server, url, endpoint=None)
    assert isinstance(error, UsageError)
    assert str(error).startswith(f"{variable} is {endpoint!r}")


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize("name", ["Bad Bucket", "a<b", "ü", "a%20b", "a#b", "-"])
def test_buckets_that_cannot_be(odd_server, scheme, name):
    error = refusal(odd_server, f"{scheme}://{name}/x")
    assert isinstance(error, UsageError)
    assert str(error).startswith(f"{scheme}://{name}: {name!r} cannot be the name of a bucket")


@pytest.mark.parametrize("root", ["127.0.0.1:abc", "127.0.0.1:99999", "[::1", "exa mple"])
def test_hosts_that_cannot_be(odd_server, root):
    error = refusal(odd_server, f"http://{root}/x.bin", endpoint=None)
    assert isinstance(error, UsageError)
    assert f"http://{root}: invalid" in str(error)


def test_a_panic_of_obstore_is_an_error_like_others(odd_server):
    error = refusal(odd_server, "s3://bucket/x.bin", endpoint=None, region="eu central")
    assert isinstance(error, ReadError)
    assert "s3://bucket/x.bin: obstore has failed" in str(error)


@pytest.mark.parametrize("cache_bytes", [0, None])
def test_data_that_may_be_read_but_not_listed(odd_server, tmp_path, cache_bytes):
    """To such users S3 denies what does not exist, such as companions that a file may have."""
    local = write_tokens(tmp_path / "data", 50_000, shard_bytes=30_000)
    names = [path.name for path in (tmp_path / "data").iterdir() if path.suffix != ".checksums"]
    files = {f"bucket/data/{name}": (tmp_path / "data" / name).read_bytes() for name in names}
    odd_server.files, odd_server.may_list = files | {"bucket/x.bin": BODY}, False
    options = {"cache_bytes": cache_bytes}
    assert open_at(odd_server, "s3://bucket/x.bin", **options).num_records == 5000
    remote = millstream.Remote(endpoint=odd_server.url, **options)
    data = millstream.open("s3://bucket/data", remote=remote)
    loaders = (
        millstream.Loader(each.windows(64), 8, seed=1, output="numpy") for each in (data, local)
    )
    first, second = (batches_of(each, 100) for each in loaders)
    assert first == second
    for missing in ("s3://bucket/y.bin", "s3://bucket/other", "s3://bucket/*.bin"):
        assert "access denied" in str(refusal(odd_server, missing))
