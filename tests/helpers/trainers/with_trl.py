"""TRL's SFTTrainer."""

import tokenizers
import transformers

from tests.helpers.trainer_runs import EPOCHS, ROWS, SAVE_EVERY


def tiny_model(vocab_size=60_000):
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config)


def any_tokenizer():
    model = tokenizers.models.WordLevel({"a": 0, "<eos>": 1}, unk_token="a")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), eos_token="<eos>", pad_token="<eos>"
    )


def arguments(out, **options):
    from trl import SFTConfig

    return SFTConfig(out, report_to="none", use_cpu=True, disable_tqdm=True, bf16=False, **options)


def train(run):
    from transformers.trainer_utils import get_last_checkpoint

    from millstream.integrations.trl import SFTTrainer

    class Recording(SFTTrainer):
        def training_step(self, model, inputs, *others):
            run.saw(self.state.global_step + 1, inputs["input_ids"])
            return super().training_step(model, inputs, *others)

    out = run.out / "checkpoints"
    out.mkdir(exist_ok=True)
    trainer = Recording(
        tiny_model(),
        arguments(
            out,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=ROWS // run.ranks,
            save_steps=SAVE_EVERY,
        ),
        train_dataset=run.loader(extras=["position_ids"]),
        processing_class=any_tokenizer(),
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(out))
