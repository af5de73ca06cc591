"""What objects show of themselves."""

import shutil

import numpy as np
import pytest

import millstream
from millstream.formats.shard import Manifest
from millstream.text.tokenizers.adapter import AdaptedTokenizer, adapt
from millstream.text.tokenizers.tokenizer_json import to_tokenizer_json
from tests.helpers.vocabularies import trained_ranks


@pytest.fixture
def data(tmp_path):
    with millstream.Writer(tmp_path / "data", vocab_size=3000) as writer:
        writer.extend(np.arange(1300), [300, 1000])
    return millstream.open(tmp_path / "data")


def test_a_dataset_says_where_it_is_and_how_large(data, tmp_path):
    shown = f"<Dataset {tmp_path}/data: 1,300 records, 2 documents>"
    assert repr(data) == shown
    twice = millstream.open([tmp_path / "data", shutil.copytree(tmp_path / "data", tmp_path / "b")])
    assert repr(twice) == f"<Dataset {tmp_path}/data and 1 more: 2,600 records, 4 documents>"
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "x.bin")
    bare = millstream.open(tmp_path / "x.bin")
    assert repr(bare) == f"<Dataset {tmp_path}/x.bin: 9 records, 1 document>"


def test_an_empty_dataset_says_so(tmp_path):
    millstream.Writer(tmp_path / "empty", vocab_size=9).finish()
    assert repr(millstream.open(tmp_path / "empty")).endswith("0 records, 0 documents>")


def test_views_say_what_their_rows_are(data):
    assert repr(data.windows(64)) == f"<Windows of 64 tokens: 20 samples; {data!r}>"
    documents = data.documents(2000)
    assert repr(documents).startswith("<Documents of 2,000 tokens (truncate): samples not counted")
    assert len(documents) == 2
    assert repr(documents) == f"<Documents of 2,000 tokens (truncate): 2 samples; {data!r}>"
    packed = data.packed(64, policy="bos_best_fit")
    assert repr(packed).startswith("<Packed of 64 tokens (bos_best_fit): samples not counted yet")


@pytest.mark.parametrize("endless", [True, False])
def test_a_loader_says_whose_batches_it_gives_and_how_far_it_is(data, endless):
    loader = millstream.Loader(
        data.windows(64), 3, seed=7, rank=1, ranks=2, endless=endless, output="numpy"
    )
    view = repr(loader.view)
    assert repr(loader) == f"<Loader of 3 rows on rank 1 of 2, seed 7, at position 0; {view}>"
    next(iter(loader))
    assert "at position 6; " in repr(loader)
    loader.close()
    assert "at position 6; " in repr(loader)
    assert repr(loader.order) == "<Order shuffle-v1 over 20, seed 7>"


def test_a_text_loader_names_its_source_and_its_tokenizer(tmp_path):
    (tmp_path / "a.txt").write_text("some words\n" * 99)
    loader = millstream.TextLoader(tmp_path / "a.txt", "bytes", 2, 8, output="numpy")
    assert repr(loader) == (
        "<TextLoader of 2 rows on rank 0 of 1, seed 0, at position 0; "
        "full_best_fit in rows of 8, 1 lane; "
        f"<Source {tmp_path}/a.txt: text>, <ByteTokenizer: 257 ids>>"
    )
    (tmp_path / "b.txt").touch()
    both = millstream.Source(tmp_path)
    assert repr(both) == f"<Source {tmp_path}/a.txt and 1 more: text>"
    assert repr(millstream.Source.from_documents(iter("ab"))).endswith(
        "Python (str_ascii_iterator)>"
    )


def test_tokenizers_do_not_print_their_vocabulary(tmp_path):
    import tiktoken

    encoding = tiktoken.Encoding(
        "mine", pat_str=r"\S+|\s+", mergeable_ranks=trained_ranks(r"\S+|\s+"), special_tokens={}
    )
    tokenizer = adapt(encoding)
    assert repr(tokenizer) == "<TiktokenTokenizer Encoding: 1,200 ids>"
    assert repr(tokenizer.vocabulary) == "<Vocabulary of 1,200 ids, 0 special>"
    (tmp_path / "t.json").write_text(to_tokenizer_json(tokenizer.vocabulary))
    assert repr(millstream.load_tokenizer(tmp_path / "t.json", "huggingface")) == (
        "<HuggingFaceTokenizer t.json: 1,200 ids>"
    )
    assert repr(AdaptedTokenizer(encoding, 1)) == "<AdaptedTokenizer of a Encoding>"


def test_a_writer_says_what_it_has_written(tmp_path):
    writer = millstream.Writer(tmp_path / "out", vocab_size=9, part=3)
    writer.append([1])
    assert repr(writer) == f"<Writer {tmp_path}/out, part 3: 1 document, 1 record, open>"
    writer.finish()
    assert repr(writer).endswith("1 document, 1 record, closed>")


def test_nothing_is_read_for_it(data, tmp_path):
    views = [data.windows(64), data.packed(64), data.documents(64)]
    shutil.rmtree(tmp_path / "data")
    for view in views:
        assert repr(data) in repr(view)


def test_a_manifest_does_not_print_all_its_shards(data):
    assert isinstance(data.manifests[0], Manifest)
    assert "00000" not in repr(data.manifests[0])


PUBLIC = [
    millstream.Dataset, millstream.Windows, millstream.Packed, millstream.Documents,
    millstream.Loader, millstream.TextLoader, millstream.Writer, millstream.Source,
    millstream.Order, AdaptedTokenizer,
]  # fmt: skip


@pytest.mark.parametrize("kind", PUBLIC)
def test_what_is_not_made_yet_can_be_shown(kind):
    assert repr(kind.__new__(kind)) == f"<{kind.__name__}, incomplete>"
