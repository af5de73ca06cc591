"""`Loader`: order, resumption, threads, memory, statistics and argument checks."""

import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError, StateError, UsageError
from tests.helpers.datasets import write_dataset
from tests.helpers.descriptors import open_descriptors
from tests.helpers.reading_threads import wait_for_reading_threads
from tests.helpers.waiting import wait_until

SEQ_LEN = 5


def rows_of(tokens, samples, seq_len=SEQ_LEN):
    """The input rows of samples, by plain slicing."""
    return [tokens[i * seq_len : (i + 1) * seq_len].tolist() for i in samples]


def inputs(batch):
    return batch["input_ids"].tolist()


orders = st.sampled_from(
    [True, False, millstream.BlockShuffle(7), millstream.BlockShuffle(16, inside=True)]
)
splits = st.tuples(st.integers(1, 4), st.integers(1, 9))
reading = st.fixed_dictionaries(
    {
        "prefetch": st.sampled_from([0, 1, 3, 8]),
        "threads": st.integers(1, 3),
        "announce": st.sampled_from([0, 1, 8]),
    }
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    split=splits,
    shuffle=orders,
    tail=st.sampled_from(["drop", "keep", "wrap"]),
    seed=st.integers(0, 2**64 - 1),
    reading=reading,
)
def test_one_epoch_over_all_ranks_is_the_order_itself(
    data, tokens, split, shuffle, tail, seed, reading
):
    ranks, batch_size = split
    view = data.windows(SEQ_LEN)
    steps = []
    for rank in range(ranks):
        loader = millstream.Loader(
            view,
            batch_size,
            seed=seed,
            shuffle=shuffle,
            rank=rank,
            ranks=ranks,
            tail=tail,
            output="numpy",
            **reading,
        )
        with loader:
            expected_length = len(loader)
            share = [inputs(batch) for batch in loader]
        assert len(share) == expected_length
        steps.append(share)
    assert len({len(share) for share in steps}) == 1
    served = [
        share[step][row]
        for step in range(len(steps[0]))
        for row in range(batch_size)
        for share in steps
        if row < len(share[step])
    ]
    order = millstream.make_order(shuffle, len(view), seed)
    assert served == rows_of(tokens, order.samples_at(range(len(served))))
    step_size = ranks * batch_size
    whole = {
        "drop": len(view) // step_size * step_size,
        "keep": len(view),
        "wrap": -(-len(view) // step_size) * step_size,
    }
    assert len(served) == whole[tail]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    phases=st.lists(st.tuples(splits, reading, st.integers(1, 30)), min_size=1, max_size=6),
    shuffle=orders,
)
def test_any_change_of_ranks_rows_and_prefetching_continues_the_same_order(
    data, tokens, phases, shuffle
):
    view = data.windows(SEQ_LEN)
    order = millstream.make_order(shuffle, len(view), 7)
    state = None
    for (ranks, batch_size), reading, num_steps in phases:
        states = []
        position = 0 if state is None else state["position"]
        for rank in range(ranks):
            loader = millstream.Loader(
                view,
                batch_size,
                seed=7,
                shuffle=shuffle,
                rank=rank,
                ranks=ranks,
                endless=True,
                output="numpy",
                **reading,
            )
            with loader:
                if state is not None:
                    loader.load_state_dict(state)
                got = [inputs(batch) for batch in islice(loader, num_steps)]
                states.append(json.loads(json.dumps(loader.state_dict())))
            wanted = position + rank + ranks * np.arange(num_steps * batch_size)
            assert sum(got, []) == rows_of(tokens, order.samples_at(wanted))
        assert all(other == states[0] for other in states)
        state = states[0]
        assert state["position"] == position + num_steps * ranks * batch_size


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("tail", ["drop", "keep", "wrap"])
def test_it_resumes_exactly_at_every_step_and_through_the_ends_of_epochs(data, output, tail):
    millstream.testing.assert_resumes_exactly(
        lambda: millstream.Loader(data.windows(50), 3, seed=1, tail=tail, output=output), steps=25
    )


