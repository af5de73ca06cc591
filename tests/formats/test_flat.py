"""The width of bare tokens, told by their zeros."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError
from millstream.formats.files import Head
from millstream.formats.flat import is_big_endian, wider_token_type

TOKENS = np.random.default_rng(0).integers(16, 50_000, 3000)
SMALL = np.random.default_rng(1).integers(0, 10, 3000)


@pytest.mark.parametrize(
    ("dtype", "said"), [("<i8", "int64"), ("<u8", "int64"), ("<u4", "uint32"), ("<i4", "uint32")]
)
@pytest.mark.parametrize("count", [16, 3001])
@pytest.mark.parametrize(
    ("name", "kind"), [("a.bin", "flat"), ("a.ds", "datatrove"), ("a.npy", "dolma")]
)
def test_wider_tokens_are_said_to_be_what_they_are(tmp_path, dtype, said, count, name, kind):
    for most in (50_000, 200_000):
        ids = np.random.default_rng(0).integers(16, most, count).astype(dtype)
        ids.tofile(tmp_path / name)
        with pytest.raises(FormatError, match=f'looks like {said}.*format="{kind}:{said}"'):
            millstream.open(tmp_path / name)
        opened = millstream.open(tmp_path / name, format=f"{kind}:{said}")
        assert opened.records(0, count).tolist() == ids.tolist()


def test_tokens_of_two_bytes_are_believed(tmp_path):
    odd = np.resize([500, 0], 99)  # not as many bytes as wider tokens would have
    for ids in (TOKENS, TOKENS % 16, TOKENS * 0, np.resize([5, 0, 7], 99), TOKENS[:3], odd):
        ids.astype("<u2").tofile(tmp_path / "a.bin")
        assert millstream.open(tmp_path / "a.bin").num_records == ids.size


@pytest.mark.parametrize(
    ("ids", "dtype", "said"),
    [
        (SMALL, "<u4", "uint32"),
        (SMALL, "<i8", "int64"),
        (SMALL % 4, "<u4", "uint32"),
        (SMALL % 4, "<i8", "int64"),
        (SMALL % 2, "<u4", "uint32"),
        (np.append(TOKENS[:50], 2000 * [0]), "<u4", "uint32"),
        (np.where(SMALL > 5, -100, TOKENS), "<i4", "int32"),
        (np.where(SMALL > 5, -100, TOKENS), "<i8", "int64"),
        (np.where(SMALL > 5, -100, SMALL), "<i4", "int32"),
        (TOKENS * 40, "<u4", "uint32"),
        (TOKENS[:10], "<u4", "uint32"),
        (TOKENS[:10], "<i8", "int64"),
    ],
)
def test_wider_tokens_of_every_vocabulary_are_told(tmp_path, ids, dtype, said):
    ids.astype(dtype).tofile(tmp_path / "a.bin")
    with pytest.raises(FormatError, match=f'looks like {said}.*format="flat:{said}"'):
        millstream.open(tmp_path / "a.bin")


@pytest.mark.parametrize("dtype", [">u4", ">i8"])
def test_big_endian_tokens_are_refused_until_told(tmp_path, dtype):
    for ids in (TOKENS, SMALL):
        ids.astype(dtype).tofile(tmp_path / "a.bin")
        with pytest.raises(FormatError, match=r"probably big-endian.*swap the bytes"):
            millstream.open(tmp_path / "a.bin")
        assert millstream.open(tmp_path / "a.bin", format="flat:uint16").num_records > ids.size


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [2, 4, 10, 16, 65, 256])
@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.sampled_from([0.0, 0.5, 0.99]))
@example(537, 16, 0.0)
def test_few_ids_of_two_bytes_are_believed(tmp_path_factory, vocab_size, seed, count, padding):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocab_size, 2 * count) * (rng.random(2 * count) >= padding)
    path = tmp_path_factory.getbasetemp() / "few.bin"
    ids.astype("<u2").tofile(path)
    content = path.read_bytes()
    head = Head(path, content[:4096], len(content), (0, 0))
    assert wider_token_type(head) is None
    assert not is_big_endian(head.start)
