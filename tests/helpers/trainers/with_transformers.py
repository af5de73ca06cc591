"""Hugging Face's Trainer."""

import torch

from tests.helpers.trainer_runs import EPOCHS, SAVE_EVERY


class Model(torch.nn.Module):
    """Tells a function of every batch, by the step that it belongs to."""

    def __init__(self, saw):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.saw, self.trainer = saw, None

    def forward(self, input_ids, labels):
        step = self.trainer.state.global_step + 1
        self.saw(step if self.training else None, input_ids)
        return {"loss": (self.weight**2).sum()}


def make_trainer(loader, out, saw, **options):
    from transformers import TrainingArguments

    from millstream.integrations.transformers import Trainer

    evaluated = options.pop("eval_dataset", None)
    args = TrainingArguments(
        out,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **{"per_device_train_batch_size": loader.batch_size, "save_strategy": "no"} | options,
    )
    model = Model(saw)
    model.trainer = Trainer(model, args, train_dataset=loader, eval_dataset=evaluated)
    return model.trainer


def train(run, **options):
    from transformers.trainer_utils import get_last_checkpoint

    out = run.out / "checkpoints"
    out.mkdir(exist_ok=True)
    options = {"num_train_epochs": EPOCHS, "save_strategy": "steps", "save_steps": SAVE_EVERY}
    trainer = make_trainer(run.loader(), out, run.saw, **options)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(out))