def test_a_state_that_is_taken_at_the_end_of_an_epoch_starts_the_next(data):
    view = data.windows(50)
    loader = millstream.Loader(view, 3, output="numpy")
    first = [inputs(batch) for batch in loader]
    state = loader.state_dict()
    second = [inputs(batch) for batch in loader]
    resumed = millstream.Loader(view, 3, output="numpy")
    resumed.load_state_dict(state)
    assert resumed.epoch == 1
    assert [inputs(batch) for batch in resumed] == second != first


def test_an_iteration_that_is_left_and_taken_up_again_goes_on(data):
    whole = [inputs(batch) for batch in millstream.Loader(data.windows(50), 3, output="numpy")]
    loader = millstream.Loader(data.windows(50), 3, output="numpy")
    parts = [inputs(batch) for batch in islice(loader, 2)]
    assert loader.remaining == len(whole) - 2
    assert len(loader) == len(whole)
    parts += [inputs(batch) for batch in loader]
    assert parts == whole


def test_an_endless_loader_runs_through_epochs_without_a_seam(data, tokens):
    view = data.windows(50)
    loader = millstream.Loader(view, 7, endless=True, output="numpy")
    got = sum((inputs(batch) for batch in islice(loader, 10)), [])
    loader.close()
    assert got == rows_of(tokens, loader.order.samples_at(range(70)), 50)
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    with pytest.raises(TypeError, match="no length"):
        loader.remaining  # noqa: B018
    assert loader


def test_a_state_that_is_loaded_in_the_middle_of_an_iteration_decides_where_it_ends(data):
    loader = millstream.Loader(data.windows(50), 2, output="numpy")  # 10 batches an epoch
    early, late = loader.state_dict() | {"position": 10}, loader.state_dict() | {"position": 64}
    for state, num_left in ((early, 5), (late, 8)):
        loader.set_epoch(2)
        num_batches = 0
        for _ in loader:
            num_batches += 1
            if num_batches == 3:
                loader.load_state_dict(state)
                assert loader.remaining == num_left
                assert len(loader) == 10
        assert num_batches == 3 + num_left


@pytest.mark.parametrize("tail", ["drop", "keep", "wrap"])
def test_set_epoch_before_every_epoch_does_no_harm_after_a_resume(data, tail):
    view = data.windows(50)

    def rows(loader):
        return [inputs(batch) for batch in loader]

    loader = millstream.Loader(view, 3, tail=tail, output="numpy")
    loader.set_epoch(1)
    list(islice(loader, 2))
    state = loader.state_dict()
    expected = [rows(loader), rows(loader)]
    resumed = millstream.Loader(view, 3, tail=tail, output="numpy")
    resumed.load_state_dict(state)
    found = []
    for epoch in (1, 2):
        resumed.set_epoch(epoch)
        found.append(rows(resumed))
    assert found == expected


