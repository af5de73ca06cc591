"""A template that is run once for each shape writes what it writes for each conversation."""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millstream.errors import FormatError
from millstream.text.chats.chat import Chat
from millstream.text.chats.conversations import BadConversationError, Conversation
from millstream.text.chats.rendering import ChatRenderer
from millstream.text.chats.template import TemplateRefusalError
from millstream.text.chats.template_files import TemplateSource
from tests.helpers.chat_templates import TEMPLATES

# What templates look for, and what may be confused with markup, names, or nothing.
TELLING = [
    "", " ", "\n", "a", "A", "hi", " hi ", "\n\nhi\n", "<b>", "&amp;", "0", "1", "None", "role",
    "user", "content", "length", "strip", "pieces", "x", "%s", "{}", "{{ x }}", "<think>y</think>z",
    "é", "e\u0301", "日本", "😀", "\u00a0a\u00a0", "\u2028", "\x00",
]  # fmt: skip
CONTENTS = st.one_of(st.sampled_from(TELLING), st.text(st.characters(codec="utf-8"), max_size=8))
ROLES = st.sampled_from(["system", "user", "assistant", "assistant", "tool", "Ä"])


@st.composite
def conversations(draw, max_size=5):
    """Messages in any order of roles; some have their content first."""
    messages = []
    for role in draw(st.lists(ROLES, min_size=1, max_size=max_size)):
        message = {"role": role, "content": draw(CONTENTS)}
        if draw(st.integers(0, 9)) == 0:
            message = dict(reversed(message.items()))
        messages.append(message)
    return messages


def renderer_of(template, **options):
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatRenderer(Chat(**options), TemplateSource(default=template, variables=variables))


def outcome(render, turns):
    try:
        return render(turns)
    except (BadConversationError, TemplateRefusalError):
        return "refused"


WITH_ADDRESS = ("object", "function", "method")
"""what Python writes of values that have no text but an address, which is never the same"""


def assert_same(renderer, messages, num_given=0):
    turns = Conversation(messages, None, num_given)
    alone = outcome(renderer._render_alone, turns)
    letters = "".join(filter(str.isalpha, str(alone).lower()))
    if not any(word in letters or word[::-1] in letters for word in WITH_ADDRESS):
        assert outcome(renderer._render_turns, turns) == alone


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_template_writes_the_same_for_a_shape_and_for_each_conversation(name, data):
    loss_on = data.draw(st.sampled_from(["assistant", "last", "all"]))
    renderer = renderer_of(TEMPLATES[name], loss_on=loss_on, date="2026-01-31")
    for _ in range(3):  # the second may find the shape of the first
        messages = data.draw(conversations())
        assert_same(renderer, messages, data.draw(st.integers(0, len(messages) - 1)))


