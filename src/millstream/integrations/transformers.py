"""Hugging Face's Trainer with a loader as its dataset.

    from millstream.integrations.transformers import Trainer

    trainer = Trainer(model=model, args=args, train_dataset=loader)
    trainer.train(resume_from_checkpoint=True)

Trainer batches, shuffles and distributes a dataset itself, and resumes by skipping batches. A
loader has done all of that, so Trainer gets a DataLoader that passes its batches on (`passed_on`).
The loader's state is saved in `trainer_state.json`.
"""

import inspect
from collections.abc import Set
from typing import Any, cast

import torch
import transformers
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as Arguments
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

from millstream.dataset import Dataset as TokenDataset
from millstream.errors import StateError, UsageError
from millstream.integrations.checks import check_batch, check_columns, check_loader
from millstream.integrations.passed_on import PassedOnBatches, Turns
from millstream.load.base_loader import BaseLoader, BatchDict
from millstream.load.staged_loader import StagedLoader
from millstream.load.state import State
from millstream.mixing.mixture import Mixture
from millstream.views.view import View

_KEY = "millstream.Loader"
"""the key of the loader's state among the states of Trainer's callbacks"""


class Trainer(transformers.Trainer):
    """`transformers.Trainer` whose `train_dataset` and `eval_dataset` may be loaders.

    For any other subclass of Trainer, let your class inherit from both, from this one first:

        class MyTrainer(millstream.integrations.transformers.Trainer, Seq2SeqTrainer): ...
    """

    model_shifts_labels: bool | None = None
    """whether the model shifts labels itself; None to find out, or raise if that is impossible"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._eval_starts = dict[BaseLoader, State]()
        self._find_loader(self.train_dataset, is_training=True)
        self.add_callback(_KeepState(self))

    def _find_loader(self, dataset: Any, *, is_training: bool) -> BaseLoader | None:
        """Return the dataset if it is a loader that Trainer can use; None for any other dataset."""
        if isinstance(dataset, TokenDataset | View | Mixture | StagedLoader):
            raise UsageError(
                f"Trainer takes millstream.Loader(view, batch_size), not {dataset!r:.80}"
            )
        if not isinstance(dataset, BaseLoader):
            return None
        check_loader(dataset, "Trainer", "TrainingArguments(gradient_accumulation_steps=…)")
        check_columns(dataset, "Trainer")
        if is_training:
            _check_training(dataset, self.args)
        else:
            _check_evaluation(dataset, self.args)
        return dataset

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Pass on the loader's batches; any other dataset is Trainer's own business."""
        loader = self._find_loader(self.train_dataset, is_training=True)
        return super().get_train_dataloader() if loader is None else self._pass_on(loader)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Pass on the batches of one epoch, the same in every evaluation."""
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = cast("dict[str, Any]", self.eval_dataset)[dataset]
        loader = self._find_loader(dataset, is_training=False)
        return super().get_eval_dataloader(eval_dataset) if loader is None else self._again(loader)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Do the same for `predict`."""
        loader = self._find_loader(test_dataset, is_training=False)
        return super().get_test_dataloader(test_dataset) if loader is None else self._again(loader)

    def _again(self, loader: BaseLoader) -> DataLoader[Any]:
        """Pass on the batches that the first evaluation of this loader had."""
        if loader is self.train_dataset:
            raise UsageError(
                "an evaluation would move the training loader; pass a loader of its own"
            )
        return self._pass_on(loader, self._eval_starts.setdefault(loader, loader.state_dict()))

    def _pass_on(self, loader: BaseLoader, start: State | None = None) -> DataLoader[Any]:
        batches = PassedOnBatches(loader, start)
        return DataLoader(batches, batch_sampler=Turns(batches), collate_fn=self._for_model)

    def _for_model(self, batches: list[BatchDict]) -> BatchDict:
        """Return a batch as the model takes it."""
        (batch,) = batches
        check_batch(batch, "Trainer")
        model = _unwrapped(self.model)
        taken = dict(batch)
        if self.args.remove_unused_columns:
            names = _argument_names(model)
            taken = batch if names is None else {k: v for k, v in batch.items() if k in names}
        if isinstance(model, PreTrainedModel):
            taken |= _bounds(batch, model)
        if self._shifts_labels(model):
            taken["labels"] = unshifted(batch["labels"])
        return taken

    def _shifts_labels(self, model: torch.nn.Module) -> bool:
        if self.model_shifts_labels is not None:
            return self.model_shifts_labels
        if _is_shifting(model):
            return True
        if any(_is_shifting(part) is not False for part in model.modules()):
            raise UsageError(
                f"cannot tell whether {type(model).__name__} shifts labels, as causal models of "
                "transformers do. Set trainer.model_shifts_labels = True if yours does, or passes "
                "the labels on to a model that does; False if it compares each label with the "
                "logits at the same place"
            )
        return False