def test_threads_that_share_a_loader_get_every_batch_once(data):
    whole = sorted(map(inputs, millstream.Loader(data.windows(SEQ_LEN), 1, output="numpy")))
    for prefetch in (0, 4):
        loader = millstream.Loader(data.windows(SEQ_LEN), 1, output="numpy", prefetch=prefetch)
        got = []

        def take(batches, got=got):
            got.extend(map(inputs, batches))

        threads = [threading.Thread(target=take, args=(iter(loader),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == whole
        assert loader.position == len(whole)
        loader.close()


def test_a_loader_may_be_closed_by_another_thread(data, tokens, tmp_path):
    loader = millstream.Loader(data.windows(SEQ_LEN), 1, shuffle=False, endless=True)
    stop = threading.Event()

    def close_again_and_again():
        while not stop.is_set():
            loader.close()
            with (tmp_path / "mine").open("wb"):  # takes the descriptors that close gave back
                time.sleep(0.001)
            assert (tmp_path / "mine").stat().st_size == 0

    closer = threading.Thread(target=close_again_and_again)
    closer.start()
    for batch in islice(loader, 300):
        assert inputs(batch) == rows_of(tokens, [(loader.position - 1) % 200])
    stop.set()
    closer.join()
    loader.close()


def test_the_state_is_small_and_its_form_is_pinned(data):
    loader = millstream.Loader(data.windows(50), 3, seed=5)
    next(iter(loader))
    # A user's checkpoint outlives a release: change this only with a new version.
    assert loader.state_dict() == {
        "version": 2,
        "millstream": millstream.__version__,
        "position": 3,
        "seed": 5,
        "order": "shuffle-v1 over 20",
        "view": "windows-v1 of 51 every 50 in " + data.fingerprint,
    }
    loader.close()


def test_a_state_of_version_1_goes_on_exactly(data):
    view = data.windows(50)
    state = {
        "version": 1,
        "position": 6,
        "seed": 5,
        "order": "shuffle-v1 over 20",
        "view": "windows-v1 of 51 every 50 in " + data.fingerprint,
    }
    expected = [inputs(batch) for batch in millstream.Loader(view, 3, seed=5, output="numpy")][2:]
    loader = millstream.Loader(view, 3, seed=5, output="numpy")
    loader.load_state_dict(state)
    assert [inputs(batch) for batch in loader] == expected
    with pytest.raises(StateError, match="expected the keys"):
        loader.load_state_dict(state | {"more": 1})


def test_what_a_later_release_adds_to_a_state_is_ignored_unless_the_state_requires_it(data):
    loader = millstream.Loader(data.windows(50), 3, seed=5)
    state = loader.state_dict() | {"position": 6, "millstream": "9.9", "weights": [1, 2]}
    loader.load_state_dict(state)
    assert loader.position == 6
    loader.load_state_dict(state | {"requires": ["position"], "position": 3})
    assert loader.position == 3
    with pytest.raises(StateError, match=r"requires .*'weights'.*written by Millstream 9.9"):
        loader.load_state_dict(state | {"requires": ["position", "weights"]})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            lambda d: millstream.Loader(d.windows(50), 3, seed=6),
            "seed was 5 and is 6; .* with seed=5$",
        ),
        (lambda d: millstream.Loader(d.windows(51), 3, seed=5), "view was 'windows-v1 of 51"),
        (lambda d: millstream.Loader(d.windows(50), 3, seed=5, shuffle=False), "sequential-v1"),
    ],
)
def test_a_state_of_something_else_is_refused_with_what_differs(data, other, words):
    state = millstream.Loader(data.windows(50), 3, seed=5).state_dict()
    with pytest.raises(StateError, match=words):
        other(data).load_state_dict(state)


@pytest.mark.parametrize(
    "state",
    [
        {},
        None,
        {"position": 1},
        {"seed": 5, "position": -1},
        {"seed": 5, "position": 1 << 62},
        {"seed": 5, "position": 2.0},
        {"seed": 5, "position": True},
        {"version": 3, "position": 1},
        {"version": "2", "position": 1},
        {"version": True, "position": 1},
        {"version": [2], "position": 1},
        {"requires": "position"},
        {"requires": [["position"]]},
        {"requires": None},
    ],
)
def test_a_broken_state_is_refused(data, state):
    loader = millstream.Loader(data.windows(50), 3, seed=5)
    if state and state != {"position": 1}:
        state = loader.state_dict() | state
    with pytest.raises(StateError):
        loader.load_state_dict(state)


