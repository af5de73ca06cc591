"""Azure: what users do with az:// URLs, on Azurite, and where credentials come from."""

import itertools
import json
import shutil

import numpy as np
import obstore
import pytest

import millstream
from millstream.errors import DatasetExistsError, MissingDataError, ReadError, UsageError
from millstream.remote.credentials import azure_settings
from millstream.remote.urls import parse_url
from tests.helpers.object_servers import AzureServer
from tests.helpers.remote_data import batches_of, upload, write_tokens

pytestmark = pytest.mark.process
_numbers = itertools.count(1)


def remote(**options):
    """Options that no other test has: stores are shared by equal ones, whatever the environment."""
    return millstream.Remote(total_seconds=3 + next(_numbers) / 1000, **options)


@pytest.fixture(scope="module")
def azure(tmp_path_factory):
    if AzureServer.program() is None:
        pytest.skip("Azurite is not installed: install npm, then run make test")
    with AzureServer(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture
def container(azure, monkeypatch):
    """Name of a new container; the variables by which clients find it are set."""
    name = f"container-{next(_numbers)}"
    azure.create_container(name)
    for variable, value in azure.environment().items():
        monkeypatch.setenv(variable, value)
    return name


@pytest.fixture
def local(tmp_path):
    write_tokens(tmp_path / "data", 60_000)
    return tmp_path / "data"


def load(source, **options):
    view = millstream.open(source, **options).windows(64)
    return batches_of(millstream.Loader(view, batch_size=8, seed=1, output="numpy"), 50)


@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_loading_equals_local_loading_in_every_spelling(azure, container, local, cache_bytes):
    upload(azure.store(container), local, "data/")
    expected = load(local)
    for url in (
        f"az://{container}/data",
        f"abfss://{container}@{azure.account}.dfs.core.windows.net/data",
    ):
        assert load(url, remote=remote(cache_bytes=cache_bytes)) == expected


def test_patterns_and_flat_files(azure, container, tmp_path):
    for name in ("a", "b"):
        tokens = np.random.default_rng(ord(name)).integers(0, 50_000, 5000).astype(np.uint16)
        (tmp_path / f"{name}.bin").write_bytes(tokens.tobytes())
        upload(azure.store(container), tmp_path / f"{name}.bin", "flat/")
    for name in ("*.bin", "a.bin"):
        found = load(f"az://{container}/flat/{name}", remote=remote(), format="flat:uint16")
        assert found == load(str(tmp_path / name), format="flat:uint16")


def test_text_and_tokenize(azure, container, tmp_path):
    (tmp_path / "text").mkdir()
    path = tmp_path / "text" / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {k}" * 9}) + "\n" for k in range(500)))
    upload(azure.store(container), path, "text/")
    url = f"az://{container}/text/*.jsonl"
    found = [
        batches_of(
            millstream.TextLoader(each, "bytes", batch_size=4, seq_len=128, output="numpy", seed=1),
            5,
        )
        for each in (millstream.Source(url, remote=remote()), str(path))
    ]
    assert found[0] == found[1]
    millstream.tokenize(url, "bytes", f"az://{container}/tokens", workers=1, remote=remote())
    millstream.tokenize(path, "bytes", tmp_path / "tokens", workers=1)
    written = millstream.open(f"az://{container}/tokens", remote=remote())
    assert written.fingerprint == millstream.open(tmp_path / "tokens").fingerprint


def test_writing_in_parts_and_never_over_a_dataset(azure, container, tmp_path):
    url, tokens = f"az://{container}/data", np.arange(9 << 20) % 50_000
    with millstream.Writer(url, vocab_size=50_000, remote=remote()) as writer:
        writer.append(tokens)  # 18 MiB: three parts
    millstream.copy(url, tmp_path / "copy", remote=remote())
    with millstream.Writer(tmp_path / "local", vocab_size=50_000) as writer:
        writer.append(tokens)
    for path in (tmp_path / "local").iterdir():
        assert path.read_bytes() == (tmp_path / "copy" / path.name).read_bytes()
    with pytest.raises(DatasetExistsError, match="already a finished dataset"):
        millstream.Writer(url, vocab_size=50_000, remote=remote())
    millstream.copy(tmp_path / "copy", f"az://{container}/again", target_remote=remote())
    with pytest.raises(obstore.exceptions.AlreadyExistsError):  # what publishing relies on
        obstore.put(azure.store(container), "data/millstream.json", b"", mode="create")


def test_public_containers(azure, container, local, monkeypatch):
    azure.create_container(f"{container}-public", is_public=True)
    for name in (container, f"{container}-public"):
        upload(azure.store(name), local, "data/")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    url = f"az://{container}-public/data"
    assert millstream.open(url, remote=remote(anonymous=True)).num_records == 60_000
    with pytest.raises(ReadError, match=r"not public: leave out anonymous=True"):
        millstream.open(f"az://{container}/data", remote=remote(anonymous=True))


@pytest.mark.parametrize("rest", ["data", "data.bin", "*.bin"])
def test_a_missing_container(azure, container, rest):
    with pytest.raises(MissingDataError, match=rf"no such container at {azure.endpoint}.*account"):
        millstream.open(f"az://no-such-container/{rest}", remote=remote())


def test_a_missing_container_is_found_before_the_work(container):
    with pytest.raises(MissingDataError, match="no such container"):
        millstream.Writer("az://no-such-container/data", vocab_size=100, remote=remote())


def test_a_wrong_key(container, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    with pytest.raises(ReadError, match=r"access denied.*AZURE_STORAGE_ACCOUNT_KEY"):
        millstream.open(f"az://{container}/data", remote=remote())


def test_an_endpoint_that_nobody_answers_is_named(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", AzureServer.account)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AzureServer.key)
    options = millstream.Remote(endpoint="http://127.0.0.1:9/account", total_seconds=0.2)
    with pytest.raises(ReadError, match=r"check the network.* http://127.0.0.1:9/account"):
        millstream.open("az://container/data", remote=options)


def test_settings_that_cannot_work_are_refused_at_once(monkeypatch):
    with pytest.raises(UsageError, match=r"Account must be specified; set AZURE_STORAGE_ACCOUNT_N"):
        millstream.open("az://container/data", remote=remote())
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "not base64!")
    with pytest.raises(UsageError, match=r"Invalid Access Key"):
        millstream.open("az://container/data", remote=remote())
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    with pytest.raises(UsageError, match="gcloud auth application-default login"):
        millstream.open("gs://bucket/data", remote=remote())


def test_the_variables_of_the_az_program(azure, container, local, monkeypatch):
    upload(azure.store(container), local, "data/")
    for name in azure.environment():
        monkeypatch.delenv(name)
    with monkeypatch.context() as patch:
        patch.setenv("AZURE_STORAGE_ACCOUNT", azure.account)
        patch.setenv("AZURE_STORAGE_KEY", azure.key)
        data = millstream.open(f"az://{container}/data", remote=remote(endpoint=azure.endpoint))
        assert data.num_records == 60_000
    text = f"DefaultEndpointsProtocol=http;AccountName={azure.account};AccountKey={azure.key};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{text}BlobEndpoint={azure.endpoint};")
    assert millstream.open(f"az://{container}/data", remote=remote()).num_records == 60_000


def test_az_login_counts_where_no_other_credential_is_set(tmp_path, monkeypatch):
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert azure_settings(anonymous=False) == {}
    (tmp_path / "azureProfile.json").write_text('{"subscriptions": [{"id": 1}]}', "utf-8-sig")
    assert azure_settings(anonymous=False) == {"use_azure_cli": True}
    assert azure_settings(anonymous=True) == {}
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    assert azure_settings(anonymous=False) == {}


def test_accounts_of_other_clouds_keep_their_host():
    for host, root in (
        ("account.dfs.core.windows.net", "box@account"),
        ("account.dfs.core.chinacloudapi.cn", "box@account.dfs.core.chinacloudapi.cn"),
    ):
        url = parse_url(f"abfss://box@{host}/data")
        assert url.root == root
        assert parse_url(str(url)) == url
