"""`millstream verify` of data behind URLs."""

import pytest

import millstream
from millstream.cli import main
from millstream.errors import UsageError
from tests.helpers.remote_data import upload, write_tokens

pytest.importorskip("obstore")
pytestmark = pytest.mark.process


def test_several_datasets_at_an_endpoint_are_named_by_their_urls(
    s3, bucket, s3_environment, tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    urls = [f"s3://{bucket}/{name}" for name in "ab"]
    for name in "ab":
        write_tokens(tmp_path / name, 5000)
        upload(s3.store(bucket, s3.endpoint), tmp_path / name, f"{name}/")
    assert main(["verify", *urls, "--endpoint", s3.endpoint]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if bucket in line] == urls


@pytest.mark.usefixtures("s3_environment")
def test_text_shards(s3, bucket, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("a line\n" * 1000)
    millstream.repack(tmp_path / "text.txt", tmp_path / "corpus")
    upload(s3.store(bucket), tmp_path / "corpus", "sound/")
    assert main(["verify", f"s3://{bucket}/sound"]) == 0
    assert f"s3://{bucket}/sound: 1 text shard: all checksums" in capsys.readouterr().out
    shard = tmp_path / "corpus" / "shard_00000.parquet"
    shard.write_bytes(shard.read_bytes().replace(b"PAR1", b"PAR2", 1))
    upload(s3.store(bucket), tmp_path / "corpus", "damaged/")
    problem = millstream.verify(f"s3://{bucket}/damaged").problems[0]
    assert problem.startswith(f"s3://{bucket}/damaged/shard_00000.parquet: damaged in bytes 0 to")
    with pytest.raises(UsageError, match="local files only"):
        millstream.verify(f"s3://{bucket}/sound", add_checksums=True)


@pytest.mark.usefixtures("s3_environment")
def test_no_checksums_are_added_to_the_cache(s3, bucket, tmp_path):
    (tmp_path / "train.bin").write_bytes(bytes(range(200)) * 100)
    upload(s3.store(bucket), tmp_path, "")
    data = millstream.open(f"s3://{bucket}/train.bin", format="flat:uint16")
    with pytest.raises(UsageError, match=r"local files only.*millstream copy"):
        millstream.verify(data, add_checksums=True)
