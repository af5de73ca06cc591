"""Google Cloud: gs:// URLs are read with its XML API, which a public bucket of an S3 server speaks.

No emulator of Google's service lists objects, or writes them in parts, in the XML API: writing and
credentials are not tested.
"""

import pytest

import millstream
from millstream.errors import MissingDataError, ReadError
from tests.helpers.remote_data import batches_of, upload, write_tokens

pytestmark = pytest.mark.process


@pytest.fixture
def local(tmp_path, s3):
    write_tokens(tmp_path / "data", 60_000)
    upload(s3.store("public"), tmp_path / "data", "google/")
    return tmp_path / "data"


def load(source, **options):
    view = millstream.open(source, **options).windows(64)
    return batches_of(millstream.Loader(view, batch_size=8, seed=1, output="numpy"), 50)


@pytest.mark.parametrize("cache_bytes", [None, 0])
@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_loading_equals_local_loading(s3, local, scheme, cache_bytes):
    remote = millstream.Remote(endpoint=s3.endpoint, anonymous=True, cache_bytes=cache_bytes)
    assert load(f"{scheme}://public/google", remote=remote) == load(local)


def test_a_directory_is_listed_and_copied(s3, local, tmp_path):
    remote = millstream.Remote(endpoint=s3.endpoint, anonymous=True)
    millstream.copy("gs://public/google", tmp_path / "copy", remote=remote)
    assert load(tmp_path / "copy") == load(local)


def test_the_endpoint_comes_from_the_environment_too(s3, local, monkeypatch):
    monkeypatch.setenv("GOOGLE_BASE_URL", s3.endpoint)
    remote = millstream.Remote(anonymous=True)
    assert millstream.open("gs://public/google", remote=remote).num_records == 60_000


def test_a_missing_object(s3):
    remote = millstream.Remote(endpoint=s3.endpoint, anonymous=True)
    with pytest.raises(MissingDataError, match="gs://public/nothing: no such object"):
        millstream.open("gs://public/nothing", remote=remote)


def test_a_bucket_that_is_not_public(s3, bucket):
    remote = millstream.Remote(endpoint=s3.endpoint, anonymous=True)
    with pytest.raises(ReadError, match="not public: leave out anonymous=True"):
        millstream.open(f"gs://{bucket}/data", remote=remote)
