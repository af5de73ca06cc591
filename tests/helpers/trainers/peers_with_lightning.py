"""Lightning's Trainer with any feed."""

import torch

from tests.helpers import peer_runs
from tests.helpers.trainers import peer_feeds

FEEDS = {
    "millstream": peer_feeds.millstream_loader,
    "torch": peer_feeds.torch_loader,
    "torchdata": peer_feeds.torchdata_loader,
    "litdata": peer_feeds.litdata_loader,
    "datasets": peer_feeds.datasets_map_loader,
}


def train(feed, comparison, share, run, record):
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def train_dataloader(self):
            if feed == "datasets-iterable":
                return peer_feeds.datasets_iterable_loader(share, self.current_epoch)
            return FEEDS[feed](share)

        def on_train_epoch_start(self):
            # An iterable dataset shuffles anew only if it is told the epoch.
            if feed == "datasets-iterable":
                self.trainer.train_dataloader.dataset.set_epoch(self.current_epoch)

        def training_step(self, batch, number):
            record.saw(self.current_epoch, self.global_step + 1, batch["input_ids"])
            return (self.weight**2).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    lightning.seed_everything(peer_feeds.SEED)
    saver = ModelCheckpoint(
        run.out, "saved", every_n_train_steps=comparison.saved_at, enable_version_counter=False
    )
    trainer = lightning.Trainer(
        max_epochs=peer_runs.EPOCHS,
        accelerator="cpu",
        devices=run.ranks,
        strategy="ddp" if run.ranks > 1 else "auto",
        plugins=[TorchElasticEnvironment()] if run.ranks > 1 else [],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saver],
    )
    checkpoint = run.out / "saved.ckpt"
    record.called()
    trainer.fit(Module(), ckpt_path=checkpoint if checkpoint.exists() else None)
