"""Adapters for training frameworks that cannot iterate over a loader itself, one module each.

    accelerate      prepare(accelerator, loader): moves batches, marks the end, saves with the rest
    transformers    Trainer, and LoaderMixin for your own subclass of it
    trl             SFTTrainer
    torchtitan      a dataloader config for torchtitan's Trainer
    jax             global arrays from the rows of this process
    keras           a PyDataset for model.fit

Plain PyTorch, torch.distributed.checkpoint, DataLoader, StatefulDataLoader, Lightning and Fabric
need none: they take the loader. Each module imports its framework, and nothing else imports it.
docs/frameworks.md has a tested recipe for each.
"""
