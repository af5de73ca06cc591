"""Training files are never combined with held-out files."""

import json
import re
import shutil
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream
from millstream.cli import main
from millstream.errors import FormatError, MissingDataError, SplitsError, UsageError
from millstream.formats.splits import choose, divide, split_of
from tests.helpers import paths

GOLDEN = paths.GOLDEN / "formats"
SPELLINGS = {
    "train": ["train", "training", "TRAIN", "Training"],
    "val": ["val", "valid", "validation", "VAL"],
    "test": ["test", "testing"],
    "dev": ["dev", "devel", "development"],
    "eval": ["eval", "evaluation"],
    "holdout": ["holdout", "heldout", "held_out", "hold-out", "held out"],
}


def tokens_in(path, *tokens):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.array(tokens, "<u2").tofile(path)


# Names


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("train.bin", "train"),
        ("fineweb_train_000001.bin", "train"),
        ("fineweb_val_000000.bin", "val"),
        ("validation-00000-of-00002.parquet", "val"),
        ("my_train_text_document.bin", "train"),
        ("trainData.bin", "train"),
        ("train2.bin", "train"),
        ("data/test/0.npy", "test"),
        ("test/train.bin", "train"),  # the part nearest to the data decides
        ("train_test_split/val.bin", "val"),
        ("train_test_split/0.bin", "train+test"),
        ("train_val.bin", "train+val"),
        ("trainset.bin", "train"),
        ("valset_0.bin", "val"),
        ("valdata.bin", "val"),
        ("validate.bin", "val"),
        ("minival.bin", "val"),
        ("crossval.bin", "val"),
        ("tests/0.bin", "test"),
        ("trn.bin", "train"),
        ("tst.bin", "test"),
        ("BPETrain.bin", "train"),
        ("BPEVal.bin", "val"),
        ("latest.bin", ""),
        ("trainer.bin", ""),
        ("constrained.bin", ""),
        ("contest.bin", ""),
        ("device.bin", ""),
        ("values.bin", ""),
        ("trainval.bin", ""),
        ("retrieval.bin", ""),
        ("threshold_out.bin", ""),
        ("protést.bin", ""),
        ("", ""),
    ],
)
def test_a_path_names_a_split_by_whole_words(path, name):
    assert split_of(path) == name


letters = st.text(string.ascii_letters, min_size=1, max_size=12)
others = letters.filter(lambda word: not split_of(word))


@pytest.mark.slow
@given(
    st.sampled_from([(name, word) for name, words in SPELLINGS.items() for word in words]),
    st.lists(others, max_size=3),
    st.lists(others, max_size=3),
    st.sampled_from(["_", "-", ".", " ", "0", "/"]),
)
def test_any_word_of_a_path_may_name_the_split(named, before, after, separator):
    name, word = named
    assert split_of(separator.join([*before, word, *after])) == name


lower = st.text(string.ascii_lowercase, min_size=1, max_size=8)


@given(lower, lower, st.sampled_from(["train", "validation", "test", "dev", "holdout"]))
def test_words_that_only_contain_a_split_name_none(before, after, word):
    assert split_of(f"{before}{word}{after}/{after}{word}{before}.bin") == ""


names = ["a0.bin", "a12.bin", "train0.bin", "train7.bin", "val.bin", "x/y"]


@pytest.mark.slow
@given(st.lists(st.sampled_from(names)))
def test_every_path_is_in_one_split_and_in_order(paths):
    splits = divide(paths)
    assert sorted(sum(splits.values(), [])) == list(range(len(paths)))
    for name, numbers in splits.items():
        assert numbers == sorted(numbers)
        assert all(split_of(paths[number]) == name for number in numbers)


@pytest.mark.parametrize(
    ("names", "opens"),
    [
        ([""], True),
        (["train"], True),
        (["val", "val"], True),
        (["", "train"], True),
        (["train", "val"], False),
        (["", "train", "val"], False),
        (["", "val"], False),
        (["", "holdout"], False),
        (["test", "val"], False),
        (["train", "train+val"], False),
        (["", "gsm8k"], False),
    ],
)
def test_what_opens_without_a_choice_is_never_held_out_beside_others(names, opens):
    splits = {name: [k for k, each in enumerate(names) if each == name] for name in names}
    if opens:
        assert choose("here", splits) == list(range(len(names)))
    else:
        with pytest.raises(SplitsError):
            choose("here", splits)
    for name in set(names) - {""}:
        assert choose("here", splits, name) == splits[name]


# Every format


