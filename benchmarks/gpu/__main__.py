"""The topics that need a CUDA device: `python -m benchmarks.gpu`."""

import sys

import torch

from benchmarks import command
from benchmarks.command import Topics
from benchmarks.gpu import feed, steps

TOPICS: Topics = {
    "short-step": steps.measure_short,
    "model": steps.measure_model,
    "feed": feed.measure_rates,
    "next": feed.measure_next,
}

if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("these benchmarks need a CUDA device, and torch finds none")
    device = torch.cuda.get_device_name(0)
    facts = {"device": device, "CUDA": str(torch.version.cuda)}
    command.run("python -m benchmarks.gpu", TOPICS, facts, device.lower().replace(" ", "-"))
