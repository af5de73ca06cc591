"""Rows of documents, masks, length buckets, and loaders over stored rows.

Tokens are the numbers of their records, as in `test_packing`.
"""

import itertools
from itertools import islice

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.auditing import RunShape, audit
from millstream.auditing.tokens import audit_tokens
from millstream.errors import StateError, UsageError
from millstream.load.token_digest import token_digest
from millstream.testing import assert_ranks_share_exactly, assert_resumes_exactly, assert_same
from tests.helpers.numbered_documents import (
    EXTRAS,
    IGNORED,
    POLICIES,
    check_rows,
    document_of_token,
    numbered,
    places,
    write_numbered,
)


def rows_of_documents(lengths, width, overflow):
    """The inputs of all rows, in the order of the stream."""
    rows, first = [], 1
    for length in lengths:
        tokens = list(range(first, first + length))
        starts = range(0, length, width) if overflow == "split" else range(min(length, 1))
        rows += [tokens[start : start + width] for start in starts]
        first += length
    return rows


documents = st.lists(st.integers(0, 24), max_size=30)
overflows = st.sampled_from(["truncate", "split"])


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(documents, st.integers(1, 20), overflows, st.booleans(), places)
@example([], 4, "split", False, {})
@example([0, 0], 4, "truncate", True, {})
@example([9], 9, "split", True, {})
@example([9], 3, "split", True, {})
def test_a_row_is_a_document_or_a_piece_of_one(lengths, width, overflow, by_length, where):
    rows = rows_of_documents(lengths, width, overflow)
    if by_length:
        rows.sort(key=len)  # Python's sort is stable
    padded = np.array([row + [0] * (width - len(row)) for row in rows]).reshape(-1, width)
    with numbered(lengths, **where) as data:
        view = data.documents(width, overflow=overflow, by_length=by_length, extras=EXTRAS)
        batch = view[:]
        assert np.array_equal(batch["input_ids"], padded)
        check_rows(batch, document_of_token(lengths), False, [IGNORED] * len(rows))
        report = view.report
        assert (report.num_rows, report.num_inputs) == (len(rows), sum(map(len, rows)))
        left_out = sum(lengths) - sum(map(len, rows))
        assert report.cropped + report.label_only == left_out
        assert report.label_only == (report.num_split if overflow == "truncate" else 0)
        assert report.num_split == sum(length > width for length in lengths)
        assert report.padding == (padded == 0).sum()
        assert audit_tokens(view).num_inputs == report.num_inputs


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(
    documents, st.integers(1, 20), overflows, st.booleans(), st.integers(1, 30), st.integers(0, 99)
)
def test_a_batch_is_as_wide_as_its_longest_row_and_otherwise_the_same(
    lengths, width, overflow, by_length, pad_to, seed
):
    with numbered(lengths) as data:
        options = {"overflow": overflow, "by_length": by_length, "pad_id": 77, "extras": EXTRAS}
        narrow = data.documents(width, pad_to=pad_to, **options)
        wide = data.documents(width, **options)
        if not len(wide):
            assert narrow.read([])["input_ids"].shape[0] == 0
            return
        chosen = np.random.default_rng(seed).integers(0, len(wide), 5)
        one, other = narrow.read(chosen, dtype=None), wide.read(chosen, dtype=None)
        longest = other["attention_mask"].sum(1).max()
        expected = min(-(-longest // pad_to) * pad_to, width)
        for name in ("input_ids", "labels", "position_ids", "document_ids", "attention_mask"):
            assert one[name].shape == (5, expected)
            assert np.array_equal(one[name], other[name][:, :expected])
            assert one[name].dtype == other[name].dtype
        assert (other["labels"][:, expected:] == IGNORED).all()
        assert (other["input_ids"][other["attention_mask"] == 0] == 77).all()
        is_padded = one["attention_mask"].sum(1) < expected
        edges = set(one["cu_seqlens"].tolist())
        assert edges == {
            *(np.arange(6) * expected).tolist(),
            *(np.arange(5) * expected + one["attention_mask"].sum(1))[is_padded].tolist(),
        }


def write_masked(path, lengths, kind, seed=0):
    """Numbered tokens, a mask that may be larger than one byte, and a field with a shape."""
    fields = [("mask", kind), ("token", "<u4"), ("pair", "<u2", (2,))]
    num = sum(lengths)
    random = np.random.default_rng(seed)
    records = np.zeros(num, fields)
    records["token"] = np.arange(1, num + 1)
    # For types with room, also masks whose low byte is zero.
    values = [0, 1] if kind in ("?", "u1") else [0, 1, -1, 256, 1 << 40]
    records["mask"] = random.choice(values, num)
    records["pair"] = random.integers(0, 1 << 16, (num, 2))
    with millstream.Writer(path, fields=fields, shard_bytes=100) as writer:
        for document in np.split(records, np.cumsum(lengths)[:-1]):
            writer.append(document)
    return millstream.open(path), records


def views_of(data, **options):
    """Every way to make rows."""
    yield data.windows(7, **options)
    yield data.windows(7, mask_ends=True, extras=EXTRAS, **options)
    for policy in POLICIES:
        yield data.packed(8, policy=policy, buffer_size=5, **options)
        yield data.packed(8, policy=policy, mask_ends=policy != "best_fit", **options)
    for overflow in ("truncate", "split"):
        yield data.documents(8, overflow=overflow, **options)
        yield data.documents(8, overflow=overflow, by_length=True, pad_to=3, **options)


LENGTHS = [5, 3, 9, 0, 2, 7, 1, 12, 4, 6, 8, 20, 8, 16]


@pytest.mark.parametrize("kind", ["?", "u1", "<i8"])
@pytest.mark.parametrize("dtype", [np.int64, None])
def test_labels_are_ignored_where_the_field_of_the_label_is_zero(tmp_path, kind, dtype):
    data, records = write_masked(tmp_path / "data", LENGTHS, kind)
    for plain, masked in zip(views_of(data), views_of(data, loss_mask="mask"), strict=True):
        numbers = range(len(plain))
        one, other = plain.read(numbers, dtype=dtype), masked.read(numbers, dtype=dtype)
        labels = one["labels"].astype(np.int64)
        is_wanted = np.append(records["mask"] != 0, [False] * 200)[labels - 1]
        assert is_wanted.any()
        assert not is_wanted.all()
        assert np.array_equal(other["labels"], np.where(is_wanted, labels, IGNORED))
        assert np.array_equal(other["input_ids"], one["input_ids"])


@pytest.mark.parametrize("kind", ["?", "u1", "<i8"])
def test_fields_stand_beside_their_tokens_and_are_zero_in_padding(tmp_path, kind):
    data, records = write_masked(tmp_path / "data", LENGTHS, kind)
    padded = np.append(np.zeros(1, records.dtype), records)
    for view in views_of(data):
        batch = view[:]
        for name in ("mask", "pair"):
            assert np.array_equal(batch[name], padded[name][batch["input_ids"]])
            assert batch[name].dtype == records.dtype[name].base


@pytest.mark.parametrize("kind", ["<u2", "<u4", "<i4", "<i8"])
@pytest.mark.parametrize("dtype", [np.int64, None])
def test_the_token_itself_may_be_the_loss_mask(tmp_path, kind, dtype):
    with millstream.Writer(tmp_path / "data", fields=kind) as writer:
        writer.append([5, 0, 7, 0, 0, 9])
    data = millstream.open(tmp_path / "data")
    for view in (data.documents(6, loss_mask="token"), data.packed(6, loss_mask="token")):
        labels = view.read([0], dtype=dtype)["labels"]
        assert labels.tolist() == [[IGNORED, 7, IGNORED, IGNORED, 9, IGNORED]]
    window = data.windows(5, loss_mask="token").read([0], dtype=dtype)
    assert window["labels"].tolist() == [[IGNORED, 7, IGNORED, IGNORED, 9]]


@pytest.mark.parametrize("name", ["pair", "mask2"])
def test_a_loss_mask_that_is_not_one_number_a_token_is_refused(tmp_path, name):
    data, _ = write_masked(tmp_path / "data", LENGTHS, "u1")
    with pytest.raises(UsageError, match="loss_mask"):
        data.documents(8, loss_mask=name)


buckets = st.tuples(st.integers(1, 700), st.integers(1, 40), st.integers(1, 12))


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(buckets, st.integers(0, 2**64 - 1), st.integers(0, 1 << 40))
@example((1, 40, 12), 0, 0)
@example((40, 40, 1), 0, 0)
@example((700, 1, 1), 0, 0)
def test_length_buckets_are_a_bijection_that_inverts(sizes, seed, epoch):
    num, group, factor = sizes
    shuffle = millstream.LengthBuckets(group, group * factor)
    order = millstream.make_order(shuffle, num, seed)
    positions = np.arange(num) + epoch * num
    samples = order.samples_at(positions)
    assert sorted(samples.tolist()) == list(range(num))
    assert np.array_equal(order.positions_of(samples, epoch), positions)
    assert np.array_equal(order.positions_of(np.arange(num), epoch)[samples], positions)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(buckets, st.integers(0, 2**64 - 1))
def test_samples_of_a_group_come_from_one_bucket_and_those_of_no_group_come_last(sizes, seed):
    num, group, factor = sizes
    order = millstream.make_order(millstream.LengthBuckets(group, group * factor), num, seed)
    samples = order.samples_at(range(num))
    num_grouped = num // group * group
    rest = samples[num_grouped:]
    assert np.array_equal(rest, np.arange(rest.size) + (rest[0] if rest.size else 0))
    grouped = np.setdiff1d(np.arange(num), rest)
    places = np.searchsorted(grouped, samples[:num_grouped]).reshape(-1, group)
    assert (places // (group * factor) == places[:, :1] // (group * factor)).all()


def test_what_fills_no_group_is_of_another_length_in_every_epoch():
    order = millstream.make_order(millstream.LengthBuckets(64), 1000, 0)
    firsts = {int(order.samples_at([epoch * 1000 + 960])[0]) for epoch in range(200)}
    assert firsts == set(range(0, 961, 64))


@pytest.mark.parametrize("num", [9_984, 10_000, 40_000])
def test_length_buckets_save_most_of_the_padding_without_being_told_more_than_the_group(num):
    lengths = np.random.default_rng(0).lognormal(6, 1, num).astype(int) + 1
    lengths = np.sort(np.minimum(lengths, 2048))
    padded = {}
    for shuffle in (True, millstream.LengthBuckets(256)):
        samples = millstream.make_order(shuffle, num).samples_at(range(num // 256 * 256))
        rows = lengths[samples].reshape(-1, 256)
        padded[shuffle] = 1 - rows.sum() / (rows.max(1) * 256).sum()
    assert padded[True] > 0.7
    assert padded[millstream.LengthBuckets(256)] < 0.05


def test_length_buckets_mix_within_a_bucket_and_among_groups():
    order = millstream.make_order(millstream.LengthBuckets(4, 100), 1000, 3)
    epochs = np.stack([order.samples_at(np.arange(1000) + 1000 * epoch) for epoch in range(40)])
    groups = epochs.reshape(40, 250, 4)
    assert (groups // 100 == groups[:, :, :1] // 100).all()
    # Neighbours in length part: of the 100 of a bucket any may stand beside any.
    gaps = np.abs(np.diff(groups, axis=2)).ravel()
    assert 30 < gaps.mean() < 37  # a third of the bucket
    firsts = groups[:, :, 0] // 100
    assert len({tuple(first) for first in firsts.tolist()}) == 40
    assert np.abs(np.diff(firsts, axis=1)).mean() > 2.5  # of uniform buckets 3.3


@pytest.mark.parametrize(("group", "bucket"), [(0, 1), (4, 6), (4, 2), (2.5, None), (-1, None)])
def test_buckets_that_cannot_work_are_refused(group, bucket):
    with pytest.raises(UsageError, match=r"group_size|bucket_size"):
        millstream.LengthBuckets(group, bucket)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """150 documents in many shards."""
    random = np.random.default_rng(11)
    lengths = np.exp(random.normal(2.2, 1.0, 150)).astype(int).tolist()
    path = tmp_path_factory.mktemp("corpus") / "data"
    write_numbered(path, lengths, shard_bytes=300)
    return millstream.open(path)


VIEWS = {
    "best_fit": lambda data: data.packed(16, extras=EXTRAS),
    "bos_best_fit": lambda data: data.packed(16, policy="bos_best_fit", buffer_size=20),
    "bos_best_fit_keep": lambda data: data.packed(16, policy="bos_best_fit_keep"),
    "truncate": lambda data: data.documents(16, pad_to=4),
    "split": lambda data: data.documents(16, overflow="split", by_length=True, extras=EXTRAS),
    "static": lambda data: data.packed(16, extras=EXTRAS, static_shapes=True),
}
BUCKETS = millstream.LengthBuckets(6, 24)


def shuffles_of(view):
    return [True, False, BUCKETS] if getattr(view, "by_length", False) else [True]


@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_loader_over_rows_resumes_exactly_at_every_step(corpus, name, prefetch):
    view = VIEWS[name](corpus)
    for shuffle in shuffles_of(view):
        options = {"shuffle": shuffle, "seed": 5, "prefetch": prefetch, "threads": 2}
        assert_resumes_exactly(
            lambda: millstream.Loader(view, 7, tail="keep", output="numpy", **options),  # noqa: B023
            steps=len(view) // 7 + 3,
        )


def without_boundaries(loader):
    """Batches of what belongs to rows alone: boundaries count from the start of a rank's batch."""
    with loader:
        for batch in loader:
            yield {k: v for k, v in batch.items() if k not in ("cu_seqlens", "max_seqlen")}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VIEWS if name != "truncate"])
@pytest.mark.parametrize("tail", ["drop", "keep", "wrap"])
def test_any_ranks_share_rows_exactly(corpus, name, tail):
    view = VIEWS[name](corpus)
    for shuffle in shuffles_of(view):
        assert_ranks_share_exactly(
            lambda rank, ranks, batch_size: without_boundaries(
                millstream.Loader(
                    view,
                    batch_size,
                    seed=2,
                    shuffle=shuffle,  # noqa: B023
                    rank=rank,
                    ranks=ranks,
                    tail=tail,
                    output="numpy",
                    prefetch=rank,
                )
            ),
            splits=[(1, 12), (2, 6), (3, 4), (12, 1)],
        )


@pytest.mark.parametrize("name", VIEWS)
def test_prefetching_and_threads_make_no_difference(corpus, name):
    view = VIEWS[name](corpus)
    expected = None
    for prefetch, threads, announce in [(0, 1, 0), (1, 1, 8), (8, 4, 8), (3, 2, 1)]:
        loader = millstream.Loader(
            view,
            5,
            seed=1,
            tail="keep",
            output="numpy",
            prefetch=prefetch,
            threads=threads,
            announce=announce,
        )
        with loader:
            batches = [*loader, *loader]
        if expected is None:
            expected = batches
        assert_same(batches, expected)
        assert loader.stats.tokens == 2 * view.report.num_inputs


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_short_batch_at_the_end_is_what_the_view_says(corpus, name, ranks):
    view = VIEWS[name](corpus)
    batch_size = len(view) // ranks - 1
    for rank in range(ranks):
        loader = millstream.Loader(
            view, batch_size, rank=rank, ranks=ranks, tail="keep", output="numpy"
        )
        with loader:
            for batch in loader:
                assert_same(dict(batch), view.read(loader.samples()))
                short = len(batch["input_ids"])
        left = len(view) - ranks * batch_size
        assert short == len(range(rank, left, ranks))


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(sorted(VIEWS)),
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 6)), min_size=2, max_size=5
    ),
    st.integers(0, 1 << 32),
    st.data(),
)
def test_a_state_goes_on_with_other_ranks_and_rows(corpus, name, phases, seed, draw):
    view = VIEWS[name](corpus)
    shuffle = draw.draw(st.sampled_from(shuffles_of(view)))
    order = millstream.make_order(shuffle, len(view), seed)
    state, position = None, 0
    for ranks, batch_size, steps in phases:
        states = []
        for rank in range(ranks):
            loader = millstream.Loader(
                view,
                batch_size,
                seed=seed,
                shuffle=shuffle,
                rank=rank,
                ranks=ranks,
                endless=True,
                output="numpy",
                prefetch=rank,
            )
            if state is not None:
                loader.load_state_dict(state)
            with loader:
                for k, batch in enumerate(islice(loader, steps)):
                    start = position + k * ranks * batch_size + rank
                    samples = order.samples_at(start + np.arange(batch_size) * ranks)
                    assert np.array_equal(loader.samples(), samples)
                    assert_same(dict(batch), view.read(samples))
                states.append(loader.state_dict())
        assert all(each == states[0] for each in states)
        state, position = states[0], position + steps * ranks * batch_size
        assert state["position"] == position