def by_name(tmp_path):
    tokens_in(tmp_path / "train.bin", 1, 2, 3)
    tokens_in(tmp_path / "val.bin", 4)


def of_llmc(tmp_path):
    shutil.copytree(GOLDEN / "llmc" / "modded", tmp_path, dirs_exist_ok=True)


def of_datasets(tmp_path):
    shutil.copytree(GOLDEN / "arrow" / "hf_dict", tmp_path, dirs_exist_ok=True)


def of_the_hub(tmp_path):
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        shutil.copy(GOLDEN / "arrow" / "list_int32.parquet", tmp_path / f"{name}.parquet")


def in_directories(source):
    def make(tmp_path):
        for name in ("train", "val"):
            shutil.copytree(GOLDEN / source, tmp_path / name)

    return make


def of_megatron(tmp_path):
    for name in ("my_train_text_document", "my_val_text_document"):
        for suffix in (".bin", ".idx"):
            shutil.copy(GOLDEN / "megatron" / f"pair_a{suffix}", tmp_path / f"{name}{suffix}")


def of_datatrove(tmp_path):
    for name in ("train", "val"):
        for suffix in ("", ".index", ".metadata"):
            source = GOLDEN / "datatrove" / f"noeos.ds{suffix}"
            shutil.copy(source, tmp_path / f"000_{name}.ds{suffix}")


def of_dolma(tmp_path):
    for name in ("train", "val"):
        tokens_in(tmp_path / name / "part-0-00000.npy", 1, 2, 3)


def of_ours(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"document {k}\n" for k in range(100)))
    millstream.tokenize(
        tmp_path / "text.txt", "bytes", tmp_path / "out", split=millstream.Split(count=10)
    )
    return tmp_path / "out"


