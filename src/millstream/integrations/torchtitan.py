"""torchtitan: a dataloader config for its Trainer and its Validator.

    config.dataloader = MillstreamDataLoader.Config(dataset_path="data/fineweb")

torchtitan trains for a number of steps, so the loader is endless unless `infinite` is False. Its
state is the same on every rank and continues exactly on any data-parallel degree. torchtitan's own
dataloaders refuse another degree.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, Literal, get_args

import torch
import tyro
from torchtitan.components.dataloader import BaseDataLoader

from millstream.arguments import one_of
from millstream.errors import UsageError
from millstream.load.loader import Loader
from millstream.mixing.mixture import Mixture
from millstream.opening import open
from millstream.views.view import View

_LEFT_OUT = frozenset({"attention_mask", "cu_seqlens", "document_ids", "max_seqlen", "source_ids"})
"""torchtitan computes masks from positions, and its models take no such arguments"""
_SET_BY_TORCHTITAN = {
    "batch_size": "training.local_batch_size",
    "rank": "the data-parallel mesh",
    "ranks": "the data-parallel mesh",
    "parallel": "the data-parallel mesh",
    "global_batch_size": "training.global_batch_size",
    "endless": "infinite of this config",
    "seed": "seed of this config",
    "output": "the Trainer, which takes tensors",
}

Rows = Literal["windows", "packed", "documents"]
TitanBatch = tuple[dict[str, Any], torch.Tensor]


class MillstreamDataLoader(BaseDataLoader):  # type: ignore[misc] # torchtitan has no types
    """Batches `({"input": …, "positions": …}, labels)` of one data-parallel rank.

    Other fields of the records go into the first dict too, and so to the model, under their names.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """What to load. torchtitan's config sets the batch size, the row length and the ranks."""

        dataset_path: str | None = None
        """The dataset: any path, glob or URL that `millstream.open` takes."""

        rows: Rows = "windows"
        """How the dataset becomes rows of training.seq_len tokens."""

        view: Annotated[Callable[[int], View | Mixture] | None, tyro.conf.Suppress] = None
        """Instead of both, a function that makes a view or a mixture with rows of that length."""

        seed: int = 0
        """Decides the shuffle. Leave it out for a mixture, which has its own."""

        infinite: bool = True
        """Start the next epoch at the end of one; False stops after the first."""

        options: Annotated[Mapping[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
        """Other arguments of `millstream.Loader`, such as shuffle or threads."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **unused: Any,
    ) -> None:
        for name in _SET_BY_TORCHTITAN.keys() & config.options.keys():
            raise UsageError(
                f"leave {name!r} out of options: it comes from {_SET_BY_TORCHTITAN[name]}"
            )
        self.loader = Loader(
            _make_view(config, seq_len),
            local_batch_size,
            seed=config.seed,
            rank=dp_rank,
            ranks=dp_world_size,
            # An epoch that drops a rest would end elsewhere on another data-parallel degree.
            endless=config.infinite,
            **config.options,
        )

    def __iter__(self) -> Iterator[TitanBatch]:
        """Iterate over what is left: without end, or up to the end of the first epoch."""
        batches = iter(self.loader)
        if not self.loader.endless:
            batches = islice(batches, self._num_left_of_first_epoch())
        return map(_as_torchtitan, batches)

    def _num_left_of_first_epoch(self) -> int:
        # At its end the loader is in the next epoch, which a resumed run must not read.
        return 0 if self.loader.epoch else self.loader.remaining

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state, the same on every rank.

        It is one text, as a checkpoint loads only keys that both loaders have, and a changed
        mixture has others.
        """
        return {"millstream": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where the state was saved, on any data-parallel degree."""
        self.loader.load_state_dict(json.loads(state_dict["millstream"]))


def _make_view(config: MillstreamDataLoader.Config, seq_len: int) -> View | Mixture:
    if config.dataset:
        raise UsageError(
            f"dataset is {config.dataset!r:.60}, a name of torchtitan's own loaders; pass the path "
            "as dataset_path"
        )
    if config.dataset_path is not None and config.view is None:
        one_of("rows", config.rows, get_args(Rows))
        data = open(config.dataset_path)
        stored: View = getattr(data, config.rows)(seq_len, extras=["position_ids"])
        return stored
    if config.dataset_path is not None or config.view is None:
        raise UsageError(
            "pass either dataset_path, or view with a function such as "
            "lambda seq_len: data.packed(seq_len)"
        )
    view = config.view(seq_len)
    if not isinstance(view, View | Mixture):
        raise UsageError(f"view must return a view or a mixture, not {view!r:.60}")
    if any("position_ids" not in source.extras for source in view.sources):
        raise UsageError(
            "torchtitan's attention needs positions, to keep documents apart; add "
            'extras=["position_ids"] to the view'
        )
    if view.seq_len != seq_len:
        raise UsageError(
            f"the view has rows of {view.seq_len:,} tokens, but training.seq_len is {seq_len:,}"
        )
    return view


def _as_torchtitan(batch: dict[str, Any]) -> TitanBatch:
    # Rotary embeddings index with positions, which takes int64.
    inputs = {"input": batch.pop("input_ids"), "positions": batch.pop("position_ids").long()}
    labels = batch.pop("labels")
    return inputs | {name: batch[name] for name in batch if name not in _LEFT_OUT}, labels
