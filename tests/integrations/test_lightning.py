"""Lightning and Fabric resume a loader exactly, or it refuses with the code to write instead."""

import warnings
from functools import partial

import pytest
import torch

import millstream
from millstream.errors import MillstreamError
from tests.helpers.datasets import inputs_of
from tests.helpers.trainer_data import ROWS, STEPS, make, make_text, write_text
from tests.helpers.trainer_runs import check_killed_and_resumed
from tests.helpers.trainer_runs import write_text as write_text_files
from tests.helpers.trainers import with_lightning

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = pytest.mark.filterwarnings(
    "ignore:(This DataLoader will|'set_vital')", "ignore:.*LeafSpec:FutureWarning"
)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("program", [with_lightning.train, with_lightning.train_with_fabric])
def test_a_killed_run_resumes_exactly(tmp_path, program, ranks):
    check_killed_and_resumed(program, tmp_path, ranks)


@pytest.mark.process
@pytest.mark.slow
def test_a_killed_run_from_text_resumes_exactly_on_several_ranks(tmp_path):
    program = partial(with_lightning.train, loader_options={"gather_states": True})
    check_killed_and_resumed(program, tmp_path, ranks=2, write=write_text_files)


def test_states_that_differ_between_ranks_are_refused_before_the_first_step(text):
    other = write_text(text.with_name("other.txt"))
    loader = make_text([text, other], rank=0, ranks=2)
    assert "pass gather_states=True" in refusal(loader, 10)


@pytest.mark.process
@pytest.mark.slow
def test_a_killed_run_with_a_limit_on_batches_resumes_exactly(tmp_path):
    program = partial(with_lightning.train, limit_train_batches=7)
    check_killed_and_resumed(program, tmp_path, ranks=2, num_steps=3 * 7)