def test_length_buckets_make_batches_of_similar_length(corpus):
    view = corpus.documents(64, by_length=True, pad_to=1)
    padding = {}
    for shuffle in (True, millstream.LengthBuckets(10, 20)):
        with millstream.Loader(view, 10, shuffle=shuffle, output="numpy", tail="keep") as loader:
            masks = [batch["attention_mask"] for batch in loader]
        assert sum(int(mask.sum()) for mask in masks) == view.report.num_inputs
        padding[shuffle] = sum(int((mask == 0).sum()) for mask in masks)
    assert padding[shuffle] < padding[True] / 4


@pytest.mark.parametrize(
    "make_view",
    [lambda data: data.windows(8), lambda data: data.packed(8), lambda data: data.documents(8)],
)
def test_length_buckets_refuse_a_view_that_is_not_by_length(corpus, make_view):
    with pytest.raises(UsageError, match="by_length=True"):
        millstream.Loader(make_view(corpus), 4, shuffle=millstream.LengthBuckets(4))


def test_an_audit_of_length_buckets_finds_every_sample_once():
    order = millstream.make_order(millstream.LengthBuckets(12, 60), 1003, 4)
    changes = [RunShape(step=0, ranks=3, batch_size=4), RunShape(step=9, ranks=2, batch_size=5)]
    report = audit(order, changes, epochs=3, tail="wrap")
    assert [epoch.served for epoch in report.epochs] == [1003] * 3


