"""Audits of orders and runs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.auditing import RunShape, audit
from millstream.errors import UsageError, VerificationError
from millstream.order.order import Order


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9)), max_size=5),
    st.sampled_from(["keep", "wrap"]),
    st.integers(1, 300),
)
def test_every_sample_is_served_once_through_any_changes(changes, tail, num_samples):
    steps = [RunShape(step=0, ranks=2, batch_size=3)]
    for gap, ranks, batch_size in changes:
        steps.append(RunShape(step=steps[-1].step + gap, ranks=ranks, batch_size=batch_size))
    report = audit(millstream.make_order(True, num_samples, 1), steps, epochs=3, tail=tail)
    assert [epoch.served for epoch in report.epochs] == [num_samples] * 3


def test_what_the_plan_drops_is_counted():
    report = audit(
        millstream.make_order(True, 100, 0), [RunShape(step=0, ranks=3, batch_size=4)], epochs=2
    )
    assert [(epoch.served, epoch.dropped) for epoch in report.epochs] == [(96, 4), (96, 4)]
    assert report.num_steps == 16


class Stuttering(Order):
    """An order that serves sample 0 in place of sample 1."""

    def samples_at(self, positions):
        samples = super().samples_at(positions)
        samples[samples == 1] = 0
        return samples


def test_an_order_that_repeats_a_sample_does_not_pass():
    with pytest.raises(VerificationError, match="sample 0 was served twice"):
        audit(Stuttering(1, 100, 0), [RunShape(step=0, ranks=2, batch_size=5)], tail="keep")


def test_changes_must_start_at_the_start():
    with pytest.raises(UsageError, match="start at step 0"):
        audit(millstream.make_order(True, 100, 0), [RunShape(step=3, ranks=2, batch_size=5)])