def fit(
    loader, steps=-1, *, checkpoint=None, save_at=None, root=None, hook=None, val=None, **options
):
    """Rows that a module has seen, by epoch and number of the batch.

    A checkpoint is saved to `root`: at the end of the last epoch, or every `save_at` steps, or
    after the run if that is 0. A loader may be a function that makes one for every epoch.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning
        from lightning.pytorch.callbacks import ModelCheckpoint

        seen, validated = [], []

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(1))

            def training_step(self, batch, number):
                if "input_ids" in batch:
                    rows = batch["input_ids"].tolist()
                else:  # several loaders, of which some have ended
                    rows = {k: v["input_ids"].tolist() for k, v in batch.items() if v is not None}
                seen.append((self.current_epoch, number, rows))
                return (self.weight**2).sum()

            def on_train_epoch_start(self):
                if hook is not None:
                    hook()

            def validation_step(self, batch, number):
                validated.append((number, batch["input_ids"].tolist()))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)

        if callable(loader):
            Module.train_dataloader, loader = lambda module, make=loader: make(), None
        saver = ModelCheckpoint(dirpath=root, filename="saved", every_n_train_steps=save_at)
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=root is not None,
            callbacks=[saver] if root else [],
            **{"max_epochs": -1} | options,
        )
        try:
            trainer.fit(Module(), loader, val, ckpt_path=checkpoint)
            if save_at == 0:
                trainer.save_checkpoint(root / "saved.ckpt")
        finally:
            for each in (*getattr(loader, "flattened", [loader]), val):
                getattr(each, "close", lambda: None)()  # a trainer is garbage for long
    return seen if val is None else validated


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_lightning_takes_the_steps_of_an_epoch_and_resumes_in_its_middle(
    view, text, tmp_path, kind
):
    def make_loader():
        return make(view) if kind == "tokens" else make_text(text)

    expected = fit(make_loader(), 100)
    assert [epoch for epoch, _, _ in expected] == [k // STEPS for k in range(100)]
    for stop in (20, STEPS, STEPS + 30):
        assert fit(make_loader(), stop, save_at=stop, root=tmp_path) == expected[:stop]
        checkpoint = tmp_path / "saved.ckpt"
        assert fit(make_loader(), 100, checkpoint=checkpoint) == expected[stop:]
        checkpoint.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_lightning_goes_on_after_a_checkpoint_of_the_end_of_an_epoch(view, text, tmp_path, kind):
    def make_loader():
        return make(view) if kind == "tokens" else make_text(text)

    expected = fit(make_loader(), max_epochs=3)
    for num_epochs in (1, 2):
        fit(make_loader(), root=tmp_path, max_epochs=num_epochs)
        checkpoint = tmp_path / "saved.ckpt"
        found = fit(make_loader(), checkpoint=checkpoint, max_epochs=3)
        assert found == expected[num_epochs * STEPS :]
        # The state of the checkpoint is for the first epoch after it.
        found = fit(
            make_loader(),
            checkpoint=checkpoint,
            max_epochs=num_epochs + 1,
            reload_dataloaders_every_n_epochs=1,
        )
        assert found == expected[num_epochs * STEPS :][:STEPS]
        checkpoint.unlink()


@pytest.mark.slow
def test_a_checkpoint_of_lightning_with_more_loaders_is_refused(view, tmp_path):
    fit(make(view), root=tmp_path, max_epochs=1)
    path = tmp_path / "saved.ckpt"
    checkpoint = torch.load(path, weights_only=False)
    checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] *= 2
    torch.save(checkpoint, path)
    said = refusal(make(view), checkpoint=path, max_epochs=2)
    assert "the states of 2 loaders, but there are 1 here" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokens", "text"])
@pytest.mark.parametrize("limit", [10, 30, STEPS - 1])
def test_lightning_goes_on_where_it_left_an_epoch(view, text, kind, limit):
    loader = make(view) if kind == "tokens" else make_text(text)
    expected = [*inputs_of(loader), *inputs_of(loader), *inputs_of(loader)][: 3 * limit]
    loader = make(view) if kind == "tokens" else make_text(text)
    found = fit(loader, max_epochs=3, limit_train_batches=limit)
    assert [rows for _, _, rows in found] == expected
    assert [number for _, number, _ in found] == [*range(limit)] * 3


class Lengths:
    """Two loaders of different lengths in Lightning's combinations of loaders."""

    def __init__(self, view):
        self.views = {"long": view.take(11 * ROWS), "short": view.slice(20 * ROWS, 27 * ROWS)}

    def loaders(self, mode):
        from lightning.pytorch.utilities import CombinedLoader

        return CombinedLoader({name: make(view) for name, view in self.views.items()}, mode)

    def steps(self, name, count):
        """The first steps of a loader alone, through its epochs."""
        loader, steps = make(self.views[name]), []
        while len(steps) < count:
            steps += inputs_of(loader)
        return steps[:count]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1.0, 5, 9])
@pytest.mark.parametrize("mode", ["min_size", "max_size_cycle", "max_size"])
def test_combined_loaders_of_lightning_lose_no_rows_and_resume_exactly(view, tmp_path, mode, limit):
    both = Lengths(view)
    expected = fit(both.loaders(mode), 30, limit_train_batches=limit)
    for name in ("long", "short"):
        rows = [batch[name] for _, _, batch in expected if name in batch]
        assert rows == both.steps(name, len(rows))
    num_long = {"min_size": 7, "max_size_cycle": 11, "max_size": 11}[mode]
    num_steps = num_long if limit == 1.0 else min(num_long, limit)
    assert [number for _, number, _ in expected] == [k % num_steps for k in range(30)]
    for stop in (3, 8, 11, 20):
        path = tmp_path / f"{stop}"
        options = {"limit_train_batches": limit}
        assert fit(both.loaders(mode), stop, save_at=stop, root=path, **options) == expected[:stop]
        resumed = fit(both.loaders(mode), 30, checkpoint=path / "saved.ckpt", **options)
        assert resumed == expected[stop:]


