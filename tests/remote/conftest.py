import itertools
import os
import resource

import pytest

from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.object_servers import FileServer, S3Server
from tests.helpers.odd_server import serving as serving_oddly

_numbers = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def _many_open_files():
    """Raise the limit of open files: a process keeps its connections to each of 200 buckets.

    The usual limit is 1,024, with more allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = max(soft, 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192))
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(autouse=True)
def _own_world(tmp_path, monkeypatch):
    """A cache for each test, and nothing of the machine's own: no proxies, no accounts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "*")
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    # Without keys, obstore asks the cloud's metadata service at 169.254.169.254 for them.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """An S3 server, where anybody may read the bucket "public"."""
    with S3Server(tmp_path_factory.mktemp("s3"), public_bucket="public") as server:
        yield server


@pytest.fixture
def bucket(s3):
    """Name of a new bucket."""
    name = f"bucket-{next(_numbers)}"
    s3.create_bucket(name)
    return name


@pytest.fixture
def s3_environment(s3, monkeypatch):
    """The variables by which clients find the S3 server, set."""
    environment = s3.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


@pytest.fixture
def s3_proxy(s3):
    """A proxy before the S3 server, without faults as yet."""
    with FaultProxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def file_server(tmp_path):
    """An HTTP server of the files in its `directory`."""
    (tmp_path / "www").mkdir()
    with FileServer(tmp_path / "www") as server:
        yield server


@pytest.fixture
def http_proxy(file_server):
    """A proxy before the HTTP server, without faults as yet."""
    with FaultProxy(file_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def odd_server(monkeypatch):
    """A server that can answer oddly, to clients of S3 too; name it as their endpoint."""
    with serving_oddly() as server:
        for name, value in (("ACCESS_KEY_ID", "tests"), ("SECRET_ACCESS_KEY", "secret")):
            monkeypatch.setenv(f"AWS_{name}", value)
        yield server
