"""Hugging Face's Trainer with any feed."""

import torch

from tests.helpers import peer_runs
from tests.helpers.trainers import peer_feeds

DATASETS = {
    "millstream": peer_feeds.millstream_loader,
    "torch": peer_feeds.rows,
    "litdata": peer_feeds.litdata_dataset,
    "datasets": peer_feeds.datasets_map,
    "datasets-iterable": peer_feeds.datasets_iterable,
}


def train(feed, comparison, share, run, record):
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids, labels=None):
            record.saw(epochs.current, trainer.state.global_step + 1, input_ids)
            return {"loss": (self.weight**2).sum()}

    class Epochs(transformers.TrainerCallback):
        """Counts epochs as the Trainer does: without a length, all steps are one epoch to it."""

        current = None

        def on_epoch_begin(self, args, state, control, **kwargs):
            first = 0 if args.max_steps > 0 else state.global_step // comparison.steps
            self.current = first if self.current is None else self.current + 1

    args = transformers.TrainingArguments(
        output_dir=str(run.out),
        per_device_train_batch_size=share.batch_size,
        num_train_epochs=peer_runs.EPOCHS,
        # An iterable dataset has no length, so the Trainer needs the number of steps.
        max_steps=peer_runs.EPOCHS * comparison.steps if feed == "datasets-iterable" else -1,
        save_steps=comparison.saved_at,
        dataloader_num_workers=share.workers,
        dataloader_drop_last=True,
        seed=peer_feeds.SEED,
        use_cpu=True,
        optim="sgd",
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
    )
    epochs = Epochs()
    trainer = _make_trainer(feed, share, model=Model(), args=args, callbacks=[epochs])
    checkpoint = run.out / f"checkpoint-{comparison.saved_at}"
    record.called()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint.exists() else None)


def _make_trainer(feed, share, **options):
    import transformers

    class WithOwnLoader(transformers.Trainer):
        def get_train_dataloader(self):
            return peer_feeds.litdata_loader(share)

    if feed == "millstream":
        from millstream.integrations.transformers import Trainer
    elif feed == "litdata" and share.ranks > 1:
        # The Trainer would let one process read for all, and litdata gives it only its own share.
        Trainer = WithOwnLoader  # noqa: N806
    else:
        from transformers import Trainer
    if feed == "litdata":
        options["data_collator"] = peer_feeds.as_inputs
    return Trainer(train_dataset=DATASETS[feed](share), **options)
