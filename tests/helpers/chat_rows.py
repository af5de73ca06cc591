"""Conversations that a template may trip over, and a small tokenizer with all special tokens."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import millstream
from millstream.text.sources import Source
from tests.helpers.chat_templates import SPECIALS
from tests.helpers.vocabularies import some_text

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Says what the weather's like, in °C & <tags>.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def call(**arguments):
    return {"type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def said(*contents, system=None):
    """A conversation of user and assistant, in turns."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    for k, content in enumerate(contents):
        messages.append({"role": "assistant" if k % 2 else "user", "content": content})
    return {"messages": messages}


ROWS = {
    "one turn": said("Hello!", "Hi there."),
    "several": said("Hi.", "Hello!", "How are you?", "Fine, and you?", "Fine.", "Good."),
    "system": said("What is 2 + 2?", "4", system="You are terse."),
    "unanswered": said("Hi.", "Hello!", "How are you?"),
    "unicode": said("Grüße 😀👩‍👩‍👧 日本語", "e\u0301 é 한국어 ½ ǅ\u200b😀"),
    "empty": said("", "", "a", ""),
    "white space": said("  hi \n", "\n\n hello \t\n", " \n", "\u00a0x\u2028"),
    "special tokens": said(
        "<|im_end|>\n<|im_start|>system", "</s> <s>[INST]<|eot_id|> <end_of_turn>"
    ),
    "markup": said("<b>\"&'</b> {{ x }} {% y %} %s", "```python\nprint('hi')\n```"),
    "thinking in contents": said("1?", "<think>\nno\n</think>\n\nyes", "2?", "<think>b</think>c"),
    "numbers": said("0", "None", "[]", "{}"),
    "reasoning": {
        "messages": [
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "4", "reasoning_content": "Two and two: 4. 😀"},
            {"role": "user", "content": "3 + 3?"},
            {"role": "assistant", "content": "6", "reasoning": "six", "thinking": None},
        ]
    },
    "tools": {
        "tools": [WEATHER],
        "messages": [
            {"role": "system", "content": "Use tools."},
            {"role": "user", "content": "Weather in Zürich?"},
            {"role": "assistant", "content": None, "tool_calls": [call(city="Zürich", days=2)]},
            {"role": "tool", "content": '{"°C": 21}', "name": "get_weather"},
            {"role": "assistant", "content": "21 degrees.", "tool_calls": None},
        ],
    },
    "two tools at once": {
        "tools": [WEATHER, WEATHER],
        "messages": [
            {"role": "user", "content": "Weather in A and B?"},
            {"role": "assistant", "content": "", "tool_calls": [call(city="A"), call(city="B")]},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2"},
            {"role": "assistant", "content": "1 and 2"},
        ],
    },
    "tools without calls": {"tools": [WEATHER], **said("Hi.", "Hello!")},
    "parts": {
        "messages": [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What? "}]},
            {"role": "assistant", "content": [{"type": "text", "text": "A cat 😀."}]},
        ]
    },
    "nulls": {
        "messages": [
            {"role": "user", "content": "Hi.", "name": None, "tool_calls": None},
            {"role": "assistant", "content": "Hello!", "name": None, "tool_calls": None},
        ]
    },
    "content first": {
        "messages": [
            {"content": "Hi.", "role": "user"},
            {"content": "Hello!", "role": "assistant"},
        ]
    },
    "assistant first": {"messages": [{"role": "assistant", "content": "Welcome."}]},
    "twice in a row": {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": "c"},
        ]
    },
    "another role": {
        "messages": [{"role": "critic", "content": "Bad."}, *said("a", "b")["messages"]]
    },
}


@cache
def plain_json():
    """A tokenizer.json that the fast engine reads, trained on the spot."""
    with TemporaryDirectory() as directory:
        source = Source.from_documents([some_text()[:60_000]])
        millstream.train_tokenizer(source, 800, specials=SPECIALS, out=directory)
        return Path(directory, "tokenizer.json").read_text()


@cache
def odd_json():
    """The same with settings that only Hugging Face's engine has.

    It has a normalizer, added tokens that are not special, and some that take white space.
    """
    found = json.loads(plain_json())
    found["normalizer"] = {"type": "NFC"}
    first = 1 + max(token["id"] for token in found["added_tokens"])
    for token in found["added_tokens"]:
        token["rstrip"] = token["content"] in ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
        token["lstrip"] = token["content"] == "<|im_end|>"
    for k, content in enumerate(["<tool_call>", "</tool_call>", "<think>", "</think>"]):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
        found["added_tokens"].append(
            {"id": first + k, "content": content, "normalized": k % 2 == 1, **flags}
        )
    return json.dumps(found)


def write_tokenizer(directory, chat_template=None, *, content=None, **config):
    """A directory as of a model: a tokenizer.json, and a config with the template."""
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(content or plain_json())
    found = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": chat_template, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(found))
    return directory


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
