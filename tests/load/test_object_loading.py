"""Loaders of objects: exact on any ranks, after any resume, whatever decoders do."""

import gc
import itertools
import json
import multiprocessing
import os
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import UsageError
from millstream.load.object_loading import check_objects
from millstream.testing import assert_ranks_share_exactly, assert_resumes_exactly
from tests.helpers.objects import documents, metadata_of, objects, write_objects

# All differ, and one is empty.
CONTENTS = [b"%d " % number * (number * 7 % 23 + bool(number)) for number in range(50)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("objects") / "data"
    return write_objects(path, CONTENTS, metadata=metadata_of(CONTENTS), shard_bytes=300)


def new_loader(view, batch_size=4, **options):
    return millstream.Loader(view, batch_size, **({"output": "numpy"} | options))


shapes = st.tuples(st.integers(1, 5), st.integers(1, 4))


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    documents,
    st.lists(st.tuples(shapes, st.integers(0, 5)), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(1, 300),
    st.integers(0, 99),
)
def test_no_document_is_lost_repeated_or_reordered(contents, run, prefetch, shard_bytes, seed):
    """A run changes its ranks and batch size at resumes; the documents are those of the order."""
    metadata = metadata_of(contents)
    with objects(contents, shard_bytes=shard_bytes, metadata=metadata) as data:
        view = data.objects(bytes, metadata=bytes)
        order = millstream.make_order(True, len(view), seed)
        state, position = None, 0
        for (batch_size, ranks), num_steps in run:
            loaders = [
                new_loader(
                    view,
                    batch_size,
                    rank=rank,
                    ranks=ranks,
                    tail="wrap",
                    prefetch=prefetch,
                    seed=seed,
                    endless=True,
                )
                for rank in range(ranks)
            ]
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            for _ in range(num_steps):
                shares = [next(iter(loader)) for loader in loaders]
                rows = itertools.chain.from_iterable(
                    itertools.zip_longest(
                        *(
                            zip(share["documents"], share["metadata"], strict=True)
                            for share in shares
                        )
                    )
                )
                found = [row for row in rows if row is not None]
                end = position + batch_size * ranks
                samples = order.samples_at(np.arange(position, end)).tolist()
                assert found == [(contents[k], metadata[k]) for k in samples]
                position = end
                assert {loader.position for loader in loaders} == {position}
            state = loaders[0].state_dict()
            for loader in loaders:
                loader.close()


@pytest.mark.parametrize(("tail", "num_documents"), [("keep", 50), ("drop", 40)])
def test_an_epoch_has_every_document_once(data, tail, num_documents):
    found = []
    for rank in range(2):
        for batch in new_loader(data.objects(bytes), 10, rank=rank, ranks=2, tail=tail):
            found += batch["documents"]
    assert len(found) == len({*found}) == num_documents
    assert {*found} <= {*CONTENTS}


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("shuffle", [True, False, millstream.LengthBuckets(8)])
def test_every_state_resumes_exactly(data, prefetch, shuffle):
    view = data.objects(bytes, metadata=bytes, by_size=True)
    assert_resumes_exactly(
        lambda: new_loader(view, 6, prefetch=prefetch, shuffle=shuffle, tail="wrap"), steps=12
    )


def test_a_state_and_its_digests_never_change(data):
    loader = new_loader(data.objects(bytes), seed=3)
    next(iter(loader))
    # A user's checkpoint outlives our release.
    assert loader.state_dict() == {
        "version": 2,
        "millstream": millstream.__version__,
        "position": 4,
        "seed": 3,
        "order": "shuffle-v1 over 50",
        "view": "objects-v1 of 993fd710c8cdb1d9 in 8b0f2a1932099edb",
    }
    assert loader.digest() == "3c351a65fa1bf80ecb19e1ad0cfb1368"
    by_size = data.objects(bytes, by_size=True).without([3])
    assert by_size.base_fingerprint.startswith("objects-by-length-without-")
    with pytest.raises(UsageError, match="digest_tokens needs a field 'token'"):
        new_loader(data.objects(bytes), digest_tokens=True)


def test_ranks_share_the_documents_of_a_step(data):
    assert_ranks_share_exactly(
        lambda rank, ranks, batch_size: new_loader(
            data.objects(bytes, metadata=bytes), batch_size, rank=rank, ranks=ranks
        ),
        splits=[(1, 12), (2, 6), (3, 4), (12, 1)],
    )


def test_batches_of_similar_size(data):
    view = data.objects(len, by_size=True)
    sizes = [
        batch["documents"] for batch in new_loader(view, 5, shuffle=millstream.LengthBuckets(10))
    ]
    assert sorted(sum(sizes, [])) == sorted(map(len, CONTENTS))
    ranks = np.argsort(np.argsort(sorted(map(len, CONTENTS)), kind="stable"), kind="stable")
    assert ranks.size == 50
    spread = [max(batch) - min(batch) for batch in sizes]
    assert max(spread) < max(map(len, CONTENTS)) / 2
    with pytest.raises(UsageError, match=r"data\.objects\(…, by_size=True\)"):
        new_loader(data.objects(len), shuffle=millstream.LengthBuckets(10))


def test_steps_of_several_batches(data):
    loader = new_loader(data.objects(bytes), 4, global_batch_size=10, shuffle=False)
    first = next(iter(loader))
    assert [batch["documents"] for batch in first] == [CONTENTS[:4], CONTENTS[4:8], CONTENTS[8:10]]


def test_without_a_decoder_torch_gets_tensors_of_its_own_memory(data):
    for batch in millstream.Loader(data.objects(), 4, shuffle=False):
        for tensor in batch["documents"]:
            assert tensor.dtype == torch.uint8
            tensor.zero_()
    found = [
        tensor.numpy().tobytes()
        for batch in millstream.Loader(data.objects(), 5, shuffle=False)
        for tensor in batch["documents"]
    ]
    assert found == CONTENTS


@pytest.mark.parametrize("prefetch", [0, 4])
def test_collate_makes_the_batch_in_the_reading_threads(data, prefetch):
    threads = set()

    def collate(samples):
        threads.add(threading.get_ident())
        return {"sizes": torch.tensor([len(each) for each, _ in samples]), "of": samples[0][1]}

    view = data.objects(bytes, metadata=bytes, collate=collate)
    loader = millstream.Loader(view, 5, shuffle=False, prefetch=prefetch, threads=2)
    for start, batch in zip(range(0, 50, 5), loader, strict=True):
        assert batch["sizes"].tolist() == [len(each) for each in CONTENTS[start : start + 5]]
        assert batch["of"] == metadata_of(CONTENTS)[start]
    assert (threading.get_ident() in threads) == (prefetch == 0)
    assert loader.stats.tokens == sum(map(len, CONTENTS))
    assert loader.stats.padded_share == 0


@pytest.mark.parametrize("result", [0, False, [], "text"])
def test_collate_may_return_anything(data, result):
    loader = new_loader(data.objects(collate=lambda samples: result), 25)
    assert list(loader) == [result, result]
    assert loader.epoch == 1


def test_collate_must_return_something(data):
    with pytest.raises(UsageError, match=r"returned None for the documents \[0, 1\]; it must"):
        list(new_loader(data.objects(collate=lambda samples: None), 2, shuffle=False))


class Fails:
    """A decoder that fails on one document until it is told not to."""

    def __init__(self, content):
        self.content, self.fails = content, True

    def __call__(self, content):
        if self.fails and bytes(content) == self.content:
            raise KeyError("no such label")
        return bytes(content)


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_decoder_that_fails_raises_at_its_step_and_the_loader_goes_on(data, prefetch, threads):
    decode = Fails(CONTENTS[18])
    loader = new_loader(data.objects(decode), 4, shuffle=False, prefetch=prefetch, threads=threads)
    found = []
    for _ in range(2):
        with pytest.raises(KeyError, match="no such label") as caught:
            for batch in loader:
                found += batch["documents"]
        first, number = data.shards[0].directory, 18
        for shard in data.shards:
            if number < shard.num_documents:
                break
            number -= shard.num_documents
        path = first / f"{shard.name}.stream"
        assert caught.value.__notes__ == [
            f"while decoding document 18 ({len(CONTENTS[18])} bytes, number {number} in {path})",
            "in the batch at position 16",
        ]
        assert caught.traceback[-1].name == "__call__"
        assert loader.position == 16
    decode.fails = False
    found += [each for batch in loader for each in batch["documents"]]
    assert found == CONTENTS[:48]


def test_a_decoder_that_needs_bytes_is_told_how_to_get_them(data):
    with pytest.raises(TypeError) as caught:
        list(new_loader(data.objects(json.loads)))
    assert any("write bytes(content)" in note for note in caught.value.__notes__)

    with pytest.raises(AttributeError) as caught:
        list(new_loader(data.objects(lambda content: content.decode())))
    assert any("write bytes(content)" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("name", ["decode", "collate", "metadata"])
def test_functions_that_use_their_own_loader_are_refused(data, prefetch, name):
    loader = new_loader(data.objects(**{name: lambda _: next(iter(loader))}), prefetch=prefetch)
    with pytest.raises(RuntimeError, match="must not use the loader that calls it"):
        next(iter(loader))
    loader.close()


def test_a_collate_that_fails_names_its_documents(data):
    def collate(samples):
        return 1 // (len(samples[0]) - len(CONTENTS[4]))

    loader = new_loader(data.objects(bytes, collate=collate), 4, shuffle=False)
    with pytest.raises(ZeroDivisionError) as caught:
        list(loader)
    assert caught.value.__notes__ == [
        "while collating the documents [4, 5, 6, 7]",
        "in the batch at position 4",
    ]


def test_a_decoder_that_stops_an_iteration_is_an_error(data):
    def decode(content):
        return next(iter(()))

    with pytest.raises(RuntimeError, match="a decoder raised StopIteration"):
        list(new_loader(data.objects(decode)))


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 3])
def test_what_the_user_holds_is_never_overwritten(data, prefetch):
    held = []
    loader = new_loader(data.objects(), 3, shuffle=False, prefetch=prefetch, endless=True)
    for number, batch in enumerate(itertools.islice(loader, 60)):
        held.append((number * 3 % 50, batch["documents"][1], batch["documents"][2][1:]))
        if number % 4 == 0:
            held.pop(0)
    del batch
    loader.close()
    del loader
    gc.collect()
    for first, one, other in held:
        assert one.tobytes() == CONTENTS[(first + 1) % 50]
        assert other.tobytes() == CONTENTS[(first + 2) % 50][1:]


