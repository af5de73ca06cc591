"""Every format opens behind a URL as it does in place, and holds the same documents."""

import gzip
import json
import os

import numpy as np
import pytest

import millstream
from millstream.errors import FormatError, MillstreamError, MissingDataError
from tests.helpers.golden_files import EXPECTED, GOLDEN, path_of
from tests.helpers.objects import write_objects
from tests.helpers.remote_data import batches_of, plain, publish, upload, write_tokens
from tests.helpers.vocabularies import gpt2_json, some_text

pytest.importorskip("obstore")
pytestmark = pytest.mark.process

NAMES = [name for name in EXPECTED if "refuse" not in EXPECTED[name]]


@pytest.fixture(scope="module")
def golden_bucket(s3):
    s3.create_bucket("golden")
    upload(s3.store("golden"), GOLDEN, "formats/")
    return "s3://golden/formats"


@pytest.fixture
def remote(s3, s3_environment):
    """Opens what was uploaded; `s3_environment` says where the server is."""
    return millstream.Remote(region=s3.region)


def documents_of(data):
    return [plain(data.document(number)) for number in range(data.num_documents)]


def relative(text, root):
    return text.replace(str(root), "")


def outcome(open_data, root):
    """What is in a dataset, or why it cannot be opened."""
    try:
        data = open_data()
        return [data.num_records, str(data.fields), data.fingerprint, documents_of(data)]
    except MillstreamError as error:
        return relative(str(error), root)


@pytest.mark.slow
def test_every_golden_format_has_the_same_documents_in_a_bucket(golden_bucket, remote):
    differing = []
    for name in EXPECTED:
        path = path_of(name)
        url = f"{golden_bucket}/{path.relative_to(GOLDEN)}"
        local = outcome(lambda path=path: millstream.open(path), GOLDEN)
        found = outcome(lambda url=url: millstream.open(url, remote=remote), golden_bucket)
        if found != local:
            differing.append((name, str(local)[:200], str(found)[:200]))
    assert differing == []


@pytest.mark.slow
def test_every_golden_format_has_the_same_documents_over_http(file_server):
    url = publish(file_server, GOLDEN, "formats")
    differing = []
    for name in NAMES:
        path = path_of(name)
        if name == "arrow/hf_dict" or (path.is_dir() and not list(path.glob("*.json"))):
            continue  # a directory that only a listing shows
        local = outcome(lambda path=path: millstream.open(path), GOLDEN)
        place = f"{url}/{path.relative_to(GOLDEN)}"
        found = outcome(lambda place=place: millstream.open(place), url)
        if found != local:
            differing.append((name, str(local)[:200], str(found)[:200]))
    assert differing == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llmc/gpt2.bin", "llmc/nanogpt/train.bin", "datatrove/bare.ds"])
def test_documents_are_found_by_their_marks(golden_bucket, remote, name):
    entry, path = EXPECTED[name], path_of(name)
    marks = {"bos_id": entry["bos"]} if entry.get("bos") else {"eos_id": entry["eos"]}
    data = millstream.open(f"{golden_bucket}/{path.relative_to(GOLDEN)}", remote=remote, **marks)
    assert documents_of(data) == documents_of(millstream.open(path, **marks))


def test_a_prefix_of_megatron_opens_as_it_does_in_place(golden_bucket, remote):
    data = millstream.open(f"{golden_bucket}/megatron/multi", remote=remote)
    assert documents_of(data) == documents_of(millstream.open(GOLDEN / "megatron/multi"))


def to_json(value):
    return json.dumps(value).encode()


