"""Mixtures in TOML and JSON: what the keys mean, and errors that name file and key."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError, MillstreamError, MissingDataError, ReadError, UsageError
from millstream.mixing.files import is_mixture_file, read_mixture
from tests.helpers.datasets import write_random_documents

TWO = """
seq_len = 8

[sources.web]
data = "web"
weight = 0.7

[sources.code]
data = "code"
weight = 0.3
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixtures")
    for name in ("web", "code"):
        write_random_documents(path / name, 40, longest=30)
    (path / "ids.txt").write_text("0\n3\n")
    return path


@pytest.fixture
def write(directory):
    def write(content, name="mixture.toml"):
        path = directory / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def turns(mixture, stop=100):
    return [each.tolist() for each in mixture.locate(range(stop))]


def test_a_file_describes_what_python_would_make(write, directory):
    mixture = millstream.mix(
        write(
            """
            seed = 5
            by = "tokens"
            when_exhausted = "redistribute"
            check_tokenizers = false
            view = "packed"
            seq_len = 16
            extras = ["position_ids"]

            [sources.web]
            data = ["web"]
            weight = 0.7
            policy = "bos_best_fit"
            max_epochs = 2.5
            without = "ids.txt"
            slice = [1, -1]

            [sources.code]
            data = "code"
            view = "windows"
            weight = 1
            shuffle = "inside-blocks:4"
            seed = 9
            access = "mmap"
            mask_ends = true
            holdout = { every = 5 }

            [[changes]]
            at = 30
            over = 10
            weights = { web = 1, code = 3 }

            [[changes]]
            at = 60
            weights = { web = 1 }
            """
        )
    )
    web = millstream.open(directory / "web").packed(
        16, policy="bos_best_fit", extras=["position_ids"]
    )
    code = millstream.open(directory / "code", access="mmap").windows(
        16, mask_ends=True, extras=["position_ids"]
    )
    by_hand = millstream.mix(
        {
            "web": millstream.MixtureSource(
                web.without(documents=[0, 3]).slice(1, -1), 0.7, max_epochs=2.5
            ),
            "code": millstream.MixtureSource(
                code.split(every=5)[0], 1, shuffle=millstream.BlockShuffle(4, inside=True), seed=9
            ),
        },
        seed=5,
        by="tokens",
        when_exhausted="redistribute",
        check_tokenizers=False,
    ).change(30, {"web": 1, "code": 3}, over=10)
    by_hand = by_hand.change(60, {"web": 1})
    length = min(len(mixture), 100)
    assert turns(mixture, length) == turns(by_hand, length)
    found, expected = mixture.read(range(length)), by_hand.read(range(length))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    assert mixture.sources[1].dataset.access == "mmap"


def test_a_mixture_of_a_file_and_of_python_continue_each_other(write, directory):
    described = millstream.mix(write(TWO))
    views = {name: millstream.open(directory / name).windows(8) for name in ("web", "code")}
    by_hand = millstream.mix({"web": (views["web"], 7), "code": (views["code"], 3)})
    loader = millstream.Loader(described, 4, output="numpy", rank=0, ranks=1)
    next(iter(loader))
    other = millstream.Loader(by_hand, 4, output="numpy", rank=0, ranks=1)
    other.load_state_dict(loader.state_dict())
    assert other.position == 4


def test_json_says_the_same(write):
    content = {
        "seq_len": 8,
        "sources": {
            "web": {"data": "web", "weight": 0.7},
            "code": {"data": "code", "weight": 0.3},
        },
        "changes": [{"at": 10, "weights": {"web": 1}}],
    }
    found = millstream.mix(write(json.dumps(content), "mixture.json"))
    change = "[[changes]]\nat = 10\nweights = { web = 1 }\n"
    assert turns(found) == turns(millstream.mix(write(TWO + change)))


def test_paths_are_relative_to_the_file_wherever_the_process_is(write, monkeypatch, tmp_path):
    path = write(TWO)
    expected = turns(millstream.mix(path))
    monkeypatch.chdir(tmp_path)
    assert turns(millstream.mix(str(path))) == expected
    monkeypatch.chdir(path.parent)
    assert turns(millstream.mix("mixture.toml")) == expected
    absolute = TWO.replace('"web"', f'"{path.parent}/web"').replace('"code"', '"cod*"')
    elsewhere = path.parent / "sub" / "mixture.toml"
    elsewhere.parent.mkdir(exist_ok=True)
    elsewhere.write_text(absolute.replace('"cod*"', '"../cod*"'))
    assert turns(millstream.mix(elsewhere)) == expected


def test_a_link_to_a_file_is_relative_to_where_it_is(write, tmp_path):
    link = tmp_path / "link.toml"
    link.symlink_to(write(TWO))
    with pytest.raises(MissingDataError, match=r"link.toml: source 'web': .*web: no such file"):
        millstream.mix(link)


def test_options_of_all_views_can_be_given_besides(write):
    mixture = read_mixture(write(TWO), extras=["document_ids"])
    assert "document_ids" in mixture.read([0])


