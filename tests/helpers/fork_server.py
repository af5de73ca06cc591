"""Processes of a fork server: as real as others, and killed like them, but begun in milliseconds.

The server has imported what they need, and does nothing else. A fork of the test's own process
would inherit locks that its threads hold: those of pytest, and of loaders that earlier tests left.
"""

import multiprocessing

PRELOADED = [
    "accelerate",
    "hypothesis",
    "lightning.fabric",
    "lightning.pytorch",
    "pytest",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torchdata.stateful_dataloader",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "millstream.text.live.pipeline",
    "millstream.text.tokenize.tokenizing",
]


def start(function, *arguments, daemon=False, **options):
    """A process that calls a function of a module, with arguments that can be pickled."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)  # of no effect once the server runs
    process = context.Process(target=function, args=arguments, kwargs=options, daemon=daemon)
    process.start()
    return process
