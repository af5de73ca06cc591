"""Train a Llama of Hugging Face with its Trainer, on packed rows.

    torchrun --nproc-per-node 8 examples/train_transformers.py --out run
    python examples/train_transformers.py --tiny --steps 20 --out run  # on a CPU too

Start the same command again after a kill: Trainer continues from its newest checkpoint, and the
loader with it.
"""

import argparse
from typing import Any

import torch
from train_gpt import SEED, prepare_data, read_options
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import millstream
from millstream.integrations.transformers import Trainer


class Log(TrainerCallback):
    """Prints the digest of each step's rows, on all ranks together."""

    def __init__(self, loader: millstream.Loader) -> None:
        self.loader = loader

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Print a line about the last step."""
        if state.is_world_process_zero and "loss" in logs:
            step, loss = state.global_step, logs["loss"]
            print(f"step {step}: loss {loss:.4f}, rows {self.loader.digest()},", flush=True)


def train(options: argparse.Namespace) -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    args = TrainingArguments(
        str(options.out),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        learning_rate=6e-4,
        bf16=torch.cuda.is_available(),
        save_steps=options.checkpoint_every,
        save_total_limit=2,
        logging_steps=options.log_every,
        disable_tqdm=True,
        report_to="none",
        seed=SEED,
    )
    with args.main_process_first():
        prepare_data(options)
    data = millstream.open(options.data or options.out / "data")
    view = data.packed(options.seq_len, extras=["position_ids", "cu_seqlens"])
    loader = millstream.Loader(view, options.batch_size, seed=SEED)
    config = LlamaConfig(
        vocab_size=50_304, hidden_size=768, intermediate_size=2048, use_cache=False
    )
    if options.tiny:
        config = LlamaConfig(
            vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2
        )
    trainer = Trainer(LlamaForCausalLM(config), args, train_dataset=loader)
    trainer.add_callback(Log(loader))
    newest: str | None = get_last_checkpoint(str(options.out))  # type: ignore[no-untyped-call]
    trainer.train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    torch.manual_seed(SEED)
    train(read_options())
