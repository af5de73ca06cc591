"""Train the GPT of train_gpt.py with Lightning. The loader is all that Lightning needs.

    python examples/train_lightning.py --out run                     # on all GPUs of the machine
    python examples/train_lightning.py --tiny --steps 20 --out run   # on a CPU too

Start the same command again after a kill: Lightning continues from its newest checkpoint, the
loader with it, in the middle of an epoch too.
"""

import argparse
from typing import Any

import lightning
import torch
from gpt import GPT, TINY, Batch, Shape, count_labels, sum_losses
from lightning.pytorch.callbacks import ModelCheckpoint
from train_gpt import SEED, prepare_data, read_options

import millstream


class Training(lightning.LightningModule):
    """A model, its data and its optimizer."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options
        self.model = GPT(TINY if options.tiny else Shape(), options.seq_len, options.attention)

    def prepare_data(self) -> None:
        """Tokenize, in one process of each machine."""
        prepare_data(self.options)

    def train_dataloader(self) -> millstream.Loader:
        """Make the loader here, where Lightning has started all ranks."""
        data = millstream.open(self.options.data or self.options.out / "data")
        boundaries: Any = "document_ids" if self.options.attention == "flex" else "cu_seqlens"
        view = data.packed(self.options.seq_len, extras=["position_ids", boundaries])
        self.loader = millstream.Loader(view, self.options.batch_size, seed=SEED)
        return self.loader

    def training_step(self, batch: Batch, number: int) -> torch.Tensor:
        """Return the mean loss of a batch."""
        loss = sum_losses(self.model(batch), batch["labels"]) / count_labels([batch])
        step = self.global_step + 1
        if step % self.options.log_every == 0 and self.global_rank == 0:
            # The digest is that of the rows on all ranks.
            print(f"step {step}: loss {loss:.4f}, rows {self.loader.digest()},", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), 6e-4, betas=(0.9, 0.95), weight_decay=0.1)


def train(options: argparse.Namespace) -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    lightning.seed_everything(SEED)
    saver = ModelCheckpoint(
        options.out,
        "{step:07d}",
        every_n_train_steps=options.checkpoint_every,
        save_top_k=1,
        monitor="step",
        mode="max",
    )
    trainer = lightning.Trainer(
        max_steps=options.steps,
        precision="bf16-mixed" if torch.cuda.is_available() else "32-true",
        gradient_clip_val=1.0,
        callbacks=[saver],
        logger=False,
        enable_progress_bar=False,
    )
    newest = max(options.out.glob("*.ckpt"), default=None)
    trainer.fit(Training(options), ckpt_path=newest)


if __name__ == "__main__":
    train(read_options())
