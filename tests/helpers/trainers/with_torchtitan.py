"""torchtitan's own Trainer and Validator, with two micro-batches a step of two rows a rank."""

import numpy as np
import torch

from tests.helpers.trainer_runs import EPOCHS, ROWS, SAVE_EVERY, SEQ_LEN, STEPS


def train(run):
    _train(run, infinite=True)


def train_one_epoch(run):
    _train(run, infinite=False)


def _train(run, *, infinite):
    from millstream.integrations.torchtitan import MillstreamDataLoader
    from tests.helpers.trainers import torchtitan_on_cpu

    config = torchtitan_on_cpu.trainer_config()
    path = str(run.data)
    config.dataloader = MillstreamDataLoader.Config(dataset_path=path, seed=3, infinite=infinite)
    config.validator.enable = True
    config.validator.dataloader = MillstreamDataLoader.Config(dataset_path=path)
    config.validator.steps = -1  # to the end of the data, which torchtitan's own may hang at
    config.validator.freq = STEPS
    config.dump_folder = str(run.out)
    config.training.seq_len = SEQ_LEN
    config.training.local_batch_size = max(1, ROWS // run.ranks // 2)
    config.training.global_batch_size = ROWS
    config.training.steps = STEPS * EPOCHS
    config.checkpoint.enable = True
    config.checkpoint.interval = SAVE_EVERY
    trainer = torchtitan_on_cpu.build(config)
    _record(trainer, run)
    validated = _count_validated_batches(trainer)
    trainer.train()
    trainer.close()
    rows = config.training.local_batch_size * run.ranks
    assert validated == [len(run.view()) // rows] * len(validated)
    assert validated
    torch.distributed.destroy_process_group()


def _record(trainer, run):
    """Tell the run of each step when its last micro-batch is on the way to the model."""
    process, step = trainer.post_dataloading_process, []

    def recorded(input_dict, labels):
        inputs = input_dict["input"].numpy()
        assert (labels.numpy() == inputs + 1).all()  # next tokens: the data counts up
        assert (input_dict["positions"].numpy() == np.arange(SEQ_LEN)).all()
        step.append(inputs)
        if len(step) == trainer.gradient_accumulation_steps:
            run.saw(trainer.step, np.concatenate(step))
            step.clear()
        return process(input_dict, labels)

    trainer.post_dataloading_process = recorded


def _count_validated_batches(trainer):
    """A list that gets the number of batches of each validation."""
    counts = []
    validate, process = trainer.validator.validate, trainer.validator.post_dataloading_process

    def begin(*arguments):
        counts.append(0)
        return validate(*arguments)

    def count(*arguments):
        counts[-1] += 1
        return process(*arguments)

    trainer.validator.validate, trainer.validator.post_dataloading_process = begin, count
    return counts
