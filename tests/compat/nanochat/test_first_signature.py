"""The very first call of nanochat's loader: it finds the tokenizer, and gives int32 and int64."""

import base64
import hashlib
import json
import sys
from itertools import islice

import pytest
import torch

import millstream
from millstream.compat import nanochat
from millstream.errors import MissingDataError, UsageError
from millstream.testing import assert_same
from tests.helpers.nanochat_corpus import BOS_ID, ByteTokenizer, files, write_corpus
from tests.helpers.nanochat_golden import CASES, EXPECTED

loader = nanochat.tokenizing_distributed_data_loader
*_, FIRST = EXPECTED["commits"]
GOLDEN = [case for case in CASES if case["commit"] == FIRST]
STAND_IN = """
from tests.helpers.nanochat_corpus import ByteTokenizer

class OtherTokenizer(ByteTokenizer):
    def get_bos_token_id(self):
        return 300

def get_tokenizer():
    return OtherTokenizer()
"""


@pytest.fixture
def base(tmp_path, monkeypatch):
    """nanochat's directory, with its text."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    write_corpus(tmp_path / "base_data")
    return tmp_path


def store_ranks(directory):
    """The tokenizer of the golden batches, bytes and BOS, as `train-tokenizer` stores one."""
    directory.mkdir()
    lines = [f"{base64.b64encode(bytes([rank])).decode()} {rank}\n" for rank in range(256)]
    (directory / "tokenizer.tiktoken").write_text("".join(lines))
    config = {"pattern": "nanochat", "specials": {"<|bos|>": BOS_ID}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"rank {case['rank']}")
def test_it_gives_nanochats_own_batches_with_the_tokenizer_that_is_stored(case, base, monkeypatch):
    store_ranks(base / "tokenizer")
    monkeypatch.setenv("RANK", str(case["rank"]))
    monkeypatch.setenv("WORLD_SIZE", str(case["world"]))
    shape = case["arguments"]["B"], case["arguments"]["T"]
    made = loader(*shape, "train", tokenizer_threads=4, tokenizer_batch_size=128, device="cpu")
    hashes = []
    for inputs, targets in islice(made, case["batches"]):
        assert (inputs.dtype, targets.dtype) == (torch.int32, torch.int64)
        assert inputs.is_contiguous()
        assert targets.is_contiguous()
        both = json.dumps([inputs.tolist(), targets.tolist()])
        hashes.append(hashlib.sha256(both.encode()).hexdigest()[:16])
    assert hashes == case["hashes"]


def test_validation_reads_the_last_file_from_its_start_each_time(base):
    def validate():
        made = loader(2, 512, "val", tokenizer=ByteTokenizer(), device="cpu")
        return list(islice(made, 5))

    first = validate()
    texts = [text for group in files()[-1] for text in group]
    tokens = [token for text in texts for token in (BOS_ID, *text.encode())]
    inputs, targets = first[0]
    assert inputs.flatten().tolist() == tokens[:1024]
    assert targets.flatten().tolist() == tokens[1:1025]
    training = loader(2, 512, "train", tokenizer=ByteTokenizer(), device="cpu")
    assert not next(training)[0].equal(inputs)
    assert_same(validate(), first)


def test_what_train_tokenizer_writes_is_found(base):
    directory = base / "tokenizer"
    millstream.train_tokenizer(base / "base_data", 400, out=directory)
    stored = millstream.load_tokenizer(directory)
    expected = islice(loader(2, 64, "train", tokenizer=stored, device="cpu"), 3)
    assert_same(list(islice(loader(2, 64, "train", device="cpu"), 3)), list(expected))
    named = loader(B=2, T=64, split="train", tokenizer_threads=2, device="cpu")
    assert next(named)[0].shape == (2, 64)


def test_the_tokenizer_of_a_nanochat_that_can_be_imported_goes_first(base, monkeypatch, tmp_path):
    store_ranks(base / "tokenizer")
    assert next(loader(2, 64, "train", device="cpu"))[0][0, 0] == BOS_ID
    package = tmp_path / "packages" / "nanochat"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "tokenizer.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(package.parent)
    try:
        assert next(loader(2, 64, "train", device="cpu"))[0][0, 0] == 300
    finally:
        for name in [each for each in sys.modules if each.partition(".")[0] == "nanochat"]:
            del sys.modules[name]


def test_a_tokenizer_that_cannot_be_found_is_an_error_that_says_what_to_do(base):
    with pytest.raises(MissingDataError, match=r"neither tokenizer\.json nor tokenizer\.tiktoken;"):
        loader(2, 64, "train", device="cpu")
    (base / "tokenizer").mkdir()
    (base / "tokenizer" / "tokenizer.pkl").write_bytes(b"cos\nabort\n(tR.")  # would end the process
    with pytest.raises(MissingDataError, match=r"only tokenizer\.pkl, and pickles are not loaded"):
        loader(2, 64, "train", device="cpu")


def test_with_states_inputs_are_int64_as_they_were_then(base):
    make = nanochat.tokenizing_distributed_data_loader_with_state
    inputs, targets, _ = next(make(2, 64, "train", tokenizer=ByteTokenizer(), device="cpu"))
    assert (inputs.dtype, targets.dtype) == (torch.int64, torch.int64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_says_to_pass_the_device(base):
    with pytest.raises(UsageError, match="torch finds no GPU; use device='cpu'"):
        loader(2, 64, "train", tokenizer_threads=4, tokenizer_batch_size=128)