def test_a_state_of_other_rows_is_refused(corpus):
    views = [
        corpus.windows(16),
        corpus.packed(16),
        corpus.packed(17),
        corpus.packed(16, policy="bos_best_fit"),
        corpus.packed(16, policy="bos_best_fit", buffer_size=999),
        corpus.packed(16, policy="bos_best_fit_keep"),
        corpus.documents(16),
        corpus.documents(17),
        corpus.documents(16, by_length=True),
        corpus.documents(16, overflow="split"),
        corpus.documents(16, overflow="split", by_length=True),
    ]
    loaders = [millstream.Loader(view, 2) for view in views]
    states = [loader.state_dict() for loader in loaders]
    for (i, loader), (j, state) in itertools.product(enumerate(loaders), enumerate(states)):
        if i == j:
            loader.load_state_dict(state)
        else:
            with pytest.raises(StateError, match="view was"):
                loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("shuffle", "other"),
    [
        (BUCKETS, millstream.LengthBuckets(6, 30)),
        (BUCKETS, millstream.LengthBuckets(4, 24)),
        (BUCKETS, True),
        (False, BUCKETS),
    ],
)
def test_a_state_of_other_buckets_is_refused(corpus, shuffle, other):
    view = corpus.documents(16, by_length=True)
    state = millstream.Loader(view, 2, shuffle=shuffle).state_dict()
    with pytest.raises(StateError, match="order was"):
        millstream.Loader(view, 2, shuffle=other).load_state_dict(state)


