"""TRL's SFTTrainer with a loader as its dataset.

    from millstream.integrations.trl import SFTTrainer

    view = data.packed(2048, extras=["position_ids"])
    trainer = SFTTrainer(model=model, args=args, train_dataset=millstream.Loader(view, 8))

Rows are packed by the view and masked by the dataset's `loss_mask`, once, before training; TRL's
own preparation has nothing left to do.
"""

from typing import Any

import trl
from datasets import Dataset

from millstream.errors import UsageError
from millstream.integrations.transformers import Trainer
from millstream.load.base_loader import BaseLoader, BatchDict

_DONE_BY_VIEWS = {
    "packing": "use data.packed(…)",
    "padding_free": "use data.packed(…)",
    "assistant_only_loss": "store a loss_mask with the tokens",
    "completion_only_loss": "store a loss_mask with the tokens",
}
"""options of SFTConfig that would have no effect on a loader's rows, and what to do instead"""


class SFTTrainer(Trainer, trl.SFTTrainer):  # type: ignore[misc]
    """`trl.SFTTrainer` whose `train_dataset` and `eval_dataset` may be loaders."""

    def __init__(
        self,
        model: Any,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        is_loader = isinstance(train_dataset, BaseLoader)
        if is_loader:
            _check_options(args)
        evaluated = eval_dataset.values() if isinstance(eval_dataset, dict) else [eval_dataset]
        evaluates_loaders = any(isinstance(each, BaseLoader) for each in evaluated)
        super().__init__(
            model,
            args,
            data_collator,
            train_dataset=_stand_in() if is_loader else train_dataset,
            eval_dataset=_stand_in() if evaluates_loaders else eval_dataset,
            **kwargs,
        )
        if is_loader:
            self._find_loader(train_dataset, is_training=True)
            self.train_dataset = train_dataset
        if evaluates_loaders:
            self.eval_dataset = eval_dataset

    def _for_model(self, batches: list[BatchDict]) -> BatchDict:
        batch = super()._for_model(batches)
        if not {"position_ids", "attention_mask"} & set(batch):
            raise UsageError(
                "SFTTrainer counts tokens by position_ids or attention_mask; add 'position_ids' to "
                "the extras of the view"
            )
        return batch


def _check_options(args: Any) -> None:
    """Raise if options ask for what has no effect."""
    for name, instead in _DONE_BY_VIEWS.items():
        if getattr(args, name, None):
            raise UsageError(f"{name} has no effect on the rows of a loader; {instead}")


def _stand_in() -> Dataset:
    """A dataset for SFTTrainer to check and prepare, as it takes no other kind."""
    return Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
