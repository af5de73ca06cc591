"""Where templates come from, and what they can rely on."""

import json

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

import millstream
from millstream.errors import FormatError, UsageError
from millstream.text.chats.chat import Chat
from millstream.text.chats.conversations import BadConversationError
from millstream.text.chats.loading import renderer_of
from millstream.text.chats.rendering import ChatRenderer
from millstream.text.chats.template_files import TemplateSource
from tests.helpers.chat_rows import ROWS, WEATHER, plain_json, said, write_rows, write_tokenizer
from tests.helpers.chat_templates import CHATML_MARKED, MARKED_PARTS

HI = said("Hi.", "Hello!")
WITH_TOOLS = HI | {"tools": [WEATHER]}


def texts(renderer, *rows):
    return [renderer.render(row)[0].text.decode() for row in rows]


def rendered(template, row=HI, **options):
    ((text, trained),) = ChatRenderer(Chat(**options), TemplateSource(default=template)).render(row)
    return text.decode(), [text[start:stop].decode() for start, stop in trained]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ dict.fromkeys(['a', 'b'], 1) }}", "{'a': 1, 'b': 1}"),
        ("{{ dict(a=1).a }}{{ dict([('b', 2)]).b }}", "12"),
        ("{% set ns = namespace(self=1) %}{% set ns.x = 2 %}{{ ns.self + ns.x }}", "3"),
        ("{% set ns = namespace({'x': 1}, y=2) %}{{ ns.x }}{{ ns.y }}", "12"),
        ("{{ {'é': '<&>'}|tojson }}", '{"é": "<&>"}'),
        ("{{ {'b': [1], 'a': none}|tojson(indent=1, sort_keys=true) }}",
         '{\n "a": null,\n "b": [\n  1\n ]\n}'),
        ("{{ [1, 2]|tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{% for i in range(4) %}{% if i==1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "023"),
        ("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("a\n    {% if true %}\nb\n    {% endif %}\nc", "a\nb\nc"),
        ("{{ 2 * 3 }}{{ 2 ** 3 }}{{ 7 % 4 }}{{ '%s-%s' % (1, 2) }}{{ 'a' * 3 }}", "6831-2aaa"),
        ("{{ documents is none }}{{ tools is none }}{{ absent is defined }}", "TrueTrueFalse"),
    ],
)  # fmt: skip
def test_what_templates_can_rely_on(template, expected):
    assert rendered(template, loss_on="all") == (expected, [expected])
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(plain_json()))
    assert (
        theirs.apply_chat_template(HI["messages"], chat_template=template, tokenize=False)
        == expected
    )


def test_a_template_is_found_where_a_tokenizer_keeps_it(tmp_path):
    model = write_tokenizer(tmp_path / "model", "config {{ bos_token }}")
    assert texts(renderer_of(Chat(loss_on="all"), model), HI) == ["config <s>"]
    assert texts(renderer_of(Chat(loss_on="all"), model / "tokenizer.json"), HI) == ["config <s>"]
    (model / "chat_template.jinja").write_text("file {{ eos_token }}")
    assert texts(renderer_of(Chat(loss_on="all"), model), HI) == ["file </s>"]
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "chat.txt"
    other.write_text("other {{ bos_token }}")
    for template, expected in (
        (other, "other <s>"),
        (str(other), "other <s>"),
        ("text {{ bos_token }}", "text <s>"),
        (model, "file </s>"),
        (model / "tokenizer_config.json", "config <s>"),
    ):
        chat = Chat(template=template, loss_on="all")
        assert texts(renderer_of(chat, model), HI) == [expected]


@pytest.mark.parametrize("form", ["list", "dict", "files"])
def test_a_tokenizer_may_have_a_template_for_tools(tmp_path, form):
    both = {"default": "plain", "tool_use": "{{ tools[0].function.name }}", "rag": "no"}
    found = [{"name": name, "template": template} for name, template in both.items()]
    model = write_tokenizer(tmp_path / "model", found if form == "list" else both)
    if form == "files":
        (model / "chat_template.jinja").write_text("plain")
        (model / "additional_chat_templates").mkdir()
        (model / "additional_chat_templates" / "tool_use.jinja").write_text(both["tool_use"])
    renderer = renderer_of(Chat(loss_on="all"), model)
    assert texts(renderer, HI, WITH_TOOLS) == ["plain", "get_weather"]


