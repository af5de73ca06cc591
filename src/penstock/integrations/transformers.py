"""Hugging Face's Trainer with a loader as its dataset.

    from penstock.integrations.transformers import Trainer

    trainer = Trainer(model=model, args=args, train_dataset=loader)
    trainer.train(resume_from_checkpoint=True)

Trainer batches, shuffles and distributes a dataset itself, and resumes by counting batches to skip.
A loader has done all of that. So Trainer gets a DataLoader that passes batches on, whatever index
it asks for: skipping indices skips no rows. The loader's state is saved in `trainer_state.json`.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import transformers
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as Arguments

from penstock.errors import StateError, UsageError
from penstock.integrations.checks import check_loader
from penstock.load.across_epochs import AcrossEpochs
from penstock.load.base_loader import BaseLoader, BatchDict
from penstock.load.state import State

_KEY = "penstock.Loader"
"""the key of the loader's state among the states of Trainer's callbacks"""


class Trainer(transformers.Trainer):
    """`transformers.Trainer` whose `train_dataset` and `eval_dataset` may be loaders.

    For any other subclass of Trainer, let your class inherit from both, from this one first:

        class MyTrainer(penstock.integrations.transformers.Trainer, Seq2SeqTrainer): ...
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._eval_starts = dict[BaseLoader, State]()
        if isinstance(self.train_dataset, BaseLoader):
            self._train_on(self.train_dataset)

    def _train_on(self, loader: BaseLoader) -> None:
        """Make a loader the training data, and its state a part of checkpoints."""
        _check(loader, self.args)
        self.train_dataset: Any = loader
        self.add_callback(_KeepState(loader))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Pass on the loader's batches; any other dataset is Trainer's own business."""
        loader = self.train_dataset
        if not isinstance(loader, BaseLoader):
            return super().get_train_dataloader()
        return _pass_on(loader, self._for_model)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Pass on the batches of one epoch, the same in every evaluation."""
        loader: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(loader, str):
            loader = cast("dict[str, Any]", self.eval_dataset)[loader]
        if not isinstance(loader, BaseLoader):
            return super().get_eval_dataloader(eval_dataset)
        if loader is self.train_dataset:
            raise UsageError(
                "an evaluation would move the training loader; pass a loader of its own"
            )
        _check_batch_size(loader, self.args.eval_batch_size, "per_device_eval_batch_size")
        start = self._eval_starts.setdefault(loader, loader.state_dict())
        return _pass_on(loader, self._for_model, start)

    def _for_model(self, batches: list[BatchDict]) -> BatchDict:
        """Return a batch as the model takes it."""
        (batch,) = batches
        model: Any = self.model
        if hasattr(model, "get_base_model"):  # of PEFT
            model = model.get_base_model()
        names = set(batch)
        if self.args.remove_unused_columns:
            names &= set(inspect.signature(type(model).forward).parameters)
        taken = {name: batch[name] for name in batch if name in names}
        if isinstance(model, PreTrainedModel):
            taken |= for_transformers(batch, model)
        return taken


def for_transformers(batch: BatchDict, model: PreTrainedModel) -> BatchDict:
    """Return what models of transformers call differently.

    They shift labels themselves: a label stands at the token that is to be predicted, not at the
    token before it. So the label that follows the last token of a row has no place.
    """
    taken = {"labels": unshifted(batch["labels"])}
    if "cu_seqlens" in batch:
        bounds, longest = batch["cu_seqlens"], batch["max_seqlen"]
        taken |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
        taken |= {"max_length_q": longest, "max_length_k": longest}
    elif "position_ids" in batch and "flash" in str(model.config._attn_implementation):
        raise UsageError(
            "flash attention in transformers looks for documents in position_ids only if a batch "
            "has one row; add 'cu_seqlens' to the extras of the view"
        )
    return taken


def unshifted(labels: torch.Tensor) -> torch.Tensor:
    """Move labels from the input before a token to the token itself.

    >>> unshifted(torch.tensor([[6, 7, -100, 9]])).tolist()
    [[-100, 6, 7, -100]]
    """
    moved = torch.empty_like(labels)
    moved[:, 0] = -100
    moved[:, 1:] = labels[:, :-1]
    return moved