def write_large_files(directory):
    """Files of several blocks each, whose middles are read only by libraries or in tables."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(3)
    rows = [generator.integers(1, 60_000, 200, np.uint16).tolist() for _ in range(300)]
    table = pa.table({"input_ids": pa.array(rows, pa.list_(pa.uint16()))})
    directory.mkdir()
    pq.write_table(table, directory / "rows.parquet")
    for name, compression in (("plain.arrow", None), ("packed.arrow", "zstd")):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(directory / name, table.schema, options=options) as file:
            file.write_table(table, max_chunksize=50)
    tokens = np.concatenate(rows).astype(np.uint16)
    ends = np.unique(generator.integers(1, tokens.size, 9000)).tolist()
    ends = [*ends, tokens.size]
    starts = [0, *ends[:-1]]
    names = generator.integers(0, 1 << 62, len(ends)).tolist()
    lines = "".join(f"{a},{b},{n}\n" for a, b, n in zip(starts, ends, names, strict=True))
    (directory / "dolma.npy").write_bytes(tokens.tobytes())
    (directory / "dolma.csv.gz").write_bytes(gzip.compress(lines.encode()))
    np.save(directory / "array.npy", tokens)
    (directory / "flat.bin").write_bytes(tokens.tobytes())


@pytest.mark.slow
def test_files_of_many_blocks_are_never_read_where_nothing_was_fetched(
    tmp_path, s3, bucket, remote
):
    pytest.importorskip("pyarrow")
    write_large_files(tmp_path / "large")
    upload(s3.store(bucket), tmp_path / "large", "large/")
    names = ["rows.parquet", "plain.arrow", "packed.arrow", "dolma.npy", "array.npy", "flat.bin"]
    for name in names:
        local = millstream.open(tmp_path / "large" / name)
        data = millstream.open(f"s3://{bucket}/large/{name}", remote=remote)
        assert documents_of(data) == documents_of(local), name
        assert data.fingerprint == local.fingerprint


def test_a_decoded_copy_is_made_once(tmp_path, s3, bucket, remote):
    pytest.importorskip("pyarrow")
    write_large_files(tmp_path / "large")
    upload(s3.store(bucket), tmp_path / "large" / "rows.parquet")
    for _ in range(3):
        millstream.open(f"s3://{bucket}/rows.parquet", remote=remote)
    copies = list((tmp_path / "cache").rglob("millstream.json"))
    assert len(copies) == 1


@pytest.mark.slow
def test_metadata_objects_packed_rows_and_mixtures_are_the_same(tmp_path, s3, bucket, remote):
    store, generator = s3.store(bucket), np.random.default_rng(5)
    with millstream.Writer(
        tmp_path / "spans", vocab_size=1 << 16, metadata=to_json, shard_bytes=30_000
    ) as writer:
        for number in range(200):
            ids = generator.integers(1, 1 << 16, generator.integers(1, 400))
            writer.append(ids, {"number": number, "text": "x" * int(generator.integers(0, 300))})
    write_objects(
        tmp_path / "objects",
        [generator.bytes(int(size)) for size in generator.integers(0, 9000, 60)],
        metadata=[b"%d" % k for k in range(60)],
        shard_bytes=50_000,
    )
    write_tokens(tmp_path / "tokens", 50_000, shard_bytes=20_000)
    for name in ("spans", "objects", "tokens"):
        upload(store, tmp_path / name, f"{name}/")

    def views(root, **options):
        spans, tokens = (
            millstream.open(f"{root}/{name}", **options) for name in ("spans", "tokens")
        )
        objects = millstream.open(f"{root}/objects", **options)
        mixture = millstream.mix({"a": (spans.windows(64), 1), "b": (tokens.windows(64), 2)})
        return [
            spans.windows(64, metadata=json.loads),
            spans.documents(128),
            tokens.packed(300),
            objects.objects(bytes),
            mixture,
        ]

    expected_views = views(tmp_path)
    mixture = expected_views[-1]
    for local, other in zip(expected_views, views(f"s3://{bucket}", remote=remote), strict=True):
        for shuffle in (True, millstream.BlockShuffle(8)):
            options = {"seed": 3, "shuffle": shuffle, "output": "numpy"}
            if local is mixture:  # it has an order of its own
                options = {"output": "numpy"}
            expected = batches_of(millstream.Loader(local, 4, **options), 60)
            assert batches_of(millstream.Loader(other, 4, **options), 60) == expected
        if local is not mixture:
            assert plain(other[len(other) - 1]) == plain(local[len(local) - 1])


@pytest.mark.usefixtures("s3_environment")
def test_patterns_lists_and_local_paths_mix(tmp_path, s3, bucket, file_server):
    generator = np.random.default_rng(1)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.bin").write_bytes(generator.bytes(20_000))
        upload(s3.store(bucket), tmp_path / f"{name}.bin", "train/")
    (file_server.directory / "b.bin").write_bytes((tmp_path / "b.bin").read_bytes())
    local = millstream.open([tmp_path / f"{name}.bin" for name in "abc"], format="flat:uint16")
    sources = [
        f"s3://{bucket}/train/*.bin",
        f"s3://{bucket}/train",
        f"s3a://{bucket}/train/",
        [f"s3://{bucket}/train/{name}.bin" for name in "abc"],
        [f"s3://{bucket}/train/a.bin", f"{file_server.endpoint}/b.bin", tmp_path / "c.bin"],
    ]
    for source in sources:
        data = millstream.open(source, format="flat:uint16")
        assert documents_of(data) == documents_of(local)


def test_a_dataset_is_read_over_http_without_a_listing(tmp_path, file_server):
    local = write_tokens(tmp_path / "tokens", 50_000, shard_bytes=20_000)
    url = publish(file_server, tmp_path / "tokens", "my data, 100% ü#1")
    for source in (url, f"{url}/millstream.json"):
        assert documents_of(millstream.open(source)) == documents_of(local)


def test_a_file_list_is_read_over_http(tmp_path, file_server):
    content = np.random.default_rng(1).bytes(20_000)
    (file_server.directory / "x.bin").write_bytes(content)
    listed = [{"path": "x.bin", "size": len(content)}]
    (file_server.directory / "files.json").write_text(json.dumps(listed))
    data = millstream.open(file_server.endpoint, format="flat:uint16")
    assert data.document(0).tobytes() == content


@pytest.mark.usefixtures("s3_environment")
def test_a_file_list_made_locally_is_read_after_an_upload(tmp_path, s3, bucket, file_server):
    """It has the times of the local files, which the copies do not have."""
    (tmp_path / "flat").mkdir()
    for name in "ab":
        (tmp_path / "flat" / f"{name}.bin").write_bytes(np.random.default_rng(1).bytes(20_000))
    listed = tmp_path / "flat" / "files.json"
    local = millstream.open(tmp_path / "flat/*.bin", format="flat:uint16", file_list=listed)
    assert "mtime_ns" in listed.read_text()
    upload(s3.store(bucket), tmp_path / "flat", "flat/")
    url = publish(file_server, tmp_path / "flat")
    for path in (file_server.directory / "data").iterdir():
        os.utime(path, (1e9, 1e9))
    for source in (f"s3://{bucket}/flat", f"s3://{bucket}/flat/files.json", url):
        data = millstream.open(source, format="flat:uint16")
        assert documents_of(data) == documents_of(local)
    (tmp_path / "b.bin").write_bytes(b"shorter!")
    upload(s3.store(bucket), tmp_path / "b.bin", "flat/")
    with pytest.raises(FormatError, match=r"b\.bin: 8 bytes, but files\.json says 20,000"):
        millstream.open(f"s3://{bucket}/flat", format="flat:uint16")


def test_a_file_list_finds_what_belongs_to_its_files(file_server):
    """An index that was not looked for would make one document of all."""
    folder = GOLDEN / "datatrove" / "folder"
    url = publish(file_server, folder)
    names = sorted(path.name for path in folder.glob("*.ds"))
    listed = [{"path": name, "size": (folder / name).stat().st_size} for name in names]
    (file_server.directory / "data" / "files.json").write_text(json.dumps(listed))
    data = millstream.open(url)
    assert documents_of(data) == documents_of(millstream.open([folder / name for name in names]))


def test_a_public_bucket_needs_no_credentials(tmp_path, s3):
    local = write_tokens(tmp_path / "tokens", 5000)
    upload(s3.store("public"), tmp_path / "tokens", "tokens/")
    remote = millstream.Remote(anonymous=True, endpoint=s3.endpoint)
    data = millstream.open("s3://public/tokens", remote=remote)
    assert documents_of(data) == documents_of(local)


def test_a_profile_of_the_aws_tools_gives_keys_and_endpoint(tmp_path, s3, bucket, monkeypatch):
    local = write_tokens(tmp_path / "tokens", 5000)
    upload(s3.store(bucket), tmp_path / "tokens", "tokens/")
    keys = f"aws_access_key_id={s3.access_key}\naws_secret_access_key={s3.secret_key}\n"
    (tmp_path / "credentials").write_text(f"[lab]\n{keys}")
    (tmp_path / "config").write_text(
        f"[profile lab]\nregion = {s3.region}\nendpoint_url = {s3.endpoint}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    data = millstream.open(f"s3://{bucket}/tokens", remote=millstream.Remote(profile="lab"))
    assert documents_of(data) == documents_of(local)


def test_an_unfinished_directory_is_refused(tmp_path, s3, bucket, remote):
    write_tokens(tmp_path / "tokens", 5000)
    (tmp_path / "tokens" / "millstream.json").unlink()
    (tmp_path / "tokens" / "plan.json").write_text('{"format": "millstream-plan", "tasks": []}')
    upload(s3.store(bucket), tmp_path / "tokens", "tokens/")
    with pytest.raises(MissingDataError, match="unfinished"):
        millstream.open(f"s3://{bucket}/tokens", remote=remote)


@pytest.mark.usefixtures("s3_environment")
def test_the_cache_may_lie_behind_a_symbolic_link(tmp_path, s3, bucket, monkeypatch):
    local = write_tokens(tmp_path / "tokens", 20_000)
    upload(s3.store(bucket), tmp_path / "tokens", "tokens/")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path / "link", f"{tmp_path}//scratch/../link/", "link"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        data = millstream.open(f"s3://{bucket}/tokens")
        assert documents_of(data) == documents_of(local)
        assert plain(data.packed(64)[0]) == plain(local.packed(64)[0])


@pytest.mark.usefixtures("s3_environment")
def test_the_tokenizer_beside_the_tokens_is_found(tmp_path, s3, bucket):
    (tmp_path / "tokenizer.json").write_text(gpt2_json())
    (tmp_path / "text.txt").write_text(some_text()[:20_000])
    millstream.tokenize(
        tmp_path / "text.txt", tmp_path / "tokenizer.json", tmp_path / "tokens", workers=1
    )
    upload(s3.store(bucket), tmp_path / "tokens", "tokens/")
    local = millstream.open(tmp_path / "tokens").tokenizer
    found = millstream.open(f"s3://{bucket}/tokens").tokenizer
    assert local is not None
    assert found is not None
    assert found.fingerprint == local.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prefix", "pattern", "list", "file list"])
def test_many_files_are_opened_at_once(tmp_path, s3, bucket, s3_proxy, s3_environment, kind):
    """80 files take 2.4 s in turn, and as long again for the fingerprint."""
    names = [f"{k:03}.bin" for k in range(80)]
    generator = np.random.default_rng(1)
    (tmp_path / "flat").mkdir()
    for name in names:
        (tmp_path / "flat" / name).write_bytes(generator.bytes(10_000))
    if kind == "file list":
        listed = [{"path": name, "size": 10_000} for name in names]
        (tmp_path / "flat" / "files.json").write_text(json.dumps(listed))
    upload(s3.store(bucket), tmp_path / "flat", "flat/")
    url = f"s3://{bucket}/flat"
    source = {"pattern": f"{url}/*.bin", "list": [f"{url}/{name}" for name in names]}.get(kind, url)
    s3_proxy.set(latency_s=0.03)
    remote = millstream.Remote(endpoint=s3_proxy.endpoint, max_requests=16)
    data = millstream.open(source, format="flat:uint16", remote=remote)
    assert 8 <= s3_proxy.counts()["max_in_flight"] <= 16 + 16
    s3_proxy.reset_counts()
    local = millstream.open(tmp_path / "flat/*.bin", format="flat:uint16")
    assert data.fingerprint == local.fingerprint
    assert 8 <= s3_proxy.counts()["max_in_flight"] <= 16


def test_one_file_of_another_kind_among_many_is_named(tmp_path, s3, bucket, remote):
    generator = np.random.default_rng(1)
    (tmp_path / "flat").mkdir()
    for k in range(30):
        (tmp_path / "flat" / f"{k:02}.bin").write_bytes(generator.bytes(10_000))
    (tmp_path / "flat" / "17.bin").write_bytes(b"PAR1" + generator.bytes(96))
    upload(s3.store(bucket), tmp_path / "flat", "flat/")
    with pytest.raises(MillstreamError, match=r"17\.bin"):
        millstream.open(f"s3://{bucket}/flat", remote=remote)