MAKERS = {
    "nanoGPT": by_name,
    "llm.c": of_llmc,
    "save_to_disk": of_datasets,
    "hub": of_the_hub,
    "mds": in_directories("mds/fixed_int32"),
    "litdata": in_directories("litdata/numpy_uint16"),
    "megatron": of_megatron,
    "datatrove": of_datatrove,
    "dolma": of_dolma,
    "millstream": of_ours,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_splits_of_every_format_are_refused_together_and_opened_alone(tmp_path, kind, capsys):
    root = MAKERS[kind](tmp_path) or tmp_path
    with pytest.raises(SplitsError, match=r"several splits: train \(\d files?\), val") as caught:
        millstream.open(root)
    assert 'split="train" (--split train)' in str(caught.value)
    train, val = (millstream.open(root, split=name) for name in ("train", "validation"))
    paths = [
        {str(shard.path(suffix)) for shard in data.shards for suffix in shard.files}
        for data in (train, val)
    ]
    assert train.num_records > 0 < val.num_records
    assert not paths[0] & paths[1]
    with pytest.raises(UsageError, match=r"no split 'tarin'; .*did you mean 'train'\?"):
        millstream.open(root, split="tarin")
    with pytest.raises(UsageError, match="no split 'dev'; found train"):
        millstream.open(root, split="dev")
    with pytest.raises(UsageError, match="it must be a name such as 'train'"):
        millstream.open(root, split=0)
    assert main(["verify", str(root)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("split train") < printed.index("split val")
    assert main(["inspect", str(root), "--seq-len", "4", "--samples", "1"]) == 0
    assert main(["bench", str(root)]) == 1
    assert "several splits" in capsys.readouterr().err


def test_verify_checks_every_split_and_fails_if_one_is_damaged(tmp_path, capsys):
    root = of_ours(tmp_path)
    stream = next((root / "train").glob("*.stream"))
    stream.write_bytes(bytes(len(stream.read_bytes())))
    (root / "val" / "millstream.json").write_text("{")
    assert main(["verify", str(root)]) == 1
    printed = capsys.readouterr().out
    assert "xxh3" in printed
    assert "not valid JSON" in printed


# Patterns, lists and what is no split


def test_a_pattern_is_refused_as_a_directory_is_and_a_list_means_what_it_says(tmp_path):
    by_name(tmp_path)
    with pytest.raises(SplitsError, match=r"\*.bin: contains several splits"):
        millstream.open(tmp_path / "*.bin")
    assert millstream.open(tmp_path / "*.bin", split="val").num_records == 1
    assert millstream.open(tmp_path / "v*.bin", split="val").num_records == 1
    assert millstream.open(tmp_path / "v*.bin").num_records == 1
    assert millstream.open([tmp_path / "train.bin", tmp_path / "val.bin"]).num_records == 4


def test_the_path_that_the_user_gives_names_no_split(tmp_path):
    root = tmp_path / "test_data" / "val"
    for name in ("a", "b"):
        tokens_in(root / f"{name}.bin", 1)
    assert millstream.open(root).num_records == 2
    assert millstream.open(root / "*.bin").num_records == 2
    assert millstream.open(f"{tmp_path}/../{tmp_path.name}/test_data/v*/*.bin").num_records == 2
    with pytest.raises(UsageError, match="has no splits; leave out split"):
        millstream.open(root, split="val")
    with pytest.raises(UsageError, match="has no splits; leave out split"):
        millstream.open(root / "a.bin", split="val")


@pytest.mark.parametrize(
    ("names", "is_refused"),
    [
        (["a", "b", "latest", "trainer", "contest"], False),
        (["train", "more"], False),
        (["val", "more"], True),
        (["more", "my_test_set"], True),
        (["test", "val"], True),
        (["val_0", "validation_1"], False),
    ],
)
def test_files_that_name_no_split_are_refused_beside_held_out_ones(tmp_path, names, is_refused):
    for name in names:
        tokens_in(tmp_path / f"{name}.bin", 1)
    if is_refused:
        with pytest.raises(SplitsError, match=r"contains (several splits: |val|test)"):
            millstream.open(tmp_path)
    else:
        assert millstream.open(tmp_path).num_records == len(names)


def test_a_list_of_files_does_not_hide_splits(tmp_path):
    by_name(tmp_path)
    listed = tmp_path / "list.json"
    with pytest.raises(SplitsError, match="several splits"):
        millstream.open(tmp_path, file_list=listed)
    assert listed.exists()
    for _ in range(2):
        assert millstream.open(tmp_path, split="train", file_list=listed).num_records == 3
        assert millstream.open(tmp_path, split="val", file_list=listed).num_records == 1
    both = [tmp_path / "train.bin", tmp_path / "val.bin"]
    assert millstream.open(both, file_list=tmp_path / "both.json").num_records == 4
    listed.rename(tmp_path / "files.json")
    for source in (tmp_path, tmp_path / "files.json"):
        with pytest.raises(SplitsError, match="several splits"):
            millstream.open(source)
        assert millstream.open(source, split="valid").num_records == 1


def test_a_list_of_files_can_be_made_of_directories_that_are_splits(tmp_path):
    of_dolma(tmp_path)
    listed = tmp_path / "list.json"
    assert millstream.open(tmp_path, split="val", file_list=listed).num_records == 3
    assert len(json.loads(listed.read_text())) == 2
    with pytest.raises(SplitsError, match=r"train \(1 file\), val \(1 file\)"):
        millstream.open(tmp_path, file_list=listed)


def test_sources_are_judged_one_by_one(tmp_path):
    for name in ("web", "code"):
        by_name(tmp_path / name)
    both = [tmp_path / "web", tmp_path / "code"]
    with pytest.raises(SplitsError, match="web: contains several splits"):
        millstream.open(both)
    assert millstream.open(both, split="train").num_records == 6
    assert millstream.open(tmp_path / "*", split="train").num_records == 6
    assert millstream.open([both[0] / "train.bin", both[1] / "val.bin"]).num_records == 4


def test_a_word_means_all_directories_with_it_and_a_whole_name_one(tmp_path):
    for number, name in enumerate(("Train-de", "train-en", "val_small", "val_xsmall")):
        tokens_in(tmp_path / "directories" / name / "0.npy", number)
        tokens_in(tmp_path / "files" / f"{name}.npy", number)
    for kind in ("directories", "files"):
        root = tmp_path / kind
        assert millstream.open(root, split="train").records(0, 2).tolist() == [0, 1]
        assert millstream.open(root, split="val").records(0, 2).tolist() == [2, 3]
    assert millstream.open(tmp_path / "directories", split="val_small").num_records == 1


def test_the_advice_is_to_open_the_training_split(tmp_path):
    for names in (("training", "test"), ("TEST", "TRAIN"), ("dev", "train_v1")):
        root = tmp_path / names[0]
        for name in names:
            tokens_in(root / name / "0.bin", 1)
        with pytest.raises(SplitsError, match=r'choose one with split="(training|TRAIN|train_v1)"'):
            millstream.open(root)


def test_hidden_files_are_no_data(tmp_path):
    for name in ("a.bin", "._a.bin", ".old_val.bin"):
        tokens_in(tmp_path / name, 1)
    assert millstream.open(tmp_path).num_records == 1
    tokens_in(tmp_path / "val" / "._0.bin", 1)
    assert millstream.open(tmp_path).num_records == 1


@pytest.mark.parametrize("names", [("train/a", "val/a"), ("train/a",), ("val/a",)])
@pytest.mark.parametrize("options", [{}, {"file_list": "list.json"}])
def test_files_beside_directories_that_are_splits_are_refused(
    tmp_path, names, options, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("0", *names):
        tokens_in(tmp_path / "k" / f"{name}.bin", 1)
    with pytest.raises(
        SplitsError, match=r"1 file without a split in the name|and split directories"
    ):
        millstream.open("k", **options)
    assert millstream.open("k", split=names[0].partition("/")[0]).num_records == 1


def test_splits_as_files_and_as_directories_are_refused(tmp_path):
    tokens_in(tmp_path / "train.bin", 1)
    tokens_in(tmp_path / "val" / "0.bin", 1)
    with pytest.raises(SplitsError, match="several splits"):
        millstream.open(tmp_path)
    for split in ("train", "val"):
        assert millstream.open(tmp_path, split=split).num_records == 1
    tokens_in(tmp_path / "training" / "0.bin", 1)
    for split in (None, "train", "val"):
        with pytest.raises(
            SplitsError, match=r"files \(train.bin\) and split directories .*training"
        ):
            millstream.open(tmp_path, split=split)
    assert millstream.open(tmp_path / "*.bin").num_records == 1
    assert millstream.open(tmp_path / "training").num_records == 1


def test_data_below_a_directory_that_is_a_split_are_not_passed_over(tmp_path):
    tokens_in(tmp_path / "train" / "x" / "0.bin", 1)
    tokens_in(tmp_path / "val" / "0.bin", 1)
    with pytest.raises(SplitsError, match=r'train \(1 file\), val \(1 file\); .*split="train"'):
        millstream.open(tmp_path)
    with pytest.raises(
        MissingDataError, match=r"train: is not a dataset, but x may be.*open '.*train/x'"
    ):
        millstream.open(tmp_path, split="train")


def test_splits_may_be_of_different_formats(tmp_path):
    tokens_in(tmp_path / "train.npy", 1)
    tokens_in(tmp_path / "val.bin", 1)
    with pytest.raises(SplitsError, match="several splits"):
        millstream.open(tmp_path)
    assert millstream.open(tmp_path, split="train").num_records == 1
    tokens_in(tmp_path / "train_2.bin", 1)
    with pytest.raises(FormatError, match=r"files that end in \.bin and \.npy"):
        millstream.open(tmp_path, split="train")


@pytest.mark.parametrize(
    "names", [("data_tr", "data_va"), ("TR_0", "VA_1", "TE_2"), ("trn", "vld"), ("tr/0", "va/0")]
)
def test_short_names_of_splits_count_in_pairs(tmp_path, names):
    for name in names:
        tokens_in(tmp_path / f"{name}.bin", 1)
    sources = [tmp_path, tmp_path / "*" / "*.bin"] if "/" in names[0] else [tmp_path]
    for source in sources:
        with pytest.raises(SplitsError, match="several splits") as refusal:
            millstream.open(source)
        split = re.search(r'split="(\w+)"', str(refusal.value)).group(1)
        assert millstream.open(source, split=split).num_records == 1


@pytest.mark.parametrize(
    "names",
    [
        ("wiki_tr", "wiki_te"),
        ("cc_tr", "cc_va", "cc_us"),
        ("tr_web", "va_news"),
        ("va", "te"),
        ("vld", "x"),
    ],
)
def test_short_words_that_are_no_pair_open_together(tmp_path, names):
    for name in names:
        tokens_in(tmp_path / f"{name}.bin", 1)
    assert millstream.open(tmp_path).num_records == len(names)


def test_what_datasets_cached_is_not_joined_with_the_rows_it_was_made_of(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"input_ids": [[1, 2, 3]]})

    def make(name):
        with pa.ipc.new_stream(tmp_path / name, table.schema) as writer:
            writer.write_table(table)

    make("cache-0123456789abcdef_00000_of_00002.arrow")
    make("cache-0123456789abcdef_00001_of_00002.arrow")
    assert millstream.open(tmp_path).num_records == 6
    make("parquet-train.arrow")
    for source in (tmp_path, tmp_path / "*.arrow"):
        with pytest.raises(FormatError, match=r"cache-0.*arrow, which Hugging Face.*save_to_disk"):
            millstream.open(source)
    assert millstream.open(tmp_path / "parquet-*.arrow").num_records == 3
    assert millstream.open(tmp_path / "cache-*.arrow").num_records == 6


def test_a_dataset_dict_has_splits_of_any_name_in_lists_and_patterns_too(tmp_path, monkeypatch):
    of_datasets(tmp_path / "d")
    (tmp_path / "d" / "validation").rename(tmp_path / "d" / "gsm8k")
    monkeypatch.chdir(tmp_path)
    one = millstream.open("d/gsm8k").num_records
    for source, options in (
        ("d", {}),
        ("d", {"file_list": "list.json"}),
        ("list.json", {}),
        ("d/*/*.arrow", {}),
        ("d/[tg]*", {}),
    ):
        with pytest.raises(SplitsError, match="gsm8k"):
            millstream.open(source, **options)
        assert millstream.open(source, split="gsm8k", **options).num_records == one
    assert millstream.open("d/gsm8k", file_list="own.json").num_records == one


@pytest.mark.parametrize(
    "names",
    [
        ("stackexchange_dev", "stackexchange_math"),
        ("web-development", "web"),
        ("dev.to", "medium"),
        ("valid_json", "code"),
        ("unit_test_code", "src"),
        ("eval-harness-docs", "x"),
    ],
)
def test_corpora_with_such_words_in_their_names_open_together(tmp_path, names):
    for name in names:
        tokens_in(tmp_path / f"{name}.bin", 1)
    assert millstream.open(tmp_path).num_records == 2
    assert millstream.open(tmp_path / "*.bin").num_records == 2
    assert millstream.open(tmp_path, split=split_of(names[0])).num_records == 1
    tokens_in(tmp_path / "train.bin", 1)
    with pytest.raises(SplitsError, match="several splits"):
        millstream.open(tmp_path)


@pytest.mark.parametrize(
    "name", ["x_val", "val_x", "test_x_0", "x_valid_text_document", "dev", "x-eval"]
)
def test_clear_names_of_held_out_data_are_refused_beside_others(tmp_path, name):
    for each in (name, "x"):
        tokens_in(tmp_path / f"{each}.bin", 1)
    with pytest.raises(SplitsError, match=r"judging by their names.*or list the files"):
        millstream.open(tmp_path)


def test_verify_does_each_of_several_datasets_on_its_own(tmp_path, capsys):
    by_name(tmp_path / "data" / "web")
    tokens_in(tmp_path / "data" / "code" / "0.bin", 1)
    for sources in ([f"{tmp_path}/data/*"], [f"{tmp_path}/data/web", f"{tmp_path}/data/code"]):
        assert main(["verify", *sources]) == 0
        printed = capsys.readouterr().out
        assert printed.count("1 shard, ") == 3
        assert "data/code\n" in printed
        assert "split val" in printed


def test_loss_masks_follow_the_split(tmp_path):
    by_name(tmp_path / "tokens")
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "train.npy").write_bytes(b"\1\0\1")
    (tmp_path / "masks" / "val.npy").write_bytes(b"\1")
    options = {"loss_masks": tmp_path / "masks" / "*.npy"}
    data = millstream.open(tmp_path / "tokens", split="train", **options)
    assert data.records(0, 3)["loss_mask"].tolist() == [1, 0, 1]


def test_directories_without_data_are_no_splits(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_it.py").write_text("def test_it(): ...")
    with pytest.raises(MissingDataError, match="contains no dataset"):
        millstream.open(tmp_path)
    tokens_in(tmp_path / "corpus.bin", 1)
    assert millstream.open(tmp_path).num_records == 1


def test_what_belongs_to_files_names_no_split_of_its_own(tmp_path):
    tokens_in(tmp_path / "val_0.bin", 1)
    tokens_in(tmp_path / "val_1.bin", 1)
    listed = millstream.open(tmp_path, file_list=tmp_path / "files.json")
    assert millstream.open(tmp_path / "*").num_records == listed.num_records == 2


def test_lists_keep_the_order_of_their_sources(tmp_path):
    for number, name in enumerate(("a/0.bin", "b/0.bin", "a/1.bin")):
        tokens_in(tmp_path / name, number)
    sources = [tmp_path / "a" / "0*.bin", tmp_path / "b", tmp_path / "a" / "1*.bin"]
    for options in (
        {},
        {"file_list": tmp_path / "list.json"},
        {"file_list": tmp_path / "list.json"},
    ):
        assert millstream.open(sources, **options).records(0, 3).tolist() == [0, 1, 2]
