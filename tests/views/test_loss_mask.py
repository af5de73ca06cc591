"""The field `loss_mask` is applied to labels by default, in every view."""

import pytest

import millstream
from millstream.errors import UsageError


def test_a_field_loss_mask_is_applied_unless_it_is_turned_off(tmp_path):
    fields = [("token", "<u2"), ("loss_mask", "u1"), ("other", "<i4")]
    with millstream.Writer(tmp_path / "data", fields=fields) as writer:
        writer.append({"token": [5, 6, 7, 8], "loss_mask": [1, 0, 1, 1], "other": [1, 1, 0, 1]})
    data = millstream.open(tmp_path / "data")
    for view in (data.windows, data.packed, data.documents):
        assert view(3)[0]["labels"].tolist() == [-100, 7, 8]
        assert view(3, loss_mask=False)[0]["labels"].tolist() == [6, 7, 8]
        assert view(3, loss_mask="other")[0]["labels"].tolist() == [6, -100, 8]
        assert view(3)[0]["loss_mask"].tolist() == [1, 0, 1]
        assert len({view(3, loss_mask=each).fingerprint for each in (None, False, "other")}) == 1
    loader = millstream.Loader(data.windows(3, loss_mask=False), 1, output="numpy")
    state = loader.state_dict()
    millstream.Loader(data.windows(3), 1, output="numpy").load_state_dict(state)
    with pytest.raises(UsageError, match="did you mean 'loss_mask'"):
        data.windows(3, loss_mask="los_mask")


def test_weights_that_are_called_loss_mask_mask_nothing(tmp_path):
    fields = [("token", "<u2"), ("loss_mask", "<f4")]
    with millstream.Writer(tmp_path / "data", fields=fields) as writer:
        writer.append({"token": [5, 6, 7], "loss_mask": [0, 0.5, 0]})
    batch = millstream.open(tmp_path / "data").windows(2)[0]
    assert batch["labels"].tolist() == [6, 7]
    assert batch["loss_mask"].tolist() == [0, 0.5]