@pytest.mark.parametrize("option", [{"seed": 3}, {"by": "tokens"}, {"num_samples": 5}])
def test_settings_belong_into_the_file(write, option):
    (name,) = option
    with pytest.raises(UsageError, match=rf"set {name} in .*mixture.toml"):
        millstream.mix(write(TWO), **option)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("wieght = 1", r"source 'code' has no 'wieght'; did you mean 'weight'\?"),
        ("max_epoch = 2", r"source 'code' has no 'max_epoch'; did you mean 'max_epochs'\?"),
        ("shufle = true", r"did you mean 'shuffle'\?"),
        ("mask_end = true", r"did you mean 'mask_ends'\?"),
        ("xyzzy = 1", r"source 'code' has no 'xyzzy'; it takes data, view, weight"),
        ("policy = 'best_fit'", r"source 'code': windows\(\) has no option 'policy'"),
        ("_selection = 1", r"source 'code' has no '_selection'"),
        ("metadata = 'x'", r"metadata"),
        ("[source.x]", r"there is a table 'source'; .*did you mean 'sources'\?"),
        ("[[change]]\nat = 1", r"the file has no 'change'; did you mean 'changes'\?"),
        ("[[changes]]\nat = 1", r"a change needs at = … and weights = \{ … \}"),
        ("[[changes]]\nat = 1\nweights = 1", r"weights of a change is 1; expected a table"),
        ("[[changes]]\nat = 1\nweigths = {}", r"a change has no 'weigths'; did you mean 'weights'"),
        ("[[changes]]\nat = 1\nweights = {wbe = 1}", r"no source 'wbe'.*did you mean 'web'\?"),
        ("[[changes]]\nat = 0\nweights = {web = 1}", r"at is 0"),
        ("holdout = { evry = 3 }", r"source 'code': holdout has no 'evry'; did you mean 'every'\?"),
        ("holdout = 5", r"source 'code': holdout is 5; expected a table"),
        ("slice = [1]", r"source 'code': slice is \[1\]; write \[start, stop\]"),
        ("slice = [0.5, 'x']", r"source 'code': slice is .*; write \[start, stop\]"),
        ("without = 5", r"source 'code': without is 5; it must be the path"),
        ("format = 5", r"source 'code': format is 5"),
        ("shuffle = 'blocks'", r"source 'code': shuffle is 'blocks'; use global, none"),
    ],
)
def test_unknown_and_wrong_keys_are_named(write, line, match):
    with pytest.raises(UsageError, match=rf"mixture\.toml: .*{match}"):
        millstream.mix(write(TWO + line + "\n"))


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("sede = 1", r"the file has no 'sede'; did you mean 'seed'\?"),
        ("when_exhaust = 'stop'", r"did you mean 'when_exhausted'\?"),
        ("changes = 5", r"changes is 5; write \[\[changes\]\] before each"),
        ("changes = [5]", r"a change is 5; expected a table"),
        ("by = 'rows'", r"by is 'rows'"),
        ("check_tokenizers = 1", r"check_tokenizers is 1"),
        ("num_samples = 1.5", r"num_samples is 1.5"),
        ("view = 'window'", r"source 'web': view is 'window'.*did you mean 'windows'\?"),
        ("extras = 'position'", r"source 'web': an extra is 'position'.*did you mean"),
    ],
)
def test_settings_at_the_top_are_named_too(write, line, match):
    with pytest.raises(UsageError, match=rf"mixture\.toml: .*{match}"):
        millstream.mix(write(line + "\n" + TWO))


@pytest.mark.parametrize("key", ["data", "weight", "seq_len"])
def test_what_a_source_needs_is_named(write, key):
    lines = [line for line in TWO.splitlines() if not line.startswith(key)]
    with pytest.raises(UsageError, match=rf"mixture\.toml: source 'web': {key} is missing"):
        millstream.mix(write("\n".join(lines)))