def test_digests_of_a_step_are_equal_for_every_split_and_token_digests_add_up(data):
    seen = []
    for ranks, batch_size in [(1, 12), (2, 6), (3, 4), (12, 1)]:
        loaders = [
            millstream.Loader(
                data.windows(SEQ_LEN),
                batch_size,
                rank=rank,
                ranks=ranks,
                digest_tokens=True,
                dtype=dtype,
                tail="keep",
            )
            for rank, dtype in zip(range(ranks), [None, "int64", torch.int32] * 4, strict=False)
        ]
        steps = []
        for _ in zip(*loaders, strict=True):
            assert len({loader.digest() for loader in loaders}) == 1
            parts = [loader.token_digest() for loader in loaders]
            steps.append((loaders[0].digest(), millstream.sum_digests(parts)))
        seen.append(steps)
    assert all(steps == seen[0] for steps in seen)
    assert len(set(seen[0])) == len(seen[0]) == -(-200 // 12)


def test_a_token_digest_tells_other_tokens_apart_where_the_sample_digest_cannot(tmp_path, tokens):
    changed = tokens.copy()
    changed[17] ^= 1
    digests = []
    for name, stored in (("a", tokens), ("b", changed)):
        data = write_dataset(tmp_path / name, stored)
        loader = millstream.Loader(data.windows(50), 20, digest_tokens=True)
        next(iter(loader))
        digests.append((loader.digest(), loader.token_digest()))
        loader.close()
    assert digests[0][0] == digests[1][0]
    assert digests[0][1] != digests[1][1]


def test_samples_names_the_rows_of_the_last_batch(data, tokens):
    loader = millstream.Loader(data.windows(SEQ_LEN), 4, rank=1, ranks=3, output="numpy")
    with pytest.raises(UsageError, match="no batch"):
        loader.samples()
    for batch in islice(loader, 5):
        assert inputs(batch) == rows_of(tokens, loader.samples())
    loader.close()


@pytest.mark.parametrize("shuffle", [True, millstream.BlockShuffle(7)])
def test_the_order_says_at_which_position_a_row_comes(data, shuffle):
    view = data.windows(SEQ_LEN)
    with millstream.Loader(
        view, 4, shuffle=shuffle, seed=3, endless=True, output="numpy"
    ) as loader:
        for _ in islice(loader, len(view) // 2):  # two epochs
            positions = np.arange(loader.position - 4, loader.position)
            for sample, position in zip(loader.samples(), positions, strict=True):
                epoch = position // len(view)
                assert loader.order.positions_of([sample], epoch) == [position]


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_batch_that_is_held_is_never_rewritten(data, tokens, output, prefetch):
    loader = millstream.Loader(data.windows(SEQ_LEN), 4, output=output, prefetch=prefetch)
    held = []
    for batch in loader:
        held.append((batch["labels"][2], loader.samples()[2]))  # a view of a view is enough
    assert len(held) == 50
    for row, sample in held:
        start = sample * SEQ_LEN + 1
        assert row.tolist() == tokens[start : start + SEQ_LEN].tolist()


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_buffers_are_used_again_when_batches_are_dropped(data, output):
    loader = millstream.Loader(
        data.windows(SEQ_LEN), 2, output=output, prefetch=3, endless=True, shuffle=False
    )
    address = {
        "torch": lambda tensor: tensor.data_ptr(),
        "numpy": lambda array: array.__array_interface__["data"][0],
    }[output]
    seen = {address(batch["input_ids"]) for batch in islice(loader, 300)}
    loader.close()
    assert len(seen) <= 3 + 2


@pytest.mark.slow
def test_a_batch_outlives_its_loader(data, tokens):
    loader = millstream.Loader(data.windows(SEQ_LEN), 4, shuffle=False)
    batch = next(iter(loader))
    del loader
    gc.collect()
    assert inputs(batch) == rows_of(tokens, range(4))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.int64, torch.int64),
        ("int32", torch.int32),
        (torch.int32, torch.int32),
        (None, torch.uint16),
        ("uint32", torch.uint32),
    ],
)
def test_tokens_arrive_in_the_type_that_was_asked_for(data, tokens, dtype, expected):
    with millstream.Loader(data.windows(SEQ_LEN), 4, dtype=dtype, shuffle=False) as loader:
        batch = next(iter(loader))
    assert batch["input_ids"].dtype == batch["labels"].dtype == expected
    assert inputs(batch) == rows_of(tokens, range(4))