def test_a_state_of_the_same_rows_of_other_tokens_is_refused(tmp_path):
    for name, first in (("one", 1), ("other", 2)):
        write_numbered(tmp_path / name, [4, 9, 3], first=first)
    one, other = (
        millstream.Loader(millstream.open(tmp_path / name).packed(4), 1)
        for name in ("one", "other")
    )
    with pytest.raises(StateError):
        other.load_state_dict(one.state_dict())


def token_digests(view, split, **options):
    """Of every step, all ranks together."""
    ranks, batch_size = split
    shares = []
    for rank in range(ranks):
        loader = millstream.Loader(
            view,
            batch_size,
            rank=rank,
            ranks=ranks,
            seed=4,
            tail="keep",
            output="numpy",
            digest_tokens=True,
            **options,
        )
        with loader:
            shares.append([loader.token_digest() for _ in loader])
    return [millstream.sum_digests(parts) for parts in zip(*shares, strict=True)]


@pytest.mark.parametrize("name", VIEWS)
def test_token_digests_are_equal_for_every_split_of_a_step(corpus, name):
    view = VIEWS[name](corpus)
    expected = token_digests(view, (1, 12))
    assert len(set(expected)) == len(expected) > 3
    for split in ((2, 6), (3, 4), (12, 1)):
        assert token_digests(view, split) == expected
    assert token_digests(view, (3, 4), prefetch=0, dtype=None) == expected