def alternating(*contents):
    return [{"role": ("user", "assistant")[k % 2], "content": c} for k, c in enumerate(contents)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_most_templates_are_run_once_for_a_shape(name, monkeypatch):
    renderer = renderer_of(TEMPLATES[name], loss_on="all", date="2026-01-31")
    renderer.render({"messages": alternating("a", "b", "c", "d")})
    monkeypatch.setattr(renderer, "_render_alone", None)
    messages = {"messages": alternating("one", "two", "three", "four")}
    if name in ("looks inside", "qwen 3", "qwen 3, marked"):
        with pytest.raises(TypeError):
            renderer.render(messages)
    else:
        ((text, _),) = renderer.render(messages)
        assert all(each.encode() in text for each in ("one", "two", "three", "four"))


def test_conversations_of_one_shape_keep_their_own_contents():
    renderer = renderer_of("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    texts = [renderer.render({"messages": alternating(str(k), "é" * k)}) for k in range(1, 5)]
    assert [text for ((text, _),) in texts] == [f"<{k}><{'é' * k}>".encode() for k in range(1, 5)]
    assert [trained for ((_, trained),) in texts] == [[(3, 5 + 2 * k)] for k in range(1, 5)]


# Templates that look at contents in ways that once went unnoticed.
@pytest.mark.parametrize(
    "statement",
    [
        "{{ m.content.pieces }}",
        "{{ m.content|attr('pieces') }}",
        "{{ m.content.strip(none, none) }}",
        "{{ []|sum(start=m.content) }}",
        "{{ m.role % m.content }}",
        "{{ 'a' * m.content }}",
        "{{ m.content + ('<b>'|safe) }}",
        "{{ ('<b>'|safe) + m.content }}",
        "{{ ('a'|safe|string) + '<' }}{{ m.content }}",
        "{% autoescape true %}{{ m.content }}{% endautoescape %}",
        "{% autoescape true %}{{ m.content ~ ('<'|e) ~ '<' }}{% endautoescape %}",
        "{{ namespace(hi='x')[m.content] }}",
        "{{ loop[m.content] }}",
        "{{ 5[m.content] }}",
        "{% set y %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}header{{ y }}",
        "{% macro f() %}h{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}{{ f() }}",
        "{% generation %}a{% generation %}{{ m.content }}{% endgeneration %}{% endgeneration %}",
        "{% generation %}{% generation %}{{ m.content }}{% endgeneration %}b{% endgeneration %}",
    ],
)
def test_contents_are_not_looked_at_unnoticed(statement):
    renderer = renderer_of("{% for m in messages %}" + statement + "{% endfor %}")
    for contents in (("hi", "<a>"), ("length", "real"), ("x", "<y>")):
        assert_same(renderer, alternating(*contents))


# Expressions that read the content of a message in every way that Jinja has.


def words(text):
    return text.split()


FILTERS = words(
    """abs attr batch capitalize center count d default dictsort e escape filesizeformat first
    float forceescape format groupby indent int items join last length list lower map max min
    pprint reject rejectattr replace reverse round safe select selectattr slice sort string
    striptags sum title tojson trim truncate unique upper urlencode urlize wordcount wordwrap
    xmlattr"""
)
TESTS = words(
    """boolean callable defined divisibleby eq escaped even false filter float ge gt in integer
    iterable le lower lt mapping ne none number odd sameas sequence string test true undefined
    upper"""
)
NAMES = words(
    """strip lstrip rstrip upper lower title split splitlines startswith endswith replace find
    count index format join isdigit pieces encode length keys items get content role"""
)
ATOMS = words(
    """m.content m.content m.content m['content'] messages[0].content messages[-1]['content'] m
    m.role m.absent messages 'a' 'hi' '' '\\n' '<b>' '%s' '{}' 'content' 'strip' 0 1 2 true none []
    {} ns loop ns.x bos_token range(2) joiner(m.content) cycler(m.content,'b') dict(a=m.content)
    namespace(hi=m.content) loop.index0 loop.last loop.previtem.content loop.nextitem"""
)
OPERATORS = words("+ ~ ~ + == != < >= in and or * % -")


def compound(inner):
    """What can be made of smaller expressions; X, Y and Z stand for them."""
    forms = [
        *(f"(X {operator} Y)" for operator in OPERATORS),
        *(f"(X|{name})" for name in FILTERS),
        *(f"(X|{name}(Y))" for name in FILTERS),
        *(
            f"(X|{kind}('{name}', Y)|list)"
            for kind in ("map", "select")
            for name in FILTERS + TESTS
        ),
        *(f"(X|{name}(attribute=Y))" for name in words("map sort groupby unique sum min max")),
        *(f"(X is {name})" for name in TESTS),
        *(f"(X is {name}(Y))" for name in TESTS),
        *(f"X.{name}" for name in NAMES),
        *(f"X.{name}()" for name in NAMES),
        *(f"X.{name}(Y)" for name in NAMES),
        *("(X|sum(start=Y))", "(X|default(Y, true))", "X[Y]", "X[Y:]", "X[:Y]", "(X if Y else Z)"),
        *("(not X)", "[X]", "[X, Y]", "{X: Y}", "'%s' % X", "X.strip(Y, Z)", "{'a': X}"),
    ]
    parts = st.tuples(st.sampled_from(forms), inner, inner, inner)
    return parts.map(lambda each: re.sub("[XYZ]", lambda x: each["_XYZ".index(x[0])], each[0]))


EXPRESSIONS = st.recursive(st.sampled_from(ATOMS), compound, max_leaves=4)
# What a template does with an expression.
STATEMENTS = [
    "{{ EXPR }}",
    "{% if EXPR %}yes{% else %}no{% endif %}{{ m.content }}",
    "{% set y = EXPR %}{{ y }}{{ y }}",
    "{% set y %}{{ EXPR }}{% endset %}{{ y }}",
    "{% set y %}{{ EXPR }}{% endset %}{% if y %}[{{ y|trim }}]{% endif %}",
    "{% set y | upper %}{{ EXPR }}{% endset %}{{ y }}",
    "{% set ns.x = EXPR %}{{ ns.x }}",
    "{% set ns.x = ns.x ~ EXPR %}{{ ns.x }}",
    "{% for z in EXPR %}{{ z }}{% if loop.changed(z) %}!{% endif %},{% endfor %}",
    "{% for y, z in EXPR %}{{ y }}={{ z }}{% else %}none{% endfor %}",
    "{% filter trim %}{{ EXPR }}{% endfilter %}",
    "{% filter replace('a', 'b') %}{{ EXPR }}{% endfilter %}",
    "{% macro f(a, b='<') %}{{ a }}{{ b }}{% endmacro %}{{ f(EXPR) }}{{ f(m.content, b=EXPR) }}",
    "{% macro f() %}{{ caller('<') }}{% endmacro %}{% call(z) f() %}{{ EXPR }}{{ z }}{% endcall %}",
    "{% with y = EXPR %}{{ y ~ m.content }}{% endwith %}",
    "{% autoescape true %}{{ EXPR }}{% endautoescape %}",
    "{% generation %}{{ EXPR }}{% endgeneration %}",
    "a{% generation %}b{{ m.content }}{% endgeneration %}{{ EXPR }}",
    "{% set y %}{% generation %}{{ EXPR }}{% endgeneration %}{% endset %}{{ y }}",
    "{% set y %}h{% generation %}{{ EXPR }}{% endgeneration %}{% endset %}{{ y }}{{ y }}",
    "{% generation %}{% generation %}{{ EXPR }}{% endgeneration %}b{% endgeneration %}",
    "{% block y scoped %}{{ EXPR }}{% endblock %}{{ self.y() }}",
    "{% if loop.changed(EXPR) %}{{ m.role }}{% endif %}",
    "{% if EXPR %}{% continue %}{% endif %}{{ m.content }}",
    "{% include EXPR %}",
    "{% if not loop.first %}{{ raise_exception(EXPR) }}{% endif %}",
]
LOOP = (
    "{% set ns = namespace(x='') %}{% for m in messages %}STATEMENT{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
RECURSIVE = (
    "{% set ns = namespace(x='') %}{% for m in messages[:1] recursive %}STATEMENT"
    "{% if loop.depth < 3 %}{{ loop(messages[1:]) }}{% endif %}{% endfor %}"
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_template_is_filled_in_wrongly(data):
    statement = data.draw(st.sampled_from(STATEMENTS)).replace("EXPR", data.draw(EXPRESSIONS))
    loop = data.draw(st.sampled_from([LOOP, LOOP, LOOP, RECURSIVE]))
    loss_on = data.draw(st.sampled_from(["assistant", "last", "all"]))
    try:
        renderer = renderer_of(loop.replace("STATEMENT", statement), loss_on=loss_on)
    except FormatError:  # some expressions do not go together
        assume(False)
    for _ in range(2):
        assert_same(renderer, data.draw(conversations(max_size=3)))
