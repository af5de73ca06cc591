"""The recipes of docs/frameworks.md run, are interrupted, and continue exactly; versions are true."""

import re
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch

import penstock
from tests.helpers.datasets import inputs_of, write_dataset
from tests.helpers.paths import ROOT

PAGE = (ROOT / "docs" / "frameworks.md").read_text()
RECIPES = dict(re.findall(r"^```python\n# recipe: ([^\n]+)\n(.*?)^```", PAGE, re.M | re.S))
STOPPED_AT, ROWS, STEPS = 6, 8, 9
IN_PROCESS = {
    **{"DataLoader": "torch", "StatefulDataLoader": "torchdata", "Lightning": "lightning"},
    **{"Fabric": "lightning", "Accelerate": "accelerate", "Trainer": "transformers", "TRL": "trl"},
}
"""recipes that are run here, and what must be installed for each"""


class StoppedError(Exception):
    pass


class World:
    """What a recipe takes for granted, and the rows that it trains on."""

    def __init__(self, view, path):
        self.view, self.path, self.seen, self.checkpoint = view, path, [], None

    def saw(self, inputs):
        self.seen.append(inputs.tolist())
        if self.checkpoint is None and len(self.seen) > STOPPED_AT:
            raise StoppedError

    def names(self, recipe):
        """The names that the recipe uses without defining them."""
        world = self
        names = {"penstock": penstock, "view": self.view, "checkpoint": self.checkpoint}
        names |= {"out": self.path / "out", "data": self.view.dataset}

        class Model(torch.nn.Linear):
            def forward(self, input_ids, labels=None):
                world.saw(input_ids)
                loss = (self.weight**2).sum()
                return loss if labels is None else {"loss": loss}

        model = Model(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        match recipe:
            case "DataLoader" | "StatefulDataLoader":
                from torchdata.stateful_dataloader import StatefulDataLoader

                names["DataLoader"] = torch.utils.data.DataLoader
                names["StatefulDataLoader"] = StatefulDataLoader
                names["train_step"] = lambda inputs, labels: world.saw(inputs)
            case "Lightning":
                import lightning
                from lightning.pytorch.callbacks import ModelCheckpoint

                class Module(lightning.LightningModule):
                    def __init__(self):
                        super().__init__()
                        self.model = model

                    def training_step(self, batch, number):
                        return self.model(batch["input_ids"])

                    def configure_optimizers(self):
                        return optimizer

                names |= {"lightning": lightning, "ModelCheckpoint": ModelCheckpoint}
                names["module"] = Module()
            case "Fabric":
                from lightning.fabric import Fabric

                fabric = Fabric(accelerator="cpu", devices=1)
                model, optimizer = fabric.setup(model, optimizer)
                names |= {"fabric": fabric, "model": model, "optimizer": optimizer}
            case "Accelerate":
                from accelerate import Accelerator

                names |= {"accelerator": Accelerator(cpu=True)}
                names |= {"model": model, "optimizer": optimizer}
            case "Trainer":
                from transformers import TrainingArguments

                def arguments(*args, **options):
                    return TrainingArguments(*args, report_to="none", use_cpu=True, **options)

                names |= {"model": model, "TrainingArguments": arguments}
            case "TRL":
                from tests.helpers.trainers import with_trl

                llama = with_trl.tiny_model()
                forward = llama.model.forward

                def recorded(input_ids, **others):
                    world.saw(input_ids)
                    return forward(input_ids=input_ids, **others)

                llama.model.forward = recorded
                names |= {"model": llama, "SFTConfig": with_trl.arguments}
                names["tokenizer"] = with_trl.any_tokenizer()
        return names

    def saved(self, names, recipe):
        """Where the recipe has saved, and after how many steps."""
        if "DataLoader" in recipe:
            return names["checkpoint"], STOPPED_AT
        if recipe == "Fabric":
            return "checkpoint.ckpt", STOPPED_AT
        if recipe == "Accelerate":
            return "checkpoint", STOPPED_AT
        pattern = "**/*step=4.ckpt" if recipe == "Lightning" else "out/checkpoint-4"
        (path,) = self.path.glob(pattern)
        return path, 4


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.filterwarnings("ignore")  # of frameworks, as users meet them
@pytest.mark.parametrize("recipe", IN_PROCESS)
def test_a_recipe_that_is_interrupted_continues_exactly(recipe, tmp_path, monkeypatch):
    if find_spec(IN_PROCESS[recipe]) is None:
        pytest.skip(f"{IN_PROCESS[recipe]} is installed by make test-frameworks")
    monkeypatch.chdir(tmp_path)
    data = write_dataset(tmp_path / "data", range(ROWS * STEPS * 10 + 1), cuts=range(9, 700, 9))
    view, code = data.windows(10), RECIPES[recipe]
    if recipe == "TRL":
        view, code = data.packed(10, extras=["position_ids"]), code.replace("2048", "10")
    with penstock.Loader(view, ROWS) as loader:
        expected = inputs_of(loader) + inputs_of(loader)
    world = World(view, tmp_path)
    names = world.names(recipe)
    with pytest.raises(StoppedError):
        exec(code, names)
    assert world.seen == expected[: STOPPED_AT + 1]
    world.checkpoint, done = world.saved(names, recipe)
    world.seen = []
    exec(code, world.names(recipe))
    num_epochs = 1 if "for batch in batches" in code or "for batch in loader" in code else 2
    assert world.seen == expected[done : len(expected) * num_epochs // 2]


def test_every_recipe_is_run():
    from tests.helpers.recipes_elsewhere import ELSEWHERE

    assert set(RECIPES) == {*IN_PROCESS, *ELSEWHERE}


def test_the_page_names_the_versions_that_the_tests_run_with():
    table = re.findall(r"^\|.*?\| (\w[\w-]*) (\d[\w.]*) \|", PAGE, re.M)
    assert len(table) > 6
    pinned = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.M))
    for name, named in table:
        assert named == pinned[name]
        if find_spec(name) is not None:
            assert version(name).partition("+")[0] == named