def refusal(*arguments, **options):
    """Why a fit was refused; Lightning may fail while it handles that."""
    with pytest.raises((MillstreamError, RuntimeError)) as caught:
        fit(*arguments, **options)
    error = caught.value
    while not isinstance(error, MillstreamError):
        error = error.__context__
    return str(error)


def test_lightning_would_read_ahead_of_an_endless_loader_which_is_refused(view, text):
    for loader in (make(view, endless=True), make_text(text, endless=True)):
        assert "pass endless=False" in refusal(loader, 10)


@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_every_validation_of_lightning_reads_the_same_rows(view, text, kind):
    def make_loader():
        return make(view) if kind == "tokens" else make_text(text)

    expected = list(enumerate(inputs_of(make_loader())))
    options = {"limit_val_batches": 5, "num_sanity_val_steps": 2}
    found = fit(make(view), 2 * STEPS, val=make_loader(), **options)
    assert found == expected[:2] + expected[:5] + expected[:5]


@pytest.mark.slow
def test_an_epoch_that_was_left_early_does_not_make_the_next_one_shorter(view, tmp_path):
    """A run that max_steps ended is a whole epoch to Lightning: the next one has all its steps."""
    loader = make(view)
    whole = [*inputs_of(loader), *inputs_of(loader)]
    first = fit(make(view), 6, root=tmp_path, save_at=0)
    assert [rows for _, _, rows in first] == whole[:6]
    found = fit(make(view), checkpoint=tmp_path / "saved.ckpt", max_epochs=2)
    assert [rows for _, _, rows in found] == whole[6 : 6 + STEPS]


@pytest.mark.slow
def test_steps_of_another_size_need_max_steps(view, tmp_path):
    checkpoint = tmp_path / "saved.ckpt"
    fit(make(view), 20, save_at=20, root=tmp_path)
    half = [
        *inputs_of(loader := millstream.Loader(view, ROWS // 2, seed=3)),
        *inputs_of(loader),
    ]
    said = refusal(millstream.Loader(view, ROWS // 2, seed=3), checkpoint=checkpoint, max_epochs=2)
    assert "a step had 4 rows and now has 2" in said
    found = fit(millstream.Loader(view, ROWS // 2, seed=3), 100, checkpoint=checkpoint)
    assert [rows for _, _, rows in found] == half[40:120]


@pytest.mark.slow
def test_a_loader_at_its_first_row_is_refused_in_the_middle_of_a_training(view, tmp_path):
    fit(make(view), 20, save_at=20, root=tmp_path)
    path = tmp_path / "saved.ckpt"
    checkpoint = torch.load(path, weights_only=False)
    checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = []
    torch.save(checkpoint, path)
    assert "checkpoint has no state of a loader" in refusal(make(view), 100, checkpoint=path)

    options = {"max_epochs": 2, "reload_dataloaders_every_n_epochs": 1}
    said = refusal(lambda: make(view), **options)
    assert "return the same one, or call loader.set_epoch(self.current_epoch)" in said


def test_what_would_move_or_never_end_in_a_validation_is_refused(view):
    loader = make(view)
    assert "would move the training loader" in refusal(loader, 10, val=loader, val_check_interval=5)
    endless = make(view, endless=True)
    said = refusal(make(view), 10, val=endless, val_check_interval=5, num_sanity_val_steps=0)
    assert "pass a number of batches as limit_val_batches" in said


def test_what_lightning_would_not_resume_or_not_repeat_is_refused(view):
    for wrap in (torch.utils.data.DataLoader, StatefulDataLoader):
        wrapped = wrap(make(view), batch_size=None)
        assert "pass the loader itself to trainer.fit" in refusal(wrapped, 10)
    assert "pass a list of batches" in refusal(make(view), 10, overfit_batches=2)
    assert "use tail='drop' or tail='keep'" in refusal(make(view, tail="wrap"), 10)


def test_a_loader_that_lightning_does_not_read_is_not_its_business(view):
    with make(view, endless=True) as side:
        assert len(fit(make(view), 10, hook=lambda: next(iter(side)))) == 10