@pytest.mark.parametrize("content", ["", "seq_len = 8", "sources = 5", "sources = {}", "[sources]"])
def test_a_file_without_sources_is_refused(write, content):
    with pytest.raises(UsageError, match=r"mixture\.toml: .*sources"):
        millstream.mix(write(content))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 10**30)
    | st.floats()
    | st.sampled_from(["", "web", "x", "\0", "..", "windows", "packed", "none", "blocks:4"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = [
    *("data", "weight", "shuffle", "seed", "max_epochs", "view", "seq_len", "format", "split"),
    *("eos_id", "bos_id", "access", "allow_outside", "slice", "without", "holdout", "extras"),
    *("static_shapes", "loss_mask", "overlap", "mask_ends", "metadata", "policy", "pad_to"),
    *("by_length", "overflow", "pad_id", "buffer_size", "attention_mask", "self", "dataset"),
]
TOP = ["seed", "by", "when_exhausted", "num_samples", "check_tokenizers", "sources", "changes"]


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.sampled_from(["windows", "packed", "documents"]),
    st.dictionaries(st.sampled_from(KEYS), values, max_size=2),
    st.dictionaries(st.sampled_from([*TOP, *KEYS]), values, max_size=2),
)
def test_whatever_values_have_the_wrong_type_the_error_is_ours(directory, view, in_source, on_top):
    source = {"data": "web", "weight": 1, "view": view, "seq_len": 8} | in_source
    path = directory / "any.json"
    path.write_text(json.dumps({"sources": {"web": source}} | on_top))
    message = ""
    try:
        millstream.mix(path).describe(10)
    except FormatError:
        return  # of the data, which it names
    except MillstreamError as error:
        message = str(error)
    assert not message or "any.json" in message


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("= =", r"not valid TOML: .*line 1"),
        ("a = 1\na = 2", r"not valid TOML"),
        (b"\xff\xfe\x00garbage", r"not valid TOML: .*codec"),
        (bytes(range(256)), r"not valid TOML"),
        ("a = " + "[" * 100_000, r"not valid TOML"),
        ("seed = " + "9" * 10_000, r"not valid TOML"),
        (b"#" * ((1 << 24) + 1), r"more than 16,777,216 bytes are too many"),
    ],
)
def test_what_is_no_toml_is_refused(write, content, match):
    with pytest.raises(FormatError, match=rf"mixture\.toml: {match}"):
        millstream.mix(write(content))


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "\x00", b"\xff", "{'a': 1}"])
def test_what_is_no_json_is_refused(write, content):
    with pytest.raises(FormatError, match=r"mixture\.json: not valid JSON"):
        millstream.mix(write(content, "mixture.json"))


def test_weights_that_json_allows_and_numbers_do_not_are_refused(write):
    text = '{"seq_len": 8, "sources": {"web": {"data": "web", "weight": %s}}}'
    for weight in ("NaN", "Infinity", "1e999", "-1", "true", '"1"', "null", "[]"):
        with pytest.raises(UsageError, match=r"mixture\.json: the weight of 'web' is"):
            millstream.mix(write(text % weight, "mixture.json"))


def test_files_that_cannot_be_read_are_named(write, directory, tmp_path):
    with pytest.raises(MissingDataError, match=r"no-such\.toml"):
        millstream.mix(directory / "no-such.toml")
    (tmp_path / "directory.toml").mkdir()
    with pytest.raises(FormatError, match=r"directory\.toml: is not a regular file"):
        millstream.mix(tmp_path / "directory.toml")
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(FormatError, match=r"pipe\.toml: is not a regular file"):
        millstream.mix(tmp_path / "pipe.toml")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    with pytest.raises(FormatError, match=r"endless\.json: is not a regular file"):
        millstream.mix(tmp_path / "endless.json")
    for name in ("mixture.yaml", "mixture", ".", "a\0b.toml"):
        with pytest.raises(UsageError, match=r"expected the path of a \.toml or \.json file"):
            millstream.mix(name)


def test_links_that_lead_in_circles_are_refused(write, tmp_path):
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.toml").symlink_to(tmp_path / f"{other}.toml")
        (tmp_path / one).symlink_to(tmp_path / other)
    with pytest.raises(ReadError, match=r"a\.toml: Too many levels"):
        millstream.mix(tmp_path / "a.toml")
    with pytest.raises(MissingDataError, match=r"mixture\.toml: source 'web': .*/a: no such file"):
        millstream.mix(write(TWO.replace('"web"', f'"{tmp_path}/a"')))
    assert not is_mixture_file(tmp_path / "a.toml")


def test_data_that_is_missing_or_no_data_names_mixture_and_source(write):
    with pytest.raises(MissingDataError, match=r"mixture\.toml: source 'web': .*wbe: no such file"):
        millstream.mix(write(TWO.replace('"web"', '"wbe"')))
    with pytest.raises(FormatError, match=r"mixture\.toml: "):
        millstream.mix(write(TWO.replace('"web"', '"mixture.toml"')))


def test_files_of_datasets_are_not_taken_for_mixtures(write, directory):
    assert is_mixture_file(write(TWO))
    assert is_mixture_file(write('{"sources": {}}', "mixture.json"))
    for name, content in {
        "files.json": '{"files": []}',
        "index.json": '{"version": 2, "shards": []}',
        "list.json": "[]",
        "sources.json": '{"sources": ["a"]}',
        "broken.json": "{",
    }.items():
        assert not is_mixture_file(write(content, name)), name
    assert not is_mixture_file(directory / "web" / "millstream.json")
    assert not is_mixture_file(directory / "web")
    assert not is_mixture_file(directory / "no-such.toml")
    assert not is_mixture_file("a\0b.json")


LATER = """
seq_len = 8
[sources.web]
data = "web"
weight = 1
[sources.code]
data = "code"
weight = 0
"""


def test_a_source_with_weight_0_begins_at_the_first_change_that_names_it(write):
    change = "[[changes]]\nat = 10\nweights = { web = 1, code = 3 }\n"
    mixture = millstream.mix(write(LATER + change))
    assert mixture.names == ("web", "code")
    assert mixture.locate(range(10))[0].tolist() == [0] * 10
    assert mixture.describe(50).sources[1].samples == 30


def test_a_source_with_weight_0_that_never_begins_is_refused(write):
    with pytest.raises(UsageError, match="source 'code' has weight 0, and no change raises it"):
        millstream.mix(write(LATER))
