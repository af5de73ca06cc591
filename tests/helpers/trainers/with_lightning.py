"""Lightning's Trainer and Fabric."""

import torch

from tests.helpers.trainer_runs import EPOCHS, SAVE_EVERY


def train(run, loader_options=(), **options):
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch, number):
            run.saw(self.global_step + 1, batch["input_ids"])
            return (self.weight**2).sum()

        def train_dataloader(self):
            return run.loader(**dict(loader_options))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    saver = ModelCheckpoint(
        run.out, "saved", every_n_train_steps=SAVE_EVERY, save_top_k=1, enable_version_counter=False
    )
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=run.ranks,
        strategy="ddp" if run.ranks > 1 else "auto",
        plugins=[TorchElasticEnvironment()] if run.ranks > 1 else [],
        logger=False,
        enable_progress_bar=False,
        callbacks=[saver],
        **options,
    )
    checkpoint = run.out / "saved.ckpt"
    trainer.fit(Module(), ckpt_path=checkpoint if checkpoint.exists() else None)


def train_with_fabric(run):
    from lightning.fabric import Fabric

    fabric = Fabric(
        accelerator="cpu", devices=run.ranks, strategy="ddp" if run.ranks > 1 else "auto"
    )
    fabric.launch()
    model = torch.nn.Linear(1, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = run.loader()
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    for path in sorted(run.out.glob("step-*"))[-1:]:
        fabric.load(path, state)
    step = loader.position // (loader.batch_size * loader.ranks)
    for _ in range(loader.epoch, EPOCHS):
        for batch in loader:
            step += 1
            run.saw(step, batch["input_ids"])
            fabric.backward(model(torch.ones(1)).sum())
            optimizer.step()
            optimizer.zero_grad()
            if step % SAVE_EVERY == 0:
                fabric.save(run.out / f"step-{step:03}", state)
