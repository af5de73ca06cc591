"""Rows in the forms that people keep conversations in, and what is said of those that are none."""

import json

import pytest

from millstream.errors import UsageError
from millstream.text.chats.chat import Chat
from millstream.text.chats.conversations import BadConversationError, conversations_in
from millstream.text.chats.rendering import ChatRenderer
from millstream.text.chats.template_files import TemplateSource

HI = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello!"}]
ASKED = [{"role": "user", "content": "2+2?"}]
GOOD, BAD = ([{"role": "assistant", "content": answer}] for answer in ("4", "5"))
TOOL = {"type": "function", "function": {"name": "f"}}


def one(row, **columns):
    (found,) = conversations_in(row, Chat(**columns))
    return found


def test_messages_are_taken_as_they_are():
    assert one({"messages": HI, "id": 1}) == (HI, None, 0)
    assert one({"chat": HI}, messages="chat") == (HI, None, 0)


def test_messages_and_tools_may_be_json():
    row = {"messages": json.dumps(HI), "tools": json.dumps([TOOL])}
    assert one(row) == (HI, [TOOL], 0)
    for no_tools in ("[]", "", "null", None, []):
        row = {"messages": "  " + json.dumps(HI), "tools": no_tools}
        assert one(row) == (HI, None, 0)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("human", "user"), ("user", "user"), ("gpt", "assistant"), ("chatgpt", "assistant"),
        ("system", "system"), ("function_call", "assistant"), ("observation", "tool"),
    ],
)  # fmt: skip
def test_the_names_of_sharegpt_are_known(name, role):
    row = {"conversations": [{"from": name, "value": "x", "weight": 1}]}
    assert one(row, messages="conversations").messages == [{"role": role, "content": "x"}]


@pytest.mark.parametrize(
    "completion",
    ["4", "[]", "[1, 2]", '[{"name": "Anna"}]', '[{"role": "user"', "[{}]", '["role"]', " ", ""],
)
def test_an_answer_may_look_like_json(completion):
    found = one({"p": "Give me JSON.", "c": completion}, prompt="p", completion="c")
    assert found.messages == [
        {"role": "user", "content": "Give me JSON."},
        {"role": "assistant", "content": completion},
    ]
    assert found.num_given == 1


def test_prompts_and_completions_may_be_lists():
    row = {"p": HI + ASKED, "c": json.dumps(GOOD)}
    assert one(row, prompt="p", completion="c") == (HI + ASKED + GOOD, None, 3)


def test_pairs_with_and_without_a_prompt():
    pair = [(HI + ASKED + GOOD, [TOOL], 3), (HI + ASKED + BAD, [TOOL], 3)]
    columns = {"chosen": "c", "rejected": "r"}
    row = {"p": HI + ASKED, "c": GOOD, "r": BAD, "tools": [TOOL]}
    assert conversations_in(row, Chat(prompt="p", **columns)) == pair
    row = {"c": HI + ASKED + GOOD, "r": HI + ASKED + BAD, "tools": [TOOL]}
    assert conversations_in(row, Chat(**columns)) == pair
    row = {"p": "2+2?", "c": "4", "r": "5"}
    assert conversations_in(row, Chat(prompt="p", **columns)) == [
        (ASKED + GOOD, None, 1),
        (ASKED + BAD, None, 1),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "'messages' is missing; found"),
        ({"messages": None}, "'messages' is null"),
        ({"messages": []}, "'messages' is an empty list; expected a list of messages"),
        ({"messages": "[]"}, "'messages' is an empty list"),
        ({"messages": "Hi."}, "'messages' is 'Hi.'; expected a list of messages"),
        ({"messages": "[1]"}, r"'messages' is '\[1\]'"),
        ({"messages": {"role": "user"}}, "'messages' is dict"),
        ({"messages": ["Hi."]}, "'messages', message 0: str; expected an object"),
        ({"messages": [*HI, {"role": 3}]}, "message 2: its role is 3; expected a text"),
        ({"messages": [{"role": None, "content": "x"}]}, "its role is None"),
        ({"messages": [{"content": "x"}]}, r"found \['content'\]; expected role and content"),
        ({"messages": [{"role": "user", "text": "x"}]}, r"says nothing; found \['role', 'text'\]"),
        ({"messages": [{"role": "assistant", "content": None}]}, "says nothing"),
        ({"messages": [{"from": "gpt", "value": None}]}, "says nothing"),
        ({"messages": [{"role": "user", "content": "x", "weight": 0}]}, "its weight is 0"),
        ({"messages": [{"from": "me", "value": "x"}]}, "from 'me'; expected one of assistant"),
        ({"messages": [{"from": ["human"], "value": "x"}]}, r"from \['human'\]"),
        ({"messages": HI, "tools": "f"}, "'tools' is 'f'; expected a list of tools"),
        ({"messages": HI, "tools": {"f": 1}}, "expected a list of tools"),
        ({"messages": HI, "tools": ["f"]}, "'tools' has 'f'; expected objects"),
        ({"messages": HI, "tools": [None]}, "'tools' has None"),
    ],
)
def test_rows_that_are_no_conversations_say_why(row, message):
    with pytest.raises(BadConversationError, match=message):
        conversations_in(row, Chat())


