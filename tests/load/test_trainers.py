"""Real trainers: a wrapped loader resumes exactly, or is refused with the code to write instead."""

import json
import os
import subprocess
import sys
import warnings
from itertools import islice

import numpy as np
import pytest
import torch

import penstock
from penstock.errors import PenstockError, StateError
from tests.helpers.datasets import inputs_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:(This DataLoader will|'set_vital')")
SEQ_LEN, ROWS, STEPS = 8, 4, 43


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    path = tmp_path_factory.mktemp("trainers") / "data"
    with penstock.Writer(path, vocab_size=60_000) as writer:
        writer.append(np.arange(STEPS * ROWS * SEQ_LEN + 10, dtype=np.uint16))
    return penstock.open(path).windows(SEQ_LEN)


def make(view, **options):
    return penstock.Loader(view, ROWS, seed=3, **options)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{number:08}\n" for number in range(STEPS * ROWS + 1)))
    return path


def make_text(text, **options):
    packing = penstock.Packing(policy="flat", add="none")
    return penstock.TextLoader(
        text, "bytes", ROWS, SEQ_LEN, packing, **({"endless": False} | options)
    )


def epochs_of(view, count, **options):
    loader = make(view, **options)
    return [inputs_of(loader) for _ in range(count)]


# StatefulDataLoader


@pytest.mark.process
@pytest.mark.parametrize(("workers", "tail"), [(0, "drop"), (1, "keep"), (2, "drop"), (3, "wrap")])
def test_a_stateful_data_loader_resumes_exactly_at_any_step(view, workers, tail):
    expected = epochs_of(view, 3, tail=tail)

    def wrap():
        return StatefulDataLoader(make(view, tail=tail), batch_size=None, num_workers=workers)

    for stop in (0, 1, 20, STEPS - 2, STEPS - 1, STEPS):
        wrapped = wrap()
        batches = iter(wrapped)
        assert inputs_of(islice(batches, stop)) == expected[0][:stop]
        state = json.loads(json.dumps(wrapped.state_dict()))
        del batches, wrapped
        resumed = wrap()
        resumed.load_state_dict(state)
        assert inputs_of(resumed) == expected[0][stop:]
        assert inputs_of(resumed) == expected[1]


def test_a_text_loader_in_a_stateful_data_loader_resumes_exactly(text):
    loader = make_text(text)
    expected = [inputs_of(loader), inputs_of(loader)]

    def wrap():
        return StatefulDataLoader(make_text(text), batch_size=None)

    for stop in (0, 20, STEPS - 1, STEPS):
        wrapped = wrap()
        assert inputs_of(islice(wrapped, stop)) == expected[0][:stop]
        resumed = wrap()
        resumed.load_state_dict(wrapped.state_dict())
        assert inputs_of(resumed) == expected[0][stop:]
        assert inputs_of(resumed) == expected[1]


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_after_a_whole_epoch_begins_the_next(view, workers):
    expected = epochs_of(view, 3)
    wrapped = StatefulDataLoader(make(view), batch_size=None, num_workers=workers)
    assert [inputs_of(wrapped), inputs_of(wrapped)] == expected[:2]
    state = wrapped.state_dict()
    resumed = StatefulDataLoader(make(view), batch_size=None, num_workers=workers)
    resumed.load_state_dict(state)
    assert inputs_of(resumed) == expected[2]


@pytest.mark.process
def test_an_endless_loader_in_a_stateful_data_loader_goes_on(view):
    expected = inputs_of(islice(make(view, endless=True), 60))

    def wrap():
        return StatefulDataLoader(make(view, endless=True), batch_size=None, num_workers=2)

    wrapped = wrap()
    assert inputs_of(islice(wrapped, 50)) == expected[:50]
    state = wrapped.state_dict()
    resumed = wrap()
    resumed.load_state_dict(state)
    assert inputs_of(islice(resumed, 10)) == expected[50:]


@pytest.mark.process
def test_the_state_of_workers_refuses_another_size_of_steps(view):
    # One worker: torch waits 5 s for each after an error.
    wrapped = StatefulDataLoader(make(view), batch_size=None, num_workers=1)
    inputs_of(islice(wrapped, 5))
    loader = penstock.Loader(view, ROWS, seed=3, rank=0, ranks=2)
    resumed = StatefulDataLoader(loader, batch_size=None, num_workers=1)
    resumed.load_state_dict(wrapped.state_dict())
    with pytest.raises(StateError, match=r"step_size was 4 and is 8;.*num_workers=0"):
        next(iter(resumed))


# Lightning