def _unwrapped(model: Any) -> Any:
    """Return the model inside of PEFT, torch.compile and DataParallel."""
    for name in ("_orig_mod", "module"):
        model = getattr(model, name, model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _argument_names(model: torch.nn.Module) -> Set[str] | None:
    """Return the names that `forward` takes; None if it takes any."""
    parameters = inspect.signature(type(model).forward).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    # Models of transformers hand other arguments down to where they fail, or have no effect.
    return None if takes_any and not isinstance(model, PreTrainedModel) else parameters.keys()


def _is_shifting(model: torch.nn.Module) -> bool | None:
    """Return whether the model shifts the labels that it gets; None if its code does not tell."""
    if not isinstance(model, PreTrainedModel) or not _takes_labels(type(model)):
        return False
    # `loss_type` alone does not tell: it is None for GPT2LMHeadModel, which shifts, and
    # "ForCausalLM" for BartForCausalLM, which has a loss of its own and does not.
    if model.loss_function not in LOSS_MAPPING.values():
        return None
    if model.loss_function is not ForCausalLMLoss:
        return False
    forward = inspect.unwrap(type(model).forward)
    return True if "loss_function" in forward.__code__.co_names else None


def _takes_labels(model_class: type) -> bool:
    """Return whether `forward` takes labels; one that takes anything may pass them to a base."""
    forwards = [vars(each)["forward"] for each in model_class.__mro__ if "forward" in vars(each)]
    return any("labels" in inspect.signature(each).parameters for each in forwards)


def _bounds(batch: BatchDict, model: PreTrainedModel) -> BatchDict:
    """Return where documents begin, by the names that flash attention in transformers takes."""
    if "cu_seqlens" in batch:
        bounds, longest = batch["cu_seqlens"], batch["max_seqlen"]
        return {
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": longest,
            "max_length_k": longest,
        }
    if "position_ids" in batch and "flash" in str(model.config._attn_implementation):
        raise UsageError(
            "flash attention in transformers looks for documents in position_ids only if a batch "
            "has one row; add 'cu_seqlens' to the extras of the view"
        )
    return {}


def unshifted(labels: torch.Tensor) -> torch.Tensor:
    """Move labels from the input before a token to the token itself, where transformers want them.

    The label that follows the last token of a row has no place.

    >>> unshifted(torch.tensor([[6, 7, -100, 9]])).tolist()
    [[-100, 6, 7, -100]]
    """
    moved = torch.empty_like(labels)
    moved[:, 0] = -100
    moved[:, 1:] = labels[:, :-1]
    return moved


def _check_training(loader: BaseLoader, args: Arguments) -> None:
    """Raise if Trainer would count other steps than the loader makes."""
    _check_batch_size(loader, args.train_batch_size, "per_device_train_batch_size")
    if args.auto_find_batch_size:
        raise UsageError("the batch size of a loader is fixed; leave out auto_find_batch_size")
    if loader.tail == "wrap" and not loader.endless:
        raise UsageError(
            "with tail='wrap' epochs differ by a step, and Trainer counts the same in each; use "
            "tail='drop' or tail='keep', or endless=True with max_steps"
        )


def _check_evaluation(loader: BaseLoader, args: Arguments) -> None:
    """Raise if an evaluation would have no end, or weigh rows differently."""
    _check_batch_size(loader, args.eval_batch_size, "per_device_eval_batch_size")
    if loader.endless:
        raise UsageError("an evaluation of an endless loader has no end; leave out endless")
    if loader.tail == "keep":
        raise UsageError(
            "with tail='keep' the last batch may be short, and Trainer gives it the weight of a "
            "whole one; use a batch size that divides the rows, and tail='drop'"
        )


def _check_batch_size(loader: BaseLoader, expected: int, argument: str) -> None:
    if loader.batch_size != expected:
        raise UsageError(
            f"the loader has batch_size={loader.batch_size}, and TrainingArguments {expected} rows "
            f"per process; pass {argument}={loader.batch_size} to TrainingArguments"
        )


class _KeepState(TrainerCallback):
    """Saves the loader's state with Trainer's own after each step, and restores it.

    Trainer reads the batches of a step before the step, and saves after it: then the loader stands
    exactly behind what was trained on. A release that reads further ahead is noticed.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._num_trained = 0

    @property
    def _loader(self) -> BaseLoader | None:
        dataset = self._trainer.train_dataset
        return dataset if isinstance(dataset, BaseLoader) else None

    def on_train_begin(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._num_trained = 0
        loader = self._loader
        if loader is None or not state.global_step:
            return
        try:
            saved = _callback_states(state)[_KEY]["attributes"]
            rows_before, loader_state = saved["rows_per_step"], saved["loader"]
        except (KeyError, TypeError):
            if args.ignore_data_skip:
                return
            raise StateError(
                f"the checkpoint of step {state.global_step:,} has no state of a loader, so rows "
                "would be repeated. Load a state of your own with loader.load_state_dict, and pass "
                "ignore_data_skip=True to TrainingArguments"
            ) from None
        rows = _rows_per_update(loader, args)
        if rows != rows_before and args.max_steps <= 0:
            raise StateError(
                f"an optimizer step had {rows_before:,} rows and now has {rows:,}. Trainer counts "
                "steps, so its number of epochs would be wrong: keep the product of batch size, "
                "processes and gradient_accumulation_steps, or set max_steps"
            )
        loader.load_state_dict(loader_state)

    def on_substep_end(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._num_trained += 1

    def on_step_end(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._num_trained += 1
        loader = self._loader
        if loader is None:
            return
        num_read: int = kwargs["train_dataloader"].dataset.num_handed_out
        if num_read != self._num_trained:
            raise StateError(
                f"Trainer has read {num_read:,} batches and trained on {self._num_trained:,}, so a "
                "checkpoint would skip rows. If no callback has stopped an epoch within a step, "
                f"transformers {transformers.__version__} reads ahead: use a version that "
                "docs/frameworks.md names"
            )
        saved = {"rows_per_step": _rows_per_update(loader, args), "loader": loader.state_dict()}
        # Trainer's form for callbacks' states; it restores none itself that is not a class's.
        _callback_states(state)[_KEY] = {"args": {}, "attributes": saved}


def _rows_per_update(loader: BaseLoader, args: Arguments) -> int:
    return int(loader.rows_per_step * args.gradient_accumulation_steps)


def _callback_states(state: TrainerState) -> dict[str, Any]:
    """Return the states by the callbacks' names; it is a list only before Trainer has begun."""
    return cast("dict[str, Any]", state.stateful_callbacks)