def _check(loader: BaseLoader, args: Arguments) -> None:
    """Raise if Trainer would count other steps than the loader makes."""
    check_loader(loader, "Trainer", "TrainingArguments(gradient_accumulation_steps=…)")
    _check_batch_size(loader, args.train_batch_size, "per_device_train_batch_size")
    if args.auto_find_batch_size:
        raise UsageError("the batch size of a loader is fixed; leave out auto_find_batch_size")


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

    def __init__(self, loader: BaseLoader) -> None:
        self._loader = loader
        self._num_trained = 0

    def on_train_begin(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._num_trained = 0
        if not state.global_step or args.ignore_data_skip:
            return
        try:
            saved = _callback_states(state)[_KEY]["attributes"]
            rows, loader_state = saved["rows_per_step"], saved["loader"]
        except (KeyError, TypeError):
            raise StateError(
                f"the checkpoint of step {state.global_step:,} has no state of a loader, so rows "
                "would be repeated. Load a state of your own with loader.load_state_dict, and pass "
                "ignore_data_skip=True to TrainingArguments"
            ) from None
        if rows != self._rows_per_step(args) and args.max_steps <= 0:
            raise StateError(
                f"an optimizer step had {rows:,} rows and now has {self._rows_per_step(args):,}. "
                "Trainer counts steps, so its number of epochs would be wrong: keep the product of "
                "batch size, processes and gradient_accumulation_steps, or set max_steps"
            )
        self._loader.load_state_dict(loader_state)

    def on_substep_end(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._num_trained += 1

    def on_step_end(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._num_trained += 1
        num_read: int = kwargs["train_dataloader"].dataset.num_handed_out
        if num_read != self._num_trained:
            raise StateError(
                f"Trainer has read {num_read:,} batches and trained on {self._num_trained:,}, so a "
                "checkpoint would skip rows. If no callback has stopped an epoch within a step, "
                f"transformers {transformers.__version__} reads ahead: use a version that "
                "docs/frameworks.md names"
            )
        rows = self._rows_per_step(args)
        saved = {"rows_per_step": rows, "loader": self._loader.state_dict()}
        # Trainer's form for callbacks' states; it restores none itself that is not a class's.
        _callback_states(state)[_KEY] = {"args": {}, "attributes": saved}

    def _rows_per_step(self, args: Arguments) -> int:
        loader = self._loader
        return int(loader.batch_size * loader.ranks * args.gradient_accumulation_steps)


def _callback_states(state: TrainerState) -> dict[str, Any]:
    """Return the states by the callbacks' names; it is a list only before Trainer has begun."""
    return cast("dict[str, Any]", state.stateful_callbacks)


def _pass_on(
    loader: BaseLoader,
    for_model: Callable[[list[BatchDict]], BatchDict],
    start: State | None = None,
) -> DataLoader[Any]:
    batches = _Batches(loader, start)
    return DataLoader(batches, batch_sampler=_Turns(batches), collate_fn=for_model)


class _Batches(Dataset[Any]):
    """Hands out the next batch of the loader, whatever the index."""

    def __init__(self, loader: BaseLoader, start: State | None) -> None:
        self.loader, self._start = loader, start
        self._batches: Iterator[BatchDict] = iter(())
        self.num_handed_out = 0

    def begin(self) -> None:
        """Continue where the loader is, or return to the start that was given."""
        if self._start is not None:
            self.loader.load_state_dict(self._start)
        # Trainer's epochs are not the loader's if a run begins in the middle of one of those.
        self._batches = AcrossEpochs(self.loader)

    def __len__(self) -> int:
        """Rows of an epoch on all ranks, which Trainer calls examples."""
        return len(self.loader) * self.loader.batch_size * self.loader.ranks

    def __getitems__(self, indices: list[int]) -> list[BatchDict]:
        self.num_handed_out += 1
        return [next(self._batches)]


class _Turns(Sampler[list[int]]):
    """As many turns as an epoch has steps. Trainer skips those that it had before a resumption."""

    def __init__(self, batches: _Batches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches.loader)

    def __iter__(self) -> Iterator[list[int]]:
        self._batches.begin()
        turns = itertools.count() if self._batches.loader.endless else range(len(self))
        return ([turn] for turn in turns)