def test_memory_is_reused_when_nothing_refers_to_a_batch(data):
    loader = new_loader(data.objects(), 10, shuffle=False, prefetch=0, endless=True)
    addresses = []
    for batch in itertools.islice(loader, 40):
        addresses.append(batch["documents"][0].ctypes.data)
    assert len(set(addresses)) <= 2


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("threads", [1, 4])
def test_memory_of_batches_that_were_held_is_given_back(tmp_path, threads):
    batch_bytes = 1 << 22
    data = write_objects(tmp_path, [b"x" * (batch_bytes // 2)] * 8)
    with new_loader(data.objects(), 2, prefetch=2, threads=threads, endless=True) as loader:
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        before = resident_bytes()
        held = [next(batches) for _ in range(30)]
        assert resident_bytes() - before > 20 * batch_bytes
        held.clear()
        for _ in range(20):
            next(batches)
        assert resident_bytes() - before < 6 * batch_bytes


def test_objects_that_were_decoded_are_freed_with_the_batch(data):
    class Box:
        pass

    loader = new_loader(data.objects(lambda content: Box()), 10, prefetch=0)
    batches = iter(loader)
    box = weakref.ref(next(batches)["documents"][0])
    next(batches)
    assert box() is None


@pytest.mark.process
@pytest.mark.slow
def test_workers_of_a_dataloader_share_the_documents(data):
    view = data.objects(bytes, metadata=bytes)
    expected = [batch["documents"] for batch in new_loader(view, 5)]
    loader = new_loader(view, 5)
    workers = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2)
    assert [batch["documents"] for batch in workers] == expected


@pytest.mark.process
@pytest.mark.parametrize("name", ["decode", "collate", "metadata", "transform"])
def test_what_cannot_be_sent_to_a_spawned_process_is_named(data, name):
    loader = new_loader(data.objects(**{name: lambda content: content}))
    process = multiprocessing.get_context("spawn").Process(target=list, args=(loader,))
    with pytest.raises(UsageError, match=rf"{name}=<lambda> cannot be sent to another process"):
        process.start()


def test_mixtures_and_stages_of_objects(tmp_path, data):
    other = write_objects(tmp_path / "other", [b"x" * number for number in range(20)])
    sources = {"a": (data.objects(bytes), 3), "b": (other.objects(len), 1)}
    mixture = millstream.mix(sources, seed=5)
    loader = new_loader(mixture, 8)
    found, contents = [], {0: CONTENTS, 1: list(range(20))}
    for batch in loader:
        found += zip(batch["source_ids"].tolist(), batch["documents"], strict=True)
    which, samples = mixture.order.locate(np.arange(len(found)))
    located = zip(which.tolist(), samples.tolist(), strict=True)
    assert found == [(source, contents[source][sample]) for source, sample in located]
    assert {source for source, _ in found} == {0, 1}
    millstream.audit_mixture(mixture, [millstream.RunShape(step=0, ranks=2, batch_size=4)])
    assert_resumes_exactly(lambda: new_loader(millstream.mix(sources, seed=5), 8), steps=8)
    stages = [
        millstream.LoaderStage(view=data.objects(bytes), batch_size=4, until=8),
        millstream.LoaderStage(view=other.objects(len), batch_size=2),
    ]
    rows = [len(batch["documents"]) for batch in millstream.StagedLoader(stages, output="numpy")]
    assert rows == [4] * 2 + [2] * 10


def test_mixtures_that_have_no_common_batch_are_refused(tmp_path, data):
    with millstream.Writer(tmp_path / "frames", fields=[("frame", "u1")]) as writer:
        writer.append({"frame": np.arange(10)})
    frames = millstream.open(tmp_path / "frames").windows(1)
    with pytest.raises(UsageError, match="they have objects and records"):
        millstream.mix({"a": (data.objects(), 1), "b": (frames, 1)})
    with pytest.raises(UsageError, match="different collate functions"):
        millstream.mix({"a": (data.objects(), 1), "b": (data.objects(collate=len), 1)})
    with millstream.Writer(tmp_path / "tokens", vocab_size=9) as writer:
        writer.append([1] * 10)
    tokens = millstream.open(tmp_path / "tokens").windows(4)
    with pytest.raises(UsageError, match="they have objects and records"):
        millstream.mix({"a": (data.objects(), 1), "b": (tokens, 1)})
    with pytest.raises(UsageError, match=r"does not hand out.* into the objects themselves"):
        millstream.mix({"a": (data.objects(metadata=bytes), 1), "b": (data.objects(), 1)})


def test_what_needs_tensors_is_refused(data):
    # As a loader checks it: this machine may have neither a device nor page-locked memory.
    with pytest.raises(UsageError, match=r"objects cannot be brought to cuda.* leave device out"):
        check_objects(data.objects(), device="cuda:0", pin_memory=False)
    with pytest.raises(UsageError, match="pin_memory=True needs batches of tensors"):
        check_objects(data.objects(), device=None, pin_memory=True)
    check_objects(data.objects(), device=None, pin_memory=False)
    with pytest.raises(UsageError, match="objects cannot be sliced into columns"):
        millstream.Loader(
            data.objects(), 4, parallel=millstream.Parallel(rank=0, ranks=1, context_ranks=2)
        )


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_transform_gets_what_collate_returns_and_the_positions(tmp_path, prefetch):
    with millstream.Writer(tmp_path / "out", encode=bytes) as writer:
        for number in range(20):
            writer.append(bytes([number]))
    view = millstream.open(tmp_path / "out").objects(
        lambda content: content[0],
        collate=lambda batch: batch["documents"] if isinstance(batch, dict) else list(batch),
        transform=lambda batch, positions: (batch, positions.tolist()),
    )
    plain = view.with_transform(None)
    expected = list(millstream.Loader(plain, 4, seed=1, prefetch=prefetch))
    batches = list(millstream.Loader(view, 4, seed=1, prefetch=prefetch))
    assert [batch for batch, _ in batches] == expected
    assert [positions for _, positions in batches] == np.arange(20).reshape(5, 4).tolist()
    assert view[3] == (plain[3:4], [3])
    assert view[2:4] == (plain[2:4], [2, 3])
