"""The recipes of docs/frameworks.md, run by a process that is killed, and by one that continues."""

import json
import multiprocessing
import os
import re
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

import millstream
from tests.helpers.datasets import write_dataset
from tests.helpers.paths import ROOT
from tests.helpers.trainer_runs import HeldPort

PAGE = (ROOT / "docs" / "frameworks.md").read_text()
RECIPES = dict(re.findall(r"^```python\n# recipe: ([^\n]+)\n(.*?)^```", PAGE, re.M | re.S))
KILLED_AT, ROWS, STEPS, SEQ_LEN = 7, 8, 9, 10


class World:
    """What recipes take for granted. Its methods return what each of them uses beside that."""

    def __init__(self, path):
        self.path = path
        self.data = millstream.open(path / "data")
        self.view = self.data.windows(SEQ_LEN)
        self.is_first = not (path / "seen.jsonl").exists()
        self.num_seen = 0

    def saw(self, inputs):
        """Record a step, and die in one."""
        self.num_seen += 1
        with (self.path / "seen.jsonl").open("a") as file:
            file.write(json.dumps([self.is_first, torch.as_tensor(inputs).tolist()]) + "\n")
        if self.is_first and self.num_seen == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    def newest(self, pattern):
        return max(self.path.glob(pattern), default=None)

    def model(self):
        world = self

        class Model(torch.nn.Linear):
            def forward(self, input_ids, labels=None):
                world.saw(input_ids)
                loss = (self.weight**2).sum()
                return loss if labels is None else {"loss": loss}

        return Model(1, 1)

    def model_and_optimizer(self):
        model = self.model()
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}

    def data_loader(self):
        from torch.utils.data import DataLoader

        return {"DataLoader": DataLoader} | self._own_loop()

    def stateful_data_loader(self):
        from torchdata.stateful_dataloader import StatefulDataLoader

        return {"StatefulDataLoader": StatefulDataLoader} | self._own_loop()

    def _own_loop(self):
        return {
            "torch": torch,
            "checkpoint": self.newest("checkpoint.pt"),
            "train_step": lambda inputs, labels: self.saw(inputs),
        }

    def lightning(self):
        import lightning
        from lightning.pytorch.callbacks import ModelCheckpoint

        parts = self.model_and_optimizer()

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = parts["model"]

            def training_step(self, batch, number):
                return self.model(batch["input_ids"])

            def configure_optimizers(self):
                return parts["optimizer"]

        return {
            "lightning": lightning,
            "ModelCheckpoint": ModelCheckpoint,
            "module": Module(),
            "checkpoint": self.newest("**/*.ckpt"),
        }

    def fabric(self):
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=1)
        model, optimizer = fabric.setup(*self.model_and_optimizer().values())
        checkpoint = self.newest("checkpoint.ckpt")
        return {
            "fabric": fabric,
            "model": model,
            "optimizer": optimizer,
            "checkpoint": checkpoint,
        }

    def accelerate(self):
        from accelerate import Accelerator

        checkpoint = self.newest("checkpoint")
        parts = self.model_and_optimizer()
        return {"accelerator": Accelerator(cpu=True), "checkpoint": checkpoint} | parts

    def trainer(self):
        from transformers import TrainingArguments

        def arguments(*args, **options):
            return TrainingArguments(*args, report_to="none", use_cpu=True, **options)

        return {
            "model": self.model(),
            "TrainingArguments": arguments,
            "checkpoint": self.newest("out/checkpoint-*"),
        }

    def trl(self):
        from tests.helpers.trainers import with_trl

        model = with_trl.tiny_model()
        forward = model.model.forward

        def recorded(input_ids, **others):
            self.saw(input_ids)
            return forward(input_ids=input_ids, **others)

        model.model.forward = recorded
        return {
            "model": model,
            "SFTConfig": with_trl.arguments,
            "tokenizer": with_trl.any_tokenizer(),
            "checkpoint": self.newest("out/checkpoint-*"),
        }

    def distributed_checkpoint(self):
        import torch.distributed.checkpoint as dcp

        complete = self.newest("step-*/.metadata")
        own = {"dcp": dcp, "checkpoint": None if complete is None else complete.parent}
        return self._own_loop() | self.model_and_optimizer() | own

    def deepspeed(self):
        from tests.helpers.trainers.with_deepspeed import import_on_cpu

        deepspeed = import_on_cpu()

        world = self

        class Model(torch.nn.Linear):
            def forward(self, input_ids, labels):
                world.saw(input_ids)
                return (self.weight**2).sum()

        model = Model(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        self._port = HeldPort()
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port.number)}
        config = {"train_batch_size": ROWS, "train_micro_batch_size_per_gpu": ROWS}
        return {
            "deepspeed": deepspeed,
            "model": model,
            "optimizer": optimizer,
            "config": config,
            "num_epochs": 2,
            "save_every": 2,
        }


USES = {
    "DataLoader": ("torch", World.data_loader),
    "StatefulDataLoader": ("torchdata", World.stateful_data_loader),
    "Lightning": ("lightning", World.lightning),
    "Fabric": ("lightning", World.fabric),
    "Accelerate": ("accelerate", World.accelerate),
    "Trainer": ("transformers", World.trainer),
    "TRL": ("trl", World.trl),
    "torch.distributed.checkpoint": ("torch", World.distributed_checkpoint),
    "DeepSpeed": ("deepspeed", World.deepspeed),
}
"""by recipe, what has to be installed, and the method of `World` that prepares it"""


def can_run(recipe):
    return find_spec(USES[recipe][0]) is not None


def write_data(path):
    tokens = range(ROWS * STEPS * SEQ_LEN + 1)
    return write_dataset(path / "data", tokens, cuts=range(9, len(tokens), 9))


def expected_steps(data, recipe):
    """The steps of two epochs, by a loader alone."""
    view = data.packed(SEQ_LEN) if recipe == "TRL" else data.windows(SEQ_LEN)
    with millstream.Loader(view, ROWS) as loader:
        return [batch["input_ids"].tolist() for _ in range(2) for batch in loader]


def run(recipe, path):
    """Run a recipe, in a process of its own."""
    os.chdir(path)
    multiprocessing.set_start_method("fork", force=True)  # as in a process of the user's
    with Path("log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    world = World(path)
    names = {"millstream": millstream, "data": world.data, "view": world.view, "out": path / "out"}
    code = RECIPES[recipe].replace("2048", str(SEQ_LEN))
    exec(code, names | USES[recipe][1](world))
    sys.stdout.flush()


def seen_steps(path):
    """The steps of the process that was killed, and of the one that continued."""
    lines = [json.loads(line) for line in (path / "seen.jsonl").read_text().splitlines()]
    return [[rows for is_first, rows in lines if is_first == of] for of in (True, False)]
