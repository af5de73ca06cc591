"""TRL's SFTTrainer trains on packed rows and loss masks of a loader, and resumes exactly."""

import pytest
import torch

import millstream
from millstream.errors import UsageError
from millstream.integrations.trl import SFTTrainer
from tests.helpers.datasets import write_documents
from tests.helpers.trainer_runs import check_killed_and_resumed
from tests.helpers.trainers import with_trl

# What TRL makes of transformers' options.
pytestmark = pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents of up to 12 tokens, of which even ones are not to be learned."""
    lengths = [(7 * k) % 11 + 2 for k in range(40)]
    documents = [range(13 * k, 13 * k + length) for k, length in enumerate(lengths)]
    return write_documents(tmp_path_factory.mktemp("chats") / "data", documents, masked=True)


def make_trainer(loader, out, **options):
    evaluated = options.pop("eval_dataset", None)
    args = with_trl.arguments(
        out, **{"per_device_train_batch_size": loader.batch_size, "save_strategy": "no"} | options
    )
    return SFTTrainer(
        with_trl.tiny_model(vocab_size=600),
        args,
        None,  # the collator; as in TRL, datasets may be passed by position
        loader,
        evaluated,
        processing_class=with_trl.any_tokenizer(),
    )


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_resumes_exactly(tmp_path, ranks):
    check_killed_and_resumed(with_trl.train, tmp_path, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [[], ["cu_seqlens"]])
def test_the_loss_of_packed_rows_is_that_of_their_documents_alone(data, tmp_path, bounds):
    view = data.packed(32, extras=["position_ids", "document_ids", *bounds])
    trainer = make_trainer(millstream.Loader(view, 4), tmp_path, logging_steps=1, max_steps=1)
    losses = []
    with torch.no_grad():
        for document in next(iter(millstream.Loader(view, 4)))["document_ids"].unique().tolist():
            if document >= 0:
                tokens = torch.tensor(data.document(document)["token"].astype("int64"))
                logits = trainer.model(tokens[None]).logits[0, :-1]
                each = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none")
                losses += each[tokens[1:] % 2 == 1].tolist()
    assert len(losses) > 10
    trainer.train()
    found = next(line["loss"] for line in trainer.state.log_history if "loss" in line)
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-4)


@pytest.mark.slow
def test_loaders_are_evaluated_too(data, tmp_path):
    view = data.packed(32, extras=["position_ids"])
    loaders = {"a": millstream.Loader(view, 4), "b": millstream.Loader(view.take(4), 4)}
    trainer = make_trainer(
        millstream.Loader(view, 4), tmp_path, eval_dataset=loaders, per_device_eval_batch_size=4
    )
    found = trainer.evaluate()
    assert found == trainer.evaluate() | {
        name: value for name, value in found.items() if "second" in name or "runtime" in name
    }
    assert {"eval_a_loss", "eval_b_loss"} <= set(found)


def test_rows_without_positions_are_refused_with_what_to_add(data, tmp_path):
    trainer = make_trainer(millstream.Loader(data.windows(8), 4), tmp_path)
    with pytest.raises(UsageError, match="add 'position_ids' to the extras of the view"):
        trainer.train()


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("packing", r"use data\.packed"),
        ("padding_free", r"use data\.packed"),
        ("assistant_only_loss", "store a loss_mask"),
        ("completion_only_loss", "store a loss_mask"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_would_have_no_effect_is_refused(data, tmp_path, option, instead):
    loader = millstream.Loader(data.packed(32, extras=["position_ids"]), 4)
    with pytest.raises(UsageError, match=f"{option} has no effect on the rows.*{instead}"):
        make_trainer(loader, tmp_path, **{option: True})


def test_options_are_checked_before_trl_prepares_anything(data, tmp_path):
    loader = millstream.Loader(data.packed(32, extras=["position_ids"]), 4, global_batch_size=8)
    with pytest.raises(UsageError, match="gradient_accumulation_steps"):
        make_trainer(loader, tmp_path)
