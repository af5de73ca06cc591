"""Texts, tokens and masks are those of transformers' `apply_chat_template`."""

import functools
import re
from datetime import datetime

import numpy as np
import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from millstream.text.chats.chat import Chat
from millstream.text.chats.conversations import BadConversationError
from millstream.text.chats.loading import renderer_of
from millstream.text.tokenizers.adapter import find_tokenizer
from millstream.text.tokenizers.special_tokens import trained_tokens
from tests.helpers.chat_rows import ROWS, odd_json, plain_json, write_tokenizer
from tests.helpers.chat_templates import MARKED, TEMPLATES

DATE = "2026-01-31"
JSON = {"fast": plain_json, "huggingface": odd_json}


class FixedDate(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.strptime(DATE, "%Y-%m-%d")


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch):
    monkeypatch.setattr(chat_template_utils, "datetime", FixedDate)


@functools.cache
def theirs_for(engine):
    backend = tokenizers.Tokenizer.from_str(JSON[engine]())
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


class RefusedError(Exception):
    pass


class Theirs:
    """What transformers makes of a row, and the mask that follows from prefixes."""

    def __init__(self, engine, template, row):
        self._tokenizer = theirs_for(engine)
        self._messages = row["messages"]
        self._options = {"chat_template": template, "tools": row.get("tools")}

    def text(self, count=None, **options):
        try:
            return self._tokenizer.apply_chat_template(
                self._messages[:count], tokenize=False, **self._options, **options
            )
        except Exception as error:
            raise RefusedError(str(error)) from None

    def ids_and_mask(self, loss_on):
        encoding = self._tokenizer(self.text(), add_special_tokens=False)
        offsets = encoding.encodings[0].offsets
        if "endgeneration" in self._options["chat_template"]:
            mask = self._marked(offsets, loss_on)
        else:
            mask = self._by_prefixes(offsets, loss_on)
        return encoding["input_ids"], mask

    def _marked(self, offsets, loss_on):
        assert loss_on == "assistant"
        found = self._tokenizer.apply_chat_template(
            self._messages, return_assistant_tokens_mask=True, return_dict=True, **self._options
        )
        mask = found["assistant_masks"]
        # Of a character that became several tokens, transformers marks only the first if the block
        # ends with it.
        for k in range(1, len(mask)):
            if offsets[k] == offsets[k - 1]:
                mask[k] |= mask[k - 1]
        return mask

    def _by_prefixes(self, offsets, loss_on):
        """A model in plain Python: a token is trained if it has a character of a turn."""
        whole, mask = self.text(), [0] * len(offsets)
        turns = [k for k, each in enumerate(self._messages) if each["role"] == "assistant"]
        for k in turns[-1:] if loss_on == "last" else turns:
            before = self.text(k, add_generation_prompt=True) if k else self._before_all()
            after = self.text(k + 1)
            if not whole.startswith(before) or not whole.startswith(after):
                raise RefusedError("cannot be told apart")
            for token, (start, stop) in enumerate(offsets):
                mask[token] |= start < len(after) and len(before) < stop
        return [int(each) for each in mask]

    def _before_all(self):
        """Transformers refuses conversations without a message, which begin here."""
        special = {"bos_token": "<s>", "eos_token": "</s>"}
        compiled = chat_template_utils._compile_jinja_template(self._options["chat_template"])
        try:
            return compiled.render(
                messages=[], tools=self._options["tools"], documents=None,
                add_generation_prompt=True, **special,
            )  # fmt: skip
        except Exception as error:
            raise RefusedError(str(error)) from None


class Ours:
    """What `tokenize` makes of a row, without files."""

    def __init__(self, directory, template, engine, loss_on="assistant"):
        write_tokenizer(directory, template, content=JSON[engine]())
        self.tokenizer = find_tokenizer(directory, spells_specials=True)
        assert self.tokenizer.engine == engine
        self.renderer = renderer_of(Chat(loss_on=loss_on, date=DATE), directory)

    def ids_and_mask(self, row):
        ((text, trained),) = self.renderer.render(row)
        data, offsets = np.frombuffer(text, np.uint8), np.array([0, len(text)])
        ids, id_offsets, ends = self.tokenizer.encode_with_specials(data, offsets)
        spans = np.array(trained, np.int64).reshape(-1, 2)
        mask = trained_tokens(id_offsets, ends, offsets, spans)
        return ids.tolist(), mask.tolist()


def assert_equal(ours, theirs, row, loss_on):
    try:
        expected, reason = theirs.ids_and_mask(loss_on), None
    except RefusedError as refused:
        reason = re.escape(str(refused)[:60])
    if reason is not None:
        with pytest.raises(BadConversationError, match=reason):
            ours.ids_and_mask(row)
        return False
    assert ours.ids_and_mask(row) == expected
    return True


@pytest.mark.slow
@pytest.mark.parametrize("engine", JSON)
@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_and_masks_are_those_of_transformers(tmp_path, name, engine):
    template = TEMPLATES[name]
    ours = Ours(tmp_path / "model", template, engine)
    rendered = {
        title: assert_equal(ours, Theirs(engine, template, row), row, "assistant")
        for title, row in ROWS.items()
    }
    assert rendered["one turn"] == (name != "deepseek")  # its header is not how a turn begins
    assert rendered["several"] == (name not in ("deepseek", "qwen 3", "phi 3"))


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in MARKED])
def test_the_last_turn_alone_is_trained(tmp_path, name):
    template = TEMPLATES[name]
    ours = Ours(tmp_path / "model", template, "fast", "last")
    for title in ("several", "system", "unanswered", "unicode", "tools", "twice in a row"):
        assert_equal(ours, Theirs("fast", template, ROWS[title]), ROWS[title], "last")
