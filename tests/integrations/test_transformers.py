"""Hugging Face's Trainer trains on the rows of a loader, each once, and resumes exactly."""

import json
import warnings

import pytest
import torch

import millstream
from millstream.errors import StateError, UsageError
from tests.helpers.datasets import inputs_of, write_random_documents
from tests.helpers.objects import write_objects
from tests.helpers.trainer_data import ROWS, STEPS, make, make_text, write_text
from tests.helpers.trainer_runs import check_killed_and_resumed
from tests.helpers.trainers import with_transformers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

    from millstream.integrations.transformers import Trainer


def train(loader, out, *, resume=None, **options):
    """The batches that a model saw, each with the number of its optimizer step."""
    seen = []
    trainer = with_transformers.make_trainer(
        loader, out, lambda step, inputs: seen.append((step, inputs.tolist())), **options
    )
    trainer.train(resume_from_checkpoint=resume)
    loader.close()
    return seen


def epochs(make_loader, count):
    """The batches of several epochs of a loader alone."""
    with make_loader() as loader:
        return [batch for _ in range(count) for batch in inputs_of(loader)]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_resumes_exactly(tmp_path, ranks):
    check_killed_and_resumed(with_transformers.train, tmp_path, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokens", "text", "mixture"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_trainer_resumes_at_any_step_with_accumulation_too(
    view, text, tmp_path, kind, accumulation
):
    def make_loader():
        if kind == "text":
            return make_text(text)
        if kind == "mixture":
            parts = {"a": (view.slice(0, 50), 1), "b": (view.slice(50), 2)}
            return millstream.Loader(millstream.mix(parts, seed=3), ROWS)
        return make(view)

    options = {"gradient_accumulation_steps": accumulation, "num_train_epochs": 3}
    expected = train(make_loader(), tmp_path / "whole", **options)
    assert [rows for _, rows in expected] == epochs(make_loader, 3)
    num_updates = -(-len(expected) // 3 // accumulation)
    assert expected[-1][0] == 3 * num_updates
    for stop in (1, num_updates - 1, num_updates, num_updates + 2, 2 * num_updates):
        out = tmp_path / f"{stop}"
        stopped = options | {"save_strategy": "steps", "save_steps": stop, "save_only_model": False}
        first = train(make_loader(), out, **stopped, max_steps=stop)
        assert first == [(step, rows) for step, rows in expected if step <= stop]
        path = out / f"checkpoint-{stop}"
        resumed = train(make_loader(), out, resume=path, **options)
        assert resumed == [(step, rows) for step, rows in expected if step > stop]


def save(view, out, **options):
    """A checkpoint after 20 steps of a run that goes on for three epochs."""
    saving = {"save_strategy": "steps", "save_steps": 20, "max_steps": 20}
    train(make(view, **options), out, **saving)
    return out / "checkpoint-20"


def test_another_batch_size_continues_exactly_if_optimizer_steps_stay_the_same(view, tmp_path):
    path = save(view, tmp_path)
    half = millstream.Loader(view, ROWS // 2, seed=3)
    found = train(half, tmp_path, resume=path, gradient_accumulation_steps=2, num_train_epochs=2)
    halves = epochs(lambda: millstream.Loader(view, ROWS // 2, seed=3), 2)
    per_epoch = len(halves) // 2  # Trainer leaves out what does not fill a step of its own
    assert [rows for _, rows in found] == halves[40:]
    assert found[-1][0] == 2 * -(-per_epoch // 2)


def test_another_size_of_optimizer_steps_needs_max_steps(view, tmp_path):
    path = save(view, tmp_path)

    def half():
        return millstream.Loader(view, ROWS // 2, seed=3)

    with pytest.raises(StateError, match=r"step had 4 rows and now has 2\..*or set max_steps"):
        train(half(), tmp_path, resume=path, num_train_epochs=2)
    found = train(half(), tmp_path, resume=path, max_steps=100)
    assert [step for step, _ in found] == list(range(21, 101))
    assert [rows for _, rows in found] == epochs(half, 2)[40:120]


def test_other_rows_than_the_checkpoints_are_refused(view, tmp_path):
    path = save(view, tmp_path)
    with pytest.raises(StateError, match="seed was 3 and is 4"):
        train(millstream.Loader(view, ROWS, seed=4), tmp_path, resume=path)


def test_a_checkpoint_without_a_state_is_refused_or_ignored_as_asked(view, tmp_path):
    path = save(view, tmp_path) / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["millstream.Loader"]
    path.write_text(json.dumps(state))
    with pytest.raises(
        StateError, match=r"step 20 has no state of a loader.*ignore_data_skip=True"
    ):
        train(make(view), tmp_path, resume=path.parent)
    loader = make(view)
    loader.load_state_dict(loader.state_dict() | {"position": 20 * ROWS})
    options = {"ignore_data_skip": True, "max_steps": 30}
    found = train(loader, tmp_path, resume=path.parent, **options)
    assert [rows for _, rows in found] == epochs(lambda: make(view), 1)[20:30]


@pytest.mark.filterwarnings("ignore:Checkpoint included callbacks")
def test_callbacks_of_a_checkpoint_may_be_restored(view, tmp_path):
    path = save(view, tmp_path)
    options = {"restore_callback_states_from_checkpoint": True, "max_steps": 25}
    found = train(make(view), tmp_path, resume=path, **options)
    assert [rows for _, rows in found] == epochs(lambda: make(view), 1)[20:25]


def test_a_run_may_begin_in_the_middle_of_an_epoch(view, tmp_path):
    loader = make(view)
    loader.load_state_dict(loader.state_dict() | {"position": 30 * ROWS})
    found = train(loader, tmp_path, num_train_epochs=2)
    assert [rows for _, rows in found] == epochs(lambda: make(view), 3)[30 : 30 + 2 * STEPS]


def test_an_endless_loader_trains_for_max_steps_and_resumes(view, tmp_path):
    path = save(view, tmp_path, endless=True)
    found = train(make(view, endless=True), tmp_path, resume=path, max_steps=100)
    assert [step for step, _ in found] == list(range(21, 101))
    expected = make(view, endless=True)
    assert [rows for _, rows in found] == [
        batch["input_ids"].tolist() for _, batch in zip(range(100), expected, strict=False)
    ][20:]


def test_every_evaluation_has_the_same_rows(view, tmp_path):
    evaluated = make(view.take(3 * ROWS))
    options = {
        "eval_strategy": "steps",
        "eval_steps": 10,
        "per_device_eval_batch_size": ROWS,
        "max_steps": 20,
    }
    expected = inputs_of(make(view.take(3 * ROWS)))
    for loaders in (evaluated, {"a": evaluated, "b": make(view.take(3 * ROWS))}):
        seen = train(make(view), tmp_path, eval_dataset=loaders, **options)
        found = [rows for step, rows in seen if step is None]
        assert found == expected * (2 if loaders is evaluated else 4)
        evaluated.load_state_dict(make(view.take(3 * ROWS)).state_dict())
        assert len(seen) - len(found) == 20
    with pytest.raises(UsageError, match=f"pass per_device_eval_batch_size={ROWS} to"):
        train(make(view), tmp_path, eval_dataset=evaluated, eval_strategy="epoch")


def test_a_trainer_that_reads_ahead_is_noticed(view, tmp_path, monkeypatch):
    take = transformers.Trainer.get_batch_samples

    def take_more(trainer, batches, count, device):
        taken, num_items = take(trainer, batches, count + 1, device)
        return taken[:count], num_items

    monkeypatch.setattr(transformers.Trainer, "get_batch_samples", take_more)
    with pytest.raises(StateError, match="read 2 batches and trained on 1, so a checkpoint would"):
        train(make(view), tmp_path)


def test_what_trainer_would_get_wrong_is_refused_with_what_to_write(view, text, tmp_path):
    def refused(loader, match, **options):
        with pytest.raises(UsageError, match=match):
            train(loader, tmp_path, **options)

    refused(make(view), "pass per_device_train_batch_size=4", per_device_train_batch_size=8)
    refused(make(view, tail="wrap"), "use tail='drop' or tail='keep'")
    refused(make(view, output="numpy"), "leave output='numpy' out")
    refused(make(view), "leave out auto_find_batch_size", auto_find_batch_size=True)
    refused(make(view, global_batch_size=8), r"use TrainingArguments\(gradient_accumulation_steps")
    refused(make(view.with_transform(tuple)), "dicts of tensors, and .* returned tuple")
    objects = write_objects(tmp_path / "objects", [b"x"] * 8).objects()
    refused(make(objects), r"return a dict of tensors from data\.objects\(…, collate=…\)")
    other = write_text(text.with_name("other.txt"))
    refused(make_text([text, other], rank=0, ranks=2), "pass gather_states=True")


def test_the_trainer_of_transformers_itself_is_refused(view, tmp_path):
    args = transformers.TrainingArguments(tmp_path, report_to="none", use_cpu=True)
    trainer = transformers.Trainer(torch.nn.Linear(1, 1), args, train_dataset=make(view))
    with pytest.raises(UsageError, match=r"use millstream\.integrations\.transformers\.Trainer"):
        trainer.train()


def test_other_datasets_are_trainers_own_business(view, tmp_path):
    seen, rows = [], [{"input_ids": torch.tensor([k]), "labels": 0} for k in range(12)]
    args = transformers.TrainingArguments(tmp_path, report_to="none", use_cpu=True, max_steps=2)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids, labels):
            seen.append(input_ids.shape)
            return {"loss": (self.weight**2).sum()}

    trainer = Trainer(Model(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    trainer.evaluate()
    assert seen == [(8, 1), (4, 1), (8, 1), (4, 1)]


# Batches as models of transformers take them.


def tiny_llama(model_class=transformers.LlamaForCausalLM, **options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        **options,
    )
    return model_class(config)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    return write_random_documents(tmp_path_factory.mktemp("documents") / "data", 60, longest=20)


def batch_for(model, view, tmp_path, **options):
    """The first batch of a view, as the loader made it, and as Trainer gives it to the model."""
    args = transformers.TrainingArguments(
        tmp_path, report_to="none", use_cpu=True, per_device_train_batch_size=4, **options
    )
    with millstream.Loader(view, 4) as loader:
        own = next(iter(loader))
    trainer = Trainer(model, args, train_dataset=millstream.Loader(view, 4))
    return own, next(iter(trainer.get_train_dataloader()))


@torch.no_grad()
def test_a_model_of_transformers_learns_the_labels_of_the_loader(documents, tmp_path):
    model = tiny_llama()
    for view in (documents.windows(16), documents.documents(16)):
        own, given = batch_for(model, view, tmp_path)
        logits = model(**{name: value for name, value in given.items() if name != "labels"}).logits
        # The last label of a row is of a token that the model does not get.
        expected = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), own["labels"][:, :-1].flatten()
        )
        torch.testing.assert_close(model(**given).loss, expected)


def tiny_gpt2(model_class=transformers.GPT2LMHeadModel):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=1000, n_positions=32, n_embd=16, n_layer=2, n_head=2
    )
    return model_class(config).eval()


class MyLlama(transformers.LlamaForCausalLM):
    """A subclass whose name does not say that it is causal."""


class MyGPT2(transformers.GPT2LMHeadModel):
    """A subclass that might give its labels to GPT-2, or not."""

    def forward(self, input_ids, **inputs):
        return super().forward(input_ids, **inputs)


def tiny_bart():
    config = transformers.BartConfig(
        vocab_size=1000, d_model=16, decoder_layers=1, decoder_attention_heads=2
    )
    return transformers.BartForCausalLM(config)


@torch.no_grad()
@pytest.mark.parametrize(
    "make_model", [tiny_gpt2, lambda: tiny_llama(MyLlama)], ids=["GPT2LMHeadModel", "MyLlama"]
)
def test_causal_models_of_any_name_shift_labels_once(documents, tmp_path, make_model):
    model = make_model()
    assert model.loss_type is None  # as transformers has it for names without "ForCausalLM"
    own, given = batch_for(model, documents.windows(16), tmp_path)
    assert (own["labels"] >= 0).all()
    assert given["labels"].tolist() == [[-100, *row[:-1]] for row in own["labels"].tolist()]
    logits = model(given["input_ids"]).logits
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), own["labels"][:, :-1].flatten()
    )
    torch.testing.assert_close(model(**given).loss, expected)


def with_own_loss():
    model = tiny_llama()
    model.loss_function = lambda logits, labels, **_: logits.sum()
    return model


@pytest.mark.parametrize("make_model", [tiny_bart, lambda: tiny_gpt2(MyGPT2), with_own_loss])
def test_models_with_a_loss_of_their_own_must_be_told_about(documents, tmp_path, make_model):
    view = documents.windows(16)
    with pytest.raises(UsageError, match=r"cannot tell whether \w+ shifts labels.*False if"):
        batch_for(make_model(), view, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "model_shifts_labels", False)
        own, given = batch_for(make_model(), view, tmp_path, remove_unused_columns=False)
    assert given["labels"].equal(own["labels"])


def test_models_that_do_not_predict_the_next_token_get_labels_as_they_are(documents, tmp_path):
    model = tiny_llama(transformers.LlamaForTokenClassification)
    own, given = batch_for(model, documents.windows(16), tmp_path)
    assert given["labels"].equal(own["labels"])
    _, given = batch_for(tiny_llama(transformers.LlamaModel), documents.windows(16), tmp_path)
    assert "labels" not in given


class Around(torch.nn.Module):
    """A model of the user with one of transformers inside."""

    def __init__(self):
        super().__init__()
        self.inner = tiny_llama()

    def forward(self, **inputs):
        return self.inner(**inputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_wrapped_model_of_transformers_gets_the_same_labels_or_says_so(documents, tmp_path):
    view = documents.windows(16)
    own, expected = batch_for(tiny_llama(), view, tmp_path)
    wrapped = torch.nn.DataParallel(tiny_llama())
    for model in (wrapped, torch.compile(tiny_llama())):
        _, given = batch_for(model, view, tmp_path)
        assert given["labels"].equal(expected["labels"])
    with pytest.raises(UsageError, match=r"Set trainer\.model_shifts_labels = True if yours"):
        batch_for(Around(), view, tmp_path)
    for shifts, labels in ((True, expected["labels"]), (False, own["labels"])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "model_shifts_labels", shifts)
            _, given = batch_for(Around(), view, tmp_path)
        assert given["labels"].equal(labels)


@torch.no_grad()
@pytest.mark.parametrize("bounds", [[], ["cu_seqlens"]])
def test_documents_of_a_packed_row_do_not_see_each_other(documents, tmp_path, bounds):
    model = tiny_llama()
    view = documents.packed(32, extras=["position_ids", "document_ids", *bounds])
    own, given = batch_for(model, view, tmp_path)
    assert "document_ids" not in given
    logits, num_documents = model(**given).logits, 0
    for row, document_ids in enumerate(own["document_ids"]):
        for document in document_ids.unique():
            if document >= 0:
                is_of = document_ids == document
                alone = model(own["input_ids"][row, is_of][None]).logits[0]
                torch.testing.assert_close(logits[row, is_of], alone, atol=1e-4, rtol=1e-4)
                num_documents += 1
    assert num_documents > 8


def test_flash_attention_gets_the_bounds_of_documents_or_is_refused(documents, tmp_path):
    model = tiny_llama()
    model.config._attn_implementation = "flash_attention_2"
    view = documents.packed(32, extras=["position_ids", "cu_seqlens"])
    own, given = batch_for(model, view, tmp_path)
    for side in "qk":
        assert given[f"cu_seq_lens_{side}"].equal(own["cu_seqlens"])
        assert given[f"max_length_{side}"] == own["max_seqlen"]
    with pytest.raises(UsageError, match="add 'cu_seqlens' to the extras of the view"):
        batch_for(model, documents.packed(32, extras=["position_ids"]), tmp_path)


def test_any_other_module_gets_the_batch_of_the_loader(documents, tmp_path):
    class Model(torch.nn.Module):
        def forward(self, input_ids, labels, document_ids):
            raise NotImplementedError

    view = documents.packed(32, extras=["position_ids", "document_ids"])
    own, given = batch_for(Model(), view, tmp_path)
    assert list(given) == ["input_ids", "labels", "document_ids"]
    assert all(torch.equal(given[name], own[name]) for name in given)
    own, given = batch_for(Model(), view, tmp_path, remove_unused_columns=False)
    assert list(given) == list(own)


def test_any_other_trainer_can_take_loaders_too(view, tmp_path):
    class Theirs(transformers.Trainer):
        def __init__(self, *arguments, factor, **options):
            super().__init__(*arguments, **options)
            self.factor = factor

    class Ours(Trainer, Theirs):
        pass

    args = transformers.TrainingArguments(
        tmp_path, report_to="none", use_cpu=True, per_device_train_batch_size=ROWS
    )
    trainer = Ours(torch.nn.Linear(1, 1), args, train_dataset=make(view), factor=2)
    assert trainer.factor == 2
    assert len(trainer.get_train_dataloader()) == STEPS