def test_a_type_that_cannot_hold_the_ids_is_refused(data):
    with pytest.raises(UsageError, match=r"int16 cannot hold token ids up to 65,535"):
        millstream.Loader(data.windows(SEQ_LEN), 4, dtype="int16")
    with pytest.raises(UsageError, match="integers"):
        millstream.Loader(data.windows(SEQ_LEN), 4, dtype="float32")


def test_other_fields_arrive_under_their_names_aligned_with_the_inputs(tmp_path, tokens):
    fields = [("token", "<u4"), ("score", "<f4"), ("frame", "u1", (2, 3)), ("tag", "S3")]
    records = np.zeros(len(tokens), fields)
    records["token"] = tokens
    records["score"] = tokens / 7
    records["frame"] = tokens[:, None, None] % 251
    records["tag"] = tokens.astype("S3")
    data = write_dataset(tmp_path / "d", records, cuts=[100, 900], fields=fields, vocab_size=None)
    loader = millstream.Loader(data.windows(SEQ_LEN), 4, seed=3)
    for batch in loader:
        window = loader.samples()[:, None] * SEQ_LEN + np.arange(SEQ_LEN)
        assert list(batch) == ["input_ids", "labels", "score", "frame", "tag"]
        assert inputs(batch) == tokens[window].tolist()
        assert batch["score"].dtype == torch.float32
        np.testing.assert_array_equal(batch["score"].numpy(), records["score"][window])
        assert tuple(batch["frame"].shape) == (4, SEQ_LEN, 2, 3)
        np.testing.assert_array_equal(batch["frame"].numpy(), records["frame"][window])
        np.testing.assert_array_equal(batch["tag"], records["tag"][window])


@pytest.mark.usefixtures("no_thread_is_left")
def test_threads_end_with_close_with_the_block_and_with_the_garbage(data):
    loader = millstream.Loader(data.windows(SEQ_LEN), 4, threads=3)
    next(iter(loader))
    wait_for_reading_threads(3)
    loader.close()
    loader.close()
    wait_for_reading_threads(0)
    with loader:
        next(iter(loader))
    wait_for_reading_threads(0)
    next(iter(loader))
    del loader
    gc.collect()  # tells the threads to end, but does not wait: it may run anywhere
    wait_for_reading_threads(0)


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize(
    ("processors", "local_ranks", "expected"),
    [(1, None, 1), (2, None, 1), (4, None, 3), (16, None, 4), (16, "8", 1), (16, "x", 4)],
)
def test_threads_leave_the_consumer_a_processor(
    data, monkeypatch, processors, local_ranks, expected
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    if local_ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_ranks)
    with millstream.Loader(data.windows(SEQ_LEN), 4) as loader:
        next(iter(loader))
        wait_for_reading_threads(expected)


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("prefetch", [0, 4])
def test_nothing_stays_open_after_close(data, prefetch):
    before = open_descriptors()
    for _ in range(5):
        loader = millstream.Loader(data.windows(SEQ_LEN), 4, prefetch=prefetch)
        list(islice(loader, 10))
        loader.close()
    assert open_descriptors() <= before


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("prefetch", [0, 8])
def test_a_failed_read_reaches_the_consumer_in_its_turn(tmp_path, tokens, prefetch):
    data = write_dataset(tmp_path / "d", tokens, cuts=[500])
    second = tmp_path / "d" / "00001.stream"
    whole = second.read_bytes()
    loader = millstream.Loader(
        data.windows(50), 1, shuffle=False, prefetch=prefetch, output="numpy"
    )
    second.write_bytes(whole[:-10])
    got = []
    with pytest.raises(FormatError, match=r"00001\.stream: 996 bytes, expected 1,006"):
        for batch in loader:
            got.append(inputs(batch))
    assert len(got) == 9  # the tenth window reaches over into the second shard
    assert loader.position == 9
    second.write_bytes(whole)
    got += [inputs(batch) for batch in loader]  # the same position is tried again
    loader.close()
    assert sum(got, []) == rows_of(tokens, range(20), 50)