def test_the_tokenizers_of_transformers_bring_their_template(tmp_path):
    backend = tokenizers.Tokenizer.from_str(plain_json())
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    with pytest.raises(UsageError, match="has no chat template; name one with"):
        renderer_of(Chat(), theirs)
    theirs.chat_template = MARKED_PARTS
    path = write_rows(tmp_path / "chats.jsonl", [ROWS["reasoning"]])
    millstream.tokenize(path, theirs, tmp_path / "out", chat=Chat(), workers=1)
    expected = theirs.apply_chat_template(
        ROWS["reasoning"]["messages"], return_dict=True, return_assistant_tokens_mask=True
    )
    found = millstream.open(tmp_path / "out").document(0)
    assert found["token"].tolist() == expected["input_ids"]
    assert found["loss_mask"].tolist() == expected["assistant_masks"]


def test_variables_reach_the_template_and_come_before_special_tokens():
    template = "{{ bos_token }}{{ enable_thinking }}"
    source = TemplateSource(default=template, variables={"bos_token": "<s>"})
    chat = Chat(loss_on="all", variables={"enable_thinking": False, "bos_token": "<x>"})
    assert texts(ChatRenderer(chat, source), HI) == ["<x>False"]


def test_all_marked_blocks_of_the_last_turn_are_trained():
    turns = [{"role": "assistant", "content": each, "reasoning": f"r {each}"} for each in "bd"]
    asked = [{"role": "user", "content": each} for each in "ac"]
    row = {"messages": [asked[0], turns[0], asked[1], turns[1]]}
    assert rendered(MARKED_PARTS, row, loss_on="last")[1] == ["<think>r d</think>", "d"]
    with pytest.raises(BadConversationError, match="messages 0 to 2 differently if an answer"):
        rendered("{{ messages|length }}" + MARKED_PARTS, row, loss_on="last")


def test_a_date_may_be_a_variable_instead():
    template = "{{ date_string if date_string is defined else strftime_now('%Y') }}"
    assert rendered(template, loss_on="all", variables={"date_string": "May"})[0] == "May"
    assert rendered(template, loss_on="all", date="2026-01-31")[0] == "2026"


def test_special_tokens_may_be_named_in_a_file_of_their_own(tmp_path):
    model = write_tokenizer(tmp_path / "model", "{{ bos_token }}{{ eos_token }}", bos_token=None)
    named = {"bos_token": {"content": "<s>"}, "eos_token": "<|end|>"}
    (model / "special_tokens_map.json").write_text(json.dumps(named))
    assert texts(renderer_of(Chat(loss_on="all"), model), HI) == ["<s></s>"]


def test_special_tokens_that_only_the_config_lists_are_refused(tmp_path):
    known = json.loads(plain_json())["model"]["vocab"]["<s>"]
    listed = {str(known): {"content": "<s>"}, "7777": {"content": "<|lost|>", "special": True}}
    model = write_tokenizer(tmp_path / "model", CHATML_MARKED, added_tokens_decoder=listed)
    write_rows(tmp_path / "chats.jsonl", [HI])
    with pytest.raises(FormatError, match=r"lists the token '<\|lost\|>' with the id 7777"):
        millstream.tokenize(tmp_path / "chats.jsonl", model, tmp_path / "out", chat=Chat())


def test_the_last_marked_block_alone_is_trained():
    row = said("a", "b", "c", "d")
    whole, trained = rendered(CHATML_MARKED, row, loss_on="last")
    assert trained == ["d<|im_end|>"]
    assert rendered(CHATML_MARKED, row)[1] == ["b<|im_end|>", "d<|im_end|>"]
    assert rendered(CHATML_MARKED, row, loss_on="all")[1] == [whole]


def test_marks_in_a_macro_are_refused_unless_they_are_where_their_text_is():
    block = "{% generation %}{{ m.content }}{% endgeneration %}"
    loop = "{% for m in messages %}<{{ f(m) }}>{% endfor %}"
    macro = "{% macro f(m) %}MACRO{% endmacro %}".replace("MACRO", block)
    assert rendered(macro + loop) == ("<Hi.><Hello!>", ["Hi.", "Hello!"])
    macro = "{% macro f(m) %}MACRO{% endmacro %}".replace("MACRO", "header " + block)
    with pytest.raises(BadConversationError, match="a generation block in a macro"):
        rendered(macro + loop)
    assert rendered(macro + loop, loss_on="all")[0] == "<header Hi.><header Hello!>"


def test_turns_that_write_nothing_are_not_trained():
    template = (
        "{% for m in messages if m.content %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]
    row = {"messages": [*messages, {"role": "assistant", "content": "b"}]}
    assert rendered(template, row) == ("<user>a<assistant>b", ["b"])