def test_a_prompt_that_answers_repeat_is_written_once():
    columns = {"prompt": "p", "chosen": "c", "rejected": "r"}
    expected = [(ASKED + GOOD, None, 1), (ASKED + BAD, None, 1)]
    row = {"p": "2+2?", "c": ASKED + GOOD, "r": ASKED + BAD}
    assert conversations_in(row, Chat(**columns)) == expected
    assert conversations_in({**row, "p": ASKED}, Chat(**columns)) == expected
    system = [{"role": "system", "content": "Be brief."}]
    for answer, message in (
        (ASKED, "nothing else"),
        (system + ASKED + GOOD, "leave out"),
    ):
        with pytest.raises(BadConversationError, match=f"'c' contains the prompt, .*{message}"):
            conversations_in({**row, "c": answer}, Chat(**columns))


def test_messages_of_sharegpt_keep_what_templates_look_at():
    message = {"from": "gpt", "value": "x", "tool_calls": [1], "markdown": True, "weight": 1}
    found = one({"conversations": [message]}, messages="conversations").messages
    assert found == [{"role": "assistant", "content": "x", "tool_calls": [1]}]


@pytest.mark.parametrize(
    ("chosen", "rejected", "message"),
    [
        (ASKED + GOOD, ASKED + GOOD, "do not differ"),
        (ASKED + GOOD, ASKED, "do not differ"),
        (ASKED + GOOD, HI, "begin differently; name their prompt"),
        ("4", "5", "begin differently; name their prompt"),
        (None, "5", "'c' is null"),
    ],
)
def test_pairs_that_are_none_say_why(chosen, rejected, message):
    with pytest.raises(BadConversationError, match=message):
        conversations_in({"c": chosen, "r": rejected}, Chat(chosen="c", rejected="r"))


@pytest.mark.parametrize("loss_on", ["assistant", "all"])
def test_without_a_template_texts_are_joined(loss_on):
    chat = Chat(prompt="p", completion="c", template="none", loss_on=loss_on)
    ((text, trained),) = ChatRenderer(chat, None).render({"p": "Größe: ", "c": "é😀"})
    assert text.decode() == "Größe: é😀"
    assert trained == [(0 if loss_on == "all" else 9, 15)]
    with pytest.raises(BadConversationError, match="'c' is list; without a template it must be a"):
        ChatRenderer(chat, None).render({"p": "a", "c": GOOD})


@pytest.mark.parametrize("where", [0, 1])
def test_unpaired_surrogates_are_refused(where):
    renderer = ChatRenderer(
        Chat(), TemplateSource(default="{% for m in messages %}{{ m.content }}{% endfor %}")
    )
    messages = [dict(each) for each in HI]
    messages[where]["content"] = "ab\ud800"
    for extra in ({}, {"name": "x"}):  # by its shape, and alone
        messages[0] |= extra
        with pytest.raises(BadConversationError, match="unpaired surrogate at character"):
            renderer.render({"messages": messages})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "p"}, "prompt"),
        ({"messages": "m", "prompt": "p", "completion": "c"}, "completion, messages, prompt"),
        ({"chosen": "c"}, "chosen"),
        ({"messages": ""}, "messages is ''; it must be the name of a column"),
        ({"tools": 3}, "tools is 3"),
        ({"loss_on": "user"}, "loss_on"),
        ({"variables": {"x": object()}}, "variables is"),
        ({"variables": 3}, "variables is 3"),
    ],
)
def test_a_chat_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Chat(**options)
