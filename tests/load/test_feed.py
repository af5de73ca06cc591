"""Batches that arrive on a CUDA device: the same as on the host, at the right time, for good."""

import os
import threading
import warnings
from itertools import islice

import numpy as np
import pytest

import millstream
from millstream.testing import assert_same
from tests.helpers.datasets import write_random_documents

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")
BUSY_CYCLES = 500_000_000  # about a quarter of a second


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """2,000 documents of 1 to 300 tokens."""
    path = tmp_path_factory.mktemp("data") / "d"
    return write_random_documents(path, 2000, longest=300, num_ids=50_000, shard_bytes=100_000)


def on_host(batch):
    """The batch with its tensors on the host."""
    return {name: value.cpu() if hasattr(value, "cpu") else value for name, value in batch.items()}


VIEWS = {
    "windows": lambda data: data.windows(128),
    "windows with extras": lambda data: data.windows(100, extras=EXTRAS, mask_ends=True),
    "packed": lambda data: data.packed(256, extras=EXTRAS),
    "packed, one shape": lambda data: data.packed(256, extras=EXTRAS, static_shapes=True),
    "documents": lambda data: data.documents(128, by_length=True, pad_to=8, extras=EXTRAS),
    "mixture": lambda data: millstream.mix(
        {
            "windows": (data.windows(128), 5),
            "packed": (data.packed(128, extras=EXTRAS), 3),
            "documents": (data.documents(128), 1),
        },
        seed=3,
    ),
}


@pytest.mark.parametrize("dtype", [np.int64, np.int32, None], ids=str)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_batches_on_the_device_are_those_of_the_host(data, view, dtype):
    options = {"tail": "keep", "dtype": dtype, "seed": 3}
    there = millstream.Loader(view(data), 8, device="cuda", **options)
    here = millstream.Loader(view(data), 8, **options)
    for arrived, expected in zip(there, here, strict=True):
        assert arrived["input_ids"].device == torch.device("cuda", 0)
        assert_same(on_host(arrived), expected)
        assert there.state_dict() == here.state_dict()


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_slices_of_rows_on_the_device_are_those_of_the_host(data, view, layout):
    chosen = view(data)
    if chosen.seq_len % 4:
        chosen = data.windows(96, extras=EXTRAS, mask_ends=True)
    options = {"rank": 0, "ranks": 1, "context_rank": 1, "context_ranks": 2}
    parallel = millstream.Parallel(context_layout=layout, **options)
    there = millstream.Loader(chosen, 8, parallel=parallel, tail="keep", device="cuda")
    here = millstream.Loader(chosen, 8, parallel=parallel, tail="keep")
    for arrived, expected in zip(there, here, strict=True):
        assert_same(on_host(arrived), expected)


def test_steps_of_several_batches_arrive_whole(data):
    options = {"global_batch_size": [(0, 12), (100, 30)], "rank": 1, "ranks": 2, "tail": "keep"}
    there = millstream.Loader(data.packed(128), 4, device="cuda", **options)
    here = millstream.Loader(data.packed(128), 4, **options)
    for step, expected in zip(there, here, strict=True):
        assert len(step) == len(expected) > 1
        for batch, same in zip(step, expected, strict=True):
            assert_same(on_host(batch), same)


@pytest.mark.parametrize("device", ["cuda:0", 0, torch.device("cuda"), torch.device("cuda:0")])
def test_names_numbers_and_objects_mean_the_same_device(data, device):
    batch = next(iter(millstream.Loader(data.windows(16), 2, device=device)))
    assert batch["labels"].device == torch.device("cuda:0")


def test_a_thousand_batches_behind_a_busy_stream_are_all_right(data):
    view = data.packed(64, extras=EXTRAS)
    here = list(islice(millstream.Loader(view, 4, endless=True), 1000))
    with millstream.Loader(view, 4, endless=True, device="cuda") as loader:
        sums, kept = [], []
        for number, batch in enumerate(islice(loader, 1000)):
            if number % 100 == 50:
                torch.cuda.synchronize()
                torch.cuda._sleep(BUSY_CYCLES)
            if number % 100 == 55:  # later, launches wait for the device: its queue is full
                assert not torch.cuda.current_stream().query()
            sums.append(batch["input_ids"].sum() + batch["labels"].sum())
            if number % 7 == 0:
                kept.append((number, batch))
        for total, expected in zip(sums, here, strict=True):
            assert int(total) == int(expected["input_ids"].sum() + expected["labels"].sum())
        for number, batch in kept:  # a batch that is held never changes
            assert_same(on_host(batch), here[number])