def test_token_digests_do_not_depend_on_padding(corpus):
    expected = token_digests(corpus.documents(64), (1, 12))
    for options in ({"pad_to": 1}, {"pad_to": 8}, {"pad_id": 9}, {"extras": EXTRAS}):
        assert token_digests(corpus.documents(64, **options), (2, 6)) == expected
    assert token_digests(corpus.packed(64), (1, 12)) == token_digests(
        corpus.packed(64, pad_id=5, static_shapes=True), (2, 6)
    )


def test_token_digests_differ_where_labels_do(corpus, tmp_path):
    for policy in POLICIES:
        one, other = (
            token_digests(corpus.packed(64, policy=policy, mask_ends=ends), (1, 4))
            for ends in (True, False)
        )
        assert all(a != b for a, b in zip(one, other, strict=True))
    data, _ = write_masked(tmp_path / "data", [30] * 40, "u1")
    one, other = (
        token_digests(data.documents(30, loss_mask=mask), (1, 4)) for mask in (None, "mask")
    )
    assert all(a != b for a, b in zip(one, other, strict=True))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 3), st.integers(0, 7), st.integers(0, 1 << 16))
def test_one_other_token_or_label_makes_another_digest(row, column, change):
    def digest(inputs, labels):
        return token_digest(inputs, labels, np.full(4, 8), 3, 2)

    tokens = np.arange(36).reshape(4, 9)
    inputs, labels = tokens[:, :-1].copy(), tokens[:, 1:].copy()
    expected = digest(inputs, labels)
    for table in (inputs, labels):
        table[row, column] += 1 + change
        assert digest(inputs, labels) != expected
        table[row, column] -= 1 + change


def test_rows_have_an_attention_mask_whatever_the_extras_are(corpus):
    for extras in ((), "position_ids", ["cu_seqlens", "document_ids"], EXTRAS):
        view = corpus.documents(64, extras=extras)
        batch = view.read(np.arange(8))
        used = (
            corpus.documents(64, extras=("document_ids",)).read(np.arange(8))["document_ids"] >= 0
        )
        assert np.array_equal(batch["attention_mask"], used)
        assert not used.all()
        assert view.fingerprint == corpus.documents(64).fingerprint
        without = corpus.documents(64, extras=extras, attention_mask=False)[0]
        assert ("attention_mask" in without) == ("attention_mask" in extras)
