"""torch.distributed.checkpoint with a model under FSDP2, saved at once or in the background."""

import threading

import torch
import torch.distributed as dist

from tests.helpers.trainer_runs import EPOCHS, SAVE_EVERY


def train(run):
    _train(run, lambda loader: loader, _Saving)


def train_while_saving(run):
    """Each checkpoint is written when the loader has moved on."""
    _train(run, lambda loader: loader, _LateSaving)


def train_with_stateful_data_loader(run):
    from torchdata.stateful_dataloader import StatefulDataLoader

    _train(run, lambda loader: StatefulDataLoader(loader, batch_size=None), _Saving)


def _train(run, wrap, saving):
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (run.ranks,), mesh_dim_names=("dp",))
    model = torch.nn.Linear(4, 4)
    if run.ranks > 1:
        fully_shard(model, mesh=mesh)
    loader = wrap(run.loader())
    counter = _Counter()
    state = {"model": model, "loader": loader, "counter": counter}
    for path in _complete(run.out)[-1:]:
        load(state, checkpoint_id=path)
    saving = saving(state)
    while counter.epoch < EPOCHS:
        for batch in loader:
            counter.step += 1
            run.saw(counter.step, batch["input_ids"])
            model(torch.ones(1, 4)).sum().backward()
            saving.move_on()
            if counter.step % SAVE_EVERY == 0:
                saving.begin(run.out / f"step-{counter.step:03d}")
        counter.epoch += 1
    saving.move_on()
    dist.barrier()
    dist.destroy_process_group()


def _complete(out):
    """The checkpoints that have their `.metadata`, which is written last."""
    return sorted(path.parent for path in out.glob("step-*/.metadata"))


class _Counter:
    def __init__(self):
        self.step = self.epoch = 0

    def state_dict(self):
        return {"step": self.step, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.step, self.epoch = state["step"], state["epoch"]


class _Saving:
    def __init__(self, state):
        self.state = state

    def begin(self, path):
        from torch.distributed.checkpoint.state_dict_saver import save

        save(self.state, checkpoint_id=path)

    def move_on(self):
        pass


class _LateSaving(_Saving):
    def __init__(self, state):
        super().__init__(state)
        self.pending = None
        # The thread that saves must not share a group with the backward passes.
        self.group = dist.new_group(backend="gloo")

    def begin(self, path):
        from torch.distributed.checkpoint import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        class LateWriter(FileSystemWriter):
            def write_data(self, *arguments):
                assert has_moved_on.wait(60)
                return super().write_data(*arguments)

        has_moved_on = self.has_moved_on = threading.Event()
        self.pending = async_save(
            self.state, storage_writer=LateWriter(path), process_group=self.group
        )

    def move_on(self):
        """Write the checkpoint of the last step."""
        if self.pending is not None:
            self.has_moved_on.set()
            self.pending.result()
            self.pending = None