def test_a_batch_arrives_although_its_loader_is_gone(data):
    for seed in range(20):
        here = next(iter(millstream.Loader(data.windows(512), 16, seed=seed)))
        torch.cuda._sleep(BUSY_CYCLES // 20)
        batch = next(iter(millstream.Loader(data.windows(512), 16, seed=seed, device="cuda")))
        assert_same(on_host(batch), here)


def test_no_step_synchronizes_or_takes_more_memory(data):
    with millstream.Loader(
        data.packed(256, extras=EXTRAS, static_shapes=True), 8, endless=True, device="cuda"
    ) as loader:
        batches = islice(loader, 10_000)
        for batch in islice(batches, 100):
            batch["input_ids"].sum()
        torch.cuda.synchronize()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        num_mallocs = torch.cuda.memory_stats()["num_device_alloc"]
        with warnings.catch_warnings(action="ignore"):  # that this mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches:
                batch["input_ids"].sum()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() < allocated + (1 << 20)  # a slab or two
        assert torch.cuda.memory_reserved() == reserved
        assert torch.cuda.memory_stats()["num_device_alloc"] == num_mallocs


def test_batches_of_many_shapes_are_right_and_take_no_more_memory(data):
    view = data.documents(300, by_length=True, pad_to=1, extras=EXTRAS)
    here = millstream.Loader(view, 4, endless=True)
    with millstream.Loader(view, 4, endless=True, device="cuda") as there:
        shapes, reserved = set(), 0
        for number, (arrived, expected) in enumerate(islice(zip(there, here, strict=True), 1500)):
            shapes.add(arrived["input_ids"].shape)
            if number % 10 == 0:
                assert_same(on_host(arrived), expected)
            if number == 500:
                reserved = torch.cuda.memory_reserved()
        assert len(shapes) > 64
        assert torch.cuda.memory_reserved() <= reserved + (1 << 21)


def test_the_consumer_may_change_its_stream_at_any_step(data):
    here = list(millstream.Loader(data.windows(64), 4))
    there = millstream.Loader(data.windows(64), 4, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(3)]
    sums = []
    try:
        for number, batch in zip(range(len(here)), there, strict=False):
            if number % 50 == 0:
                torch.cuda._sleep(BUSY_CYCLES // 20)
            sums.append(batch["input_ids"].sum() * 2 + batch["labels"].sum())
            torch.cuda.set_stream(streams[number % 3])
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream())
    torch.cuda.synchronize()
    expected = [int(b["input_ids"].sum() * 2 + b["labels"].sum()) for b in here]
    assert [int(total) for total in sums] == expected


def test_threads_with_streams_of_their_own_share_a_loader(data):
    here = {
        (int(b["input_ids"].sum()), int(b["labels"].sum()))
        for b in islice(millstream.Loader(data.windows(64), 4, endless=True), 300)
    }
    found = []
    with millstream.Loader(data.windows(64), 4, endless=True, device="cuda") as loader:
        batches = iter(loader)

        def take():
            with torch.cuda.stream(torch.cuda.Stream()):
                for number in range(100):
                    batch = next(batches)
                    if number % 20 == 0:
                        torch.cuda._sleep(BUSY_CYCLES // 50)
                    found.append((batch["input_ids"].sum(), batch["labels"].sum()))
                torch.cuda.current_stream().synchronize()

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loader.stats.in_flight <= 2
    assert {(int(inputs), int(labels)) for inputs, labels in found} == here


def test_a_loader_that_began_in_inference_mode_serves_training(data):
    loader = millstream.Loader(data.packed(64), 4, device="cuda", endless=True)
    with torch.inference_mode():
        next(iter(loader))
    table = torch.nn.Embedding(50_000, 8, device="cuda")
    for batch in islice(loader, 20):
        assert not batch["labels"].is_inference()
        table(batch["input_ids"]).sum().backward()
    assert table.weight.grad.abs().sum() > 0


def test_a_batch_is_not_loaded_in_a_capture(data):
    loader = millstream.Loader(data.windows(64), 4, device="cuda")
    batches = iter(loader)
    here = next(iter(millstream.Loader(data.windows(64), 4)))
    graph = torch.cuda.CUDAGraph()
    count = torch.zeros(1, device="cuda")
    with pytest.raises(RuntimeError, match="before the capture"), torch.cuda.graph(graph):
        count.add_(1)
        next(batches)
    torch.cuda.synchronize()
    assert_same(on_host(next(batches)), here)


def test_static_addresses_feed_a_cuda_graph(data):
    view = data.packed(256, extras=EXTRAS, static_shapes=True)
    here = millstream.Loader(view, 8)
    there = millstream.Loader(view, 8, device="cuda", static_addresses=True)
    iterator = iter(there)
    batch = next(iterator)
    result = torch.zeros((), dtype=torch.int64, device="cuda")

    def step():
        result.copy_(batch["input_ids"].sum() - batch["labels"].sum() + batch["cu_seqlens"].sum())

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for number, expected in enumerate(here):
        if number:
            following = next(iterator)
            assert following["labels"].data_ptr() == batch["labels"].data_ptr()
            assert_same(on_host(following), expected)
        graph.replay()
        total = expected["input_ids"].sum() - expected["labels"].sum()
        assert int(result) == int(total + expected["cu_seqlens"].sum())


def test_a_users_graph_may_be_captured_while_batches_are_read(data):
    with millstream.Loader(data.packed(64), 4, endless=True, device="cuda") as loader:
        weights = torch.randn(256, 256, device="cuda")
        weights @ weights  # creates what must not be created in a capture
        for batch in islice(loader, 20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # refuses what other threads do to the device
                product = weights @ weights
            graph.replay()
            assert batch["input_ids"].shape == (4, 64)
        assert torch.isfinite(product).all()


def test_a_failed_upload_reaches_the_consumer_and_the_loader_goes_on(data):
    here = list(millstream.Loader(data.windows(128), 64))
    loader = millstream.Loader(data.windows(128), 64, device="cuda")
    iterator = iter(loader)
    found = [on_host(next(iterator)) for _ in range(3)]
    position = loader.position
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    hoard = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(64)]
    torch.cuda.set_per_process_memory_fraction(1e-9)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            while True:
                hoard.append(next(iterator))
                position = loader.position
                found.append(on_host(hoard[-1]))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert loader.position == position
    found += [on_host(batch) for batch in iterator]
    for batch, expected in zip(found, here, strict=True):
        assert_same(batch, expected)


def test_text_arrives_on_the_device_as_on_the_host(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n} of the text\n" * (n % 7 + 1) for n in range(2000)))
    packing = millstream.Packing(extras=EXTRAS, mask_ends=True)
    options = {"batch_size": 4, "seq_len": 100, "packing": packing, "tail": "keep"}
    there = millstream.TextLoader(path, "bytes", device="cuda", **options)
    here = millstream.TextLoader(path, "bytes", **options)
    count = 0
    for arrived, expected in zip(there, here, strict=True):
        assert_same(on_host(arrived), expected)
        count += 1
        if count == 5:
            assert there.state_dict() == here.state_dict()
    assert count > 20


def test_states_tokens_and_jumps_are_those_of_the_host(data):
    view = data.packed(256)
    there = millstream.Loader(view, 8, device="cuda", digest_tokens=True)
    here = millstream.Loader(view, 8, digest_tokens=True)
    for _ in zip(islice(there, 5), islice(here, 5), strict=True):
        assert (there.digest(), there.token_digest()) == (here.digest(), here.token_digest())
    state = there.state_dict()
    rest = [on_host(batch) for batch in there]
    there.load_state_dict(state)  # uploads of other steps are under way
    for batch, expected in zip(there, rest, strict=True):
        assert_same(on_host(batch), expected)


def test_workers_and_forks_are_refused_in_words(data):
    loader = millstream.Loader(data.windows(64), 4, device="cuda")
    next(iter(loader))
    workers = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=1)
    with pytest.raises(millstream.UsageError, match="in the workers of a DataLoader"):
        next(iter(workers))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            next(iter(loader))
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1000).startswith(b"a forked process cannot use CUDA")
    assert next(iter(loader))["input_ids"].shape == (4, 64)
