"""Hostile chat templates, which come with any tokenizer: none leaves the sandbox or hangs loading.

What a template may do is write text. A template that tries more is refused with each conversation
it tries it on, or writes nothing in its place, as Jinja's sandbox does with attributes it hides.
"""

import json

import pytest

import millstream
from millstream.errors import FormatError, MillstreamError, MissingDataError, UsageError
from millstream.text.chats.chat import Chat
from millstream.text.chats.conversations import BadConversationError
from millstream.text.chats.loading import renderer_of
from millstream.text.chats.rendering import ChatRenderer
from millstream.text.chats.template_files import TemplateSource
from tests.helpers.chat_rows import said, write_rows, write_tokenizer

ROW = said("Hi.", "Hello!")


def renderer_for(template):
    return ChatRenderer(Chat(loss_on="all"), TemplateSource(default=template, where="evil.jinja"))


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ (messages|groupby('role'))[0].__class__.__base__ }}",
    "{{ raise_exception.__globals__['__builtins__'] }}",
    "{{ lipsum.__globals__.os }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.fromkeys.__globals__.os }}",
    "{{ dict.__class__.__base__ }}",
    "{{ range.__class__.__base__ }}",
    "{{ ('' | attr('__class__')).__mro__ }}",
    "{{ (messages | map(attribute='__class__') | first).__mro__ }}",
    "{{ (messages | map('attr', '__class__') | first).__mro__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{% macro f() %}{{ varargs.__class__.__base__ }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "{% for m in messages %}{{ loop._iterator.__class__.__base__ }}{% endfor %}",
    "{{ namespace(__class__=1) }}",
    "{{ namespace({'__html__': range}) }}",
    "{% set ns = namespace() %}{% set ns.__html__ = range %}{{ ns|e }}",
    "{{ url_for.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}",
    "{% from '/etc/passwd' import x %}",
    "{% extends '/etc/passwd' %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ messages.sort() }}",
    "{{ messages[0].pop('content') }}",
    "{% set _ = messages.clear() %}{{ _ }}",
    "{% for i in range(1000000000) %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(x) %}{{ caller() }}{% endmacro %}{{ f(1) }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_the_sandbox_is_not_left(template):
    row = json.loads(json.dumps(ROW))
    with pytest.raises(BadConversationError, match="the chat template refuses it"):
        renderer_for(template).render(row)
    assert row == ROW


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ messages[0]['__class__'] }}",
        "{{ lipsum.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ '{x.__class__}'.format_map({'x': messages}) }}",
        "{{ '{0.__class__}'|attr('format')(messages) }}",
        "{% set write = '{0.__class__}'.format %}{{ write(messages) }}",
        "{{ self._TemplateReference__context }}",
        "{{ config }}{{ request }}{{ os }}{{ open }}{{ __import__ }}{{ eval }}",
    ],
)
def test_what_the_sandbox_hides_is_written_as_nothing(template):
    ((text, _),) = renderer_for(template).render(ROW)
    assert text == b""


@pytest.mark.parametrize(
    "template",
    [
        "{{ 9**9**9 }}",
        "{{ 'a' * 100000000000 }}",
        "{{ '%99999999999d' % 1 }}",
        "{% set x = [0] * 100000000000 %}",
    ],
)
def test_nothing_large_is_computed_while_a_template_is_loaded(template):
    ((text, _),) = renderer_for("{% if false %}" + template + "{% endif %}x").render(ROW)
    assert text == b"x"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}", "evil.jinja: line 1: Unexpected end of template"),
        ("\n\n{{ x|nope }}", "evil.jinja: line 3: No filter named 'nope'"),
        ("{% generation %}", "evil.jinja: line 1"),
        ("{% do messages.append(1) %}", "evil.jinja: line 1: .*unknown tag 'do'"),
        ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "cannot compile .*RecursionError"),
        ("{% for a in x %}" * 25 + "{% endfor %}" * 25, "too many statically nested blocks"),
        ("{% if x %}" * 200 + "{% endif %}" * 200, "evil.jinja: Jinja cannot compile"),
        ("x" * 100_000_000, "100,000,000 characters; at most 1,048,576 are allowed"),
    ],
    ids=range(8),
)
def test_templates_that_are_none_are_refused(template, message):
    with pytest.raises(FormatError, match=message):
        renderer_for(template)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not a text in UTF-8"),
        (b"[]", "expected a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b"{}", "the tokenizer has no chat template"),
        (b'{"chat_template": null}', "the tokenizer has no chat template"),
        (b'{"chat_template": 3}', "chat_template is 3; expected a text, or a list"),
        (b'{"chat_template": [3]}', "expected a text, or a list"),
        (b'{"chat_template": [{"name": "default"}]}', "expected a text, or a list"),
        (b'{"chat_template": [{"name": 1, "template": "x"}]}', "expected a text, or a list"),
        (b'{"chat_template": {"default": 1}}', "expected a text, or a list"),
        (b'{"chat_template": []}', "has no templates, and none is named 'default'"),
        (b'{"chat_template": {"rag": "x"}}', "has rag, and none is named 'default'"),
    ],
)
def test_broken_configs_are_refused(tmp_path, content, message):
    model = write_tokenizer(tmp_path / "model")
    (model / "tokenizer_config.json").write_bytes(content)
    path = write_rows(tmp_path / "chats.jsonl", [ROW])
    with pytest.raises(MillstreamError, match=message):
        renderer_of(Chat(), model)
    with pytest.raises(MillstreamError):
        millstream.tokenize(path, model, tmp_path / "out", chat=Chat(), workers=1)
    assert not (tmp_path / "out").exists()


def test_special_tokens_of_wrong_types_are_no_variables(tmp_path):
    config = {"bos_token": {"content": "<s>"}, "eos_token": 3, "pad_token": {"content": 4}}
    model = write_tokenizer(tmp_path / "model", "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}")
    (model / "tokenizer_config.json").write_text(
        json.dumps(config | {"chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}"})
    )
    ((text, _),) = renderer_of(Chat(loss_on="all"), model).render(ROW)
    assert text == b"<s>||"


def test_files_that_are_no_templates_are_refused(tmp_path):
    model = write_tokenizer(tmp_path / "model")
    binary = tmp_path / "chat.jinja"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(FormatError, match=r"chat\.jinja: not a text in UTF-8"):
        renderer_of(Chat(template=binary), model)
    with pytest.raises(
        MissingDataError, match="absent: no such file or directory; a chat template"
    ):
        renderer_of(Chat(template=tmp_path / "absent"), model)
    with pytest.raises(UsageError, match="the tokenizer has no chat template"):
        renderer_of(Chat(template=model), model)


@pytest.mark.parametrize("date", ["today", "2026-13-01", "2026-01-31 ", 3])
def test_dates_that_are_none_are_refused(tmp_path, date):
    model = write_tokenizer(tmp_path / "model", "{{ strftime_now('%Y') }}")
    with pytest.raises(UsageError, match=r"date is .*; expected a day such as '2026-01-31'"):
        Chat(date=date)
    renderer = renderer_of(Chat(), model)
    with pytest.raises(UsageError, match="choose a day with date='2026-01-31'"):
        renderer.render({"messages": [{"role": "user", "content": "a"}]})
