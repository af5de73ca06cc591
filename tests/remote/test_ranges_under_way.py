import weakref
from concurrent.futures import Future

from hypothesis import given
from hypothesis import strategies as st

from millstream.remote.ranges_under_way import RangesUnderWay
from millstream.remote.store import MAX_REQUEST_BYTES

UNIT = MAX_REQUEST_BYTES // 4  # so that some ranges need several requests


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("request"), st.integers(0, 60), st.integers(1, 12)),
            st.tuples(st.just("arrive"), st.integers(0, 1 << 30), st.just(0)),
        ),
        max_size=300,
    )
)
def test_every_byte_is_fetched_once_at_a_time_and_all_of_it_is_waited_for(steps):
    ranges, in_flight = RangesUnderWay(), {}

    def submit(start, stop):
        assert 0 < stop - start <= MAX_REQUEST_BYTES
        future = Future()
        in_flight[future] = set(range(start // UNIT, stop // UNIT))
        return future

    for kind, number, count in steps:
        if kind == "arrive" and in_flight:
            future = list(in_flight)[number % len(in_flight)]
            del in_flight[future]
            future.set_result(None)
        if kind == "request":
            start, stop = number, number + count
            before = sum(map(len, in_flight.values()))
            is_new = set(range(start, stop)) - set().union(*in_flight.values())
            waited = ranges.request(start * UNIT, stop * UNIT, submit)
            assert sum(map(len, in_flight.values())) == before + len(is_new)
            assert len(set(waited)) == len(waited)
            assert set(range(start, stop)) <= set().union(*(in_flight[each] for each in waited))


def test_ranges_that_have_arrived_are_forgotten():
    ranges, alive = RangesUnderWay(), weakref.WeakSet()

    def submit(start, stop):
        del start, stop
        future = Future()
        alive.add(future)
        return future

    for number in range(2000):
        (future,) = ranges.request(2 * number * UNIT, (2 * number + 1) * UNIT, submit)
        future.set_result(None)
    assert len(alive) <= 200
