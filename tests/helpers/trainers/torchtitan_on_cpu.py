"""torchtitan's Trainer without an accelerator: what of it asks for one is replaced here.

Import `trainer_config` only in a process of its own: torchtitan decides about devices when it is
imported.
"""

import sys
from dataclasses import dataclass
from unittest.mock import MagicMock

import torch

# Triton kernels of one kind of expert parallelism, which every model imports.
sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = MagicMock()
torch._utils._get_available_device_type = lambda: "cpu"
torch.set_num_threads(1)  # a fork of the server ignores OMP_NUM_THREADS

import torchtitan.components.metrics as metrics  # noqa: E402
import torchtitan.distributed.utils as distributed  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.common.attention import (  # noqa: E402
    FlexAttention,
    ScaledDotProductAttention,
)
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402


class _Memory:
    """Of a device that has none of its own."""

    device_name = "cpu"

    def get_peak_stats(self):
        return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)

    def reset_peak_stats(self):
        pass


metrics.build_device_memory_monitor = _Memory
distributed.set_pg_timeouts = lambda **options: None  # a barrier that names a CUDA device


class _NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path):
        super().__init__()

    def encode(self, *arguments, **options):
        raise AssertionError("tokens are stored")

    decode = get_vocab_size = encode


def trainer_config():
    """The config of torchtitan's smallest model, with one layer and attention that CPUs have."""
    config = llama3_debugmodel()
    model = config.model_spec.model
    model.layers = model.layers[:1]
    for _, _, parent, name in list(model.traverse(FlexAttention.Config)):
        setattr(parent, name, ScaledDotProductAttention.Config())
    config.tokenizer = _NoTokenizer.Config()
    config.training.disable_cuda_graphs = True
    config.training.mixed_precision_param = "float32"
    config.parallelism.spmd_backend = "partial_dtensor"  # the default needs a newer torch
    return config


def build(config):
    """The Trainer of a config."""
    trainer = config.build()
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):  # else it would sum by an operation that gloo lacks
            module.set_force_sum_reduction_for_comms(True)
    return trainer
