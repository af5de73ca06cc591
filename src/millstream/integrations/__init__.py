"""Adapters for training frameworks that cannot iterate over a loader itself, one module each.

    accelerate      prepare(accelerator, loader): moves batches, marks the end, saves with the rest
    transformers    Trainer, whose train_dataset may be a loader
    trl             SFTTrainer, the same
    torchtitan      MillstreamDataLoader.Config for torchtitan's config
    jax             global_batches(loader, sharding): arrays that span all processes
    keras           Backup: batches for model.fit, and the callback that saves and restores

Plain PyTorch, torch.distributed.checkpoint, DataLoader, StatefulDataLoader, Lightning, Fabric and
DeepSpeed need none: they take the loader. Each module imports its framework, and nothing else
imports it. docs/frameworks.md has a tested recipe for each.
"""