def fit(
    loader, steps=-1, *, checkpoint=None, save_at=None, root=None, hook=None, val=None, **options
):
    """Rows that a module has seen, by epoch and number of the batch.

    A checkpoint is saved to `root`: at the end of the last epoch, or every `save_at` steps.
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
                seen.append((self.current_epoch, number, batch["input_ids"].tolist()))
                return (self.weight**2).sum()

            def on_train_epoch_start(self):
                if hook is not None:
                    hook()

            def validation_step(self, batch, number):
                validated.append((number, batch["input_ids"].tolist()))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)

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
            trainer.fit(Module(), loader, val, ckpt_path=checkpoint, weights_only=False)
        finally:
            for each in (loader, val):
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
def test_lightning_goes_on_where_it_left_an_epoch(view, text, kind):
    loader = make(view) if kind == "tokens" else make_text(text)
    expected = inputs_of(loader)[:30]
    loader = make(view) if kind == "tokens" else make_text(text)
    assert [rows for _, _, rows in fit(loader, max_epochs=3, limit_train_batches=10)] == expected


def refusal(*arguments, **options):
    """Why a fit was refused; Lightning may fail while it handles that."""
    with pytest.raises((PenstockError, RuntimeError)) as caught:
        fit(*arguments, **options)
    error = caught.value
    while not isinstance(error, PenstockError):
        error = error.__context__
    return str(error)


def test_lightning_would_read_ahead_of_an_endless_loader_which_is_refused(view, text):
    for loader in (make(view, endless=True), make_text(text, endless=True)):
        assert "pass endless=False" in refusal(loader, 10)


@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_every_validation_of_lightning_begins_at_the_start(view, text, kind):
    loader = make(view, shuffle=False) if kind == "tokens" else make_text(text)
    expected = list(enumerate(inputs_of(loader)))
    found = fit(make(view), 2 * STEPS, val=loader, limit_val_batches=5, num_sanity_val_steps=2)
    assert found == expected[:2] + expected[:5] + expected[:5]


def test_what_lightning_would_not_resume_or_not_repeat_is_refused(view):
    wrapped = torch.utils.data.DataLoader(make(view), batch_size=None)
    assert "pass the loader itself to trainer.fit" in refusal(wrapped, 10)
    assert "pass a list of batches" in refusal(make(view), 10, overfit_batches=2)


def test_a_loader_that_lightning_does_not_read_is_not_its_business(view):
    with make(view, endless=True) as side:
        assert len(fit(make(view), 10, hook=lambda: next(iter(side)))) == 10


# Accelerate

ACCELERATE = """
import json
import sys
import torch
from accelerate import Accelerator, DataLoaderConfiguration
import penstock
from penstock.errors import StateError, UsageError

path, *kinds = sys.argv[1:]
found = {}
for kind in kinds:
    loader = penstock.Loader(penstock.open(path).windows(8), 4, seed=3)
    feed = loader
    if kind != "itself":
        workers = 2 if kind == "workers" else 0
        feed = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=workers)
    config = DataLoaderConfiguration(use_stateful_dataloader=kind == "stateful")
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    try:
        found[kind] = [batch["input_ids"].tolist() for batch in accelerator.prepare(feed)]
    except UsageError as error:
        found[kind] = str(error)
with open(f"{path}/found{accelerator.process_index}", "w") as file:
    json.dump(found, file)
"""


def run_accelerate(view, processes, *kinds):
    """What every process got, by the way in which the loader was prepared."""
    directory = view.dataset.shards[0].directory
    program = directory / "program.py"
    program.write_text(ACCELERATE)
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    subprocess.run(
        [sys.executable, *(launch if processes > 1 else []), program, directory, *kinds],
        check=True,
        timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    return [json.loads((directory / f"found{rank}").read_text()) for rank in range(processes)]


@pytest.mark.process
def test_accelerate_would_deal_one_ranks_share_to_all_which_is_refused(view):
    found = run_accelerate(view, 2, "plain", "stateful", "itself")
    for of_rank in found:
        for kind in ("plain", "stateful"):
            assert "rows would be lost. Iterate over the loader itself" in of_rank[kind]
    steps = zip(*(of_rank["itself"] for of_rank in found), strict=True)
    rows = [[row for rows in zip(*step, strict=True) for row in rows] for step in steps]
    assert rows == inputs_of(penstock.Loader(view, 2 * ROWS, seed=3))


@pytest.mark.process
def test_accelerate_reads_ahead_on_one_process_which_is_refused(view):
    (found,) = run_accelerate(view, 1, "plain", "workers")
    for message in found.values():
        assert "reads ahead and distributes" in message