def test_statistics_count_what_was_handed_out(data):
    with millstream.Loader(data.windows(SEQ_LEN), 4, prefetch=4) as loader:
        list(islice(loader, 7))
        stats = loader.stats
        wait_until(lambda: loader.stats.ready == 4)  # filled while nobody takes from it
    assert (stats.batches, stats.rows, stats.tokens) == (7, 28, 140)
    assert loader.stats.ready == 0
    with millstream.Loader(data.windows(SEQ_LEN), 4, prefetch=0) as loader:
        next(iter(loader))
        waited = loader.stats.waited_seconds
    assert loader.stats.waited_seconds == waited > 0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "3"}, "WORLD_SIZE=None"),
        ({"RANK": "x", "WORLD_SIZE": "8"}, "RANK='x'"),
    ],
)
def test_the_rank_comes_from_the_environment(data, monkeypatch, environment, expected):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            millstream.Loader(data.windows(SEQ_LEN), 2)
    else:
        plan = millstream.Loader(data.windows(SEQ_LEN), 2).plan
        assert (plan.rank, plan.ranks) == expected


def test_the_rank_comes_from_torch_distributed_before_the_environment(data, monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        plan = millstream.Loader(data.windows(SEQ_LEN), 2).plan
    finally:
        torch.distributed.destroy_process_group()
    assert (plan.rank, plan.ranks) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 1}, "pass both or neither"),
        ({"rank": 0.0, "ranks": 1}, "rank is 0.0; it must be an integer"),
        ({"batch_size": 8.0}, "batch_size is 8.0; it must be an integer from 1 to"),
        ({"dtype": "int46"}, "'int46', which NumPy does not know"),
        ({"prefetch": 2.5}, "prefetch is 2.5"),
        ({"seed": None}, "seed is None"),
        ({"output": "jax"}, "'jax'"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_mistakes_are_named(data, arguments, words):
    with pytest.raises(UsageError, match=words):
        millstream.Loader(data.windows(SEQ_LEN), **({"batch_size": 2} | arguments))


@pytest.mark.parametrize("thing", ["path", [1, 2, 3], None])
def test_what_is_not_a_view_is_refused(data, thing):
    with pytest.raises(UsageError, match=r"takes a view, such as data.windows\(2048\)"):
        millstream.Loader(data if thing is None else thing, 2)


def test_a_dataset_shorter_than_one_row_is_an_error_and_no_hang(tmp_path):
    data = write_dataset(tmp_path / "d", [1, 2, 3])
    with pytest.raises(UsageError, match="the dataset has 3 records, for rows of 5"):
        millstream.Loader(data.windows(SEQ_LEN), 2)


OURS = str(Path(millstream.__file__).parent)


class InterruptError(Exception):
    pass


def interrupt_at_line(number, function):
    """Call `function`, and raise at the n-th line of ours that runs in Python."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        count += event == "line"
        if count == number:
            count += 1
            raise InterruptError
        return trace

    sys.settrace(trace)
    try:
        function()
    except InterruptError:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.slow
@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("moment", ["first batch", "later batch", "close"])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_interrupt_at_any_line_neither_repeats_nor_skips_a_step(data, tokens, prefetch, moment):
    next(iter(millstream.Loader(data.windows(SEQ_LEN), 1)))  # everything is imported and compiled
    for number in itertools.count(1):
        loader = millstream.Loader(
            data.windows(SEQ_LEN), 1, shuffle=False, prefetch=prefetch, endless=True
        )
        if moment != "first batch":
            next(iter(loader))
        act = loader.close if moment == "close" else lambda loader=loader: next(iter(loader))
        interrupted = interrupt_at_line(number, act)
        for batch in islice(loader, 5):
            assert inputs(batch) == rows_of(tokens, [loader.position - 1])
        loader.close()
        if not interrupted:
            break
    assert number > (40 if moment == "first batch" else 1)
    del loader, act, batch
    gc.collect()  # an engine whose close was interrupted ends with its loader
    wait_for_reading_threads(0)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_signals_do_not_disturb_reading(data, tokens, prefetch):
    previous = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for epoch in range(5):
            with millstream.Loader(data.windows(SEQ_LEN), 4, prefetch=prefetch) as loader:
                loader.set_epoch(epoch)
                for batch in loader:
                    assert inputs(batch) == rows_of(tokens, loader.samples())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pinned_memory_without_an_accelerator_is_refused(data):
    with pytest.raises(UsageError, match="pin_memory=True needs an accelerator"):
        millstream.Loader(data.windows(SEQ_LEN), 4, pin_memory=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_pinned_batches_are_pinned_and_never_rewritten_while_held(data, tokens):
    loader = millstream.Loader(data.windows(SEQ_LEN), 4, pin_memory=True)
    held = []
    for batch in loader:
        assert batch["input_ids"].is_pinned()
        assert batch["labels"].is_pinned()
        held.append((batch["labels"][1], loader.samples()[1]))
    for row, sample in held:
        start = sample * SEQ_LEN + 1
        assert row.tolist() == tokens[start : start + SEQ_LEN].tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_memory_waits_for_copies_that_are_queued_behind_other_work(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50_000, 1 << 21).astype(np.uint16)
    data = write_dataset(tmp_path / "d", tokens)
    loader = millstream.Loader(data.windows(512), 32, pin_memory=True, dtype=None, endless=True)
    busy = torch.randn(8192, 8192, device="cuda")
    arrived = []
    for batch in islice(loader, 60):
        busy = (busy @ busy).clamp(-1, 1)
        on_device = batch["input_ids"].to("cuda", non_blocking=True)
        arrived.append((on_device, loader.samples()))
        del batch
    torch.cuda.synchronize()
    for on_device, samples in arrived:
        expected = tokens[samples[:, None] * 512 + np.arange(512)]
        np.testing.assert_array_equal(on_device.cpu().numpy(), expected)


@pytest.mark.parametrize("access", ["pread", "mmap"])
@pytest.mark.parametrize("field", [("frame", "u1", (8, 8)), ("level", "<f4"), ("word", "S5")])
def test_records_of_one_field_that_is_no_token_stay_within_their_memory(tmp_path, access, field):
    records = np.zeros(101, [field])
    records[field[0]].reshape(101, -1)[:] = np.arange(101)[:, None]
    write_dataset(tmp_path / "d", records, cuts=[40], fields=[field], vocab_size=None)
    view = millstream.open(tmp_path / "d", access=access).windows(10)
    loader = millstream.Loader(view, 3, output="numpy", tail="keep")
    held = [(batch[field[0]], loader.samples()) for batch in loader]  # neighbours in memory
    for values, samples in held:
        window = samples[:, None] * 10 + np.arange(10)
        np.testing.assert_array_equal(values, records[field[0]][window])


@pytest.mark.slow
def test_a_row_of_more_than_two_gibibytes_is_read_whole(tmp_path):
    size = (1 << 31) + 5000
    write_dataset(tmp_path / "d", np.arange(16), fields="u1", vocab_size=None)
    with (tmp_path / "d" / "00000.stream").open("r+b") as stream:
        stream.truncate(size)  # sparse
        stream.seek(size - 3)
        stream.write(b"xyz")
    manifest = tmp_path / "d" / "millstream.json"
    text = manifest.read_text().replace('"records": 16', f'"records": {size}')
    manifest.write_text(text.replace('"bytes": 16,', f'"bytes": {size},', 1))
    records = millstream.open(tmp_path / "d").records(0, size)
    assert len(records) == size
    assert records[:16].tolist() == list(range(16))
    assert records[-3:].tolist() == list(b"xyz")
    assert not records[16:-3].any()
