"""`millstream tokenize` with conversations, as a newcomer meets it."""

import json
import sys

import pytest

import millstream
from millstream.cli import main
from millstream.text.chats import template
from tests.helpers.chat_rows import ROWS, said, write_rows, write_tokenizer
from tests.helpers.chat_templates import TEMPLATES


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with chats and tokenizers, in which commands run."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "chats.jsonl", [said("Hi.", "Hello!"), ROWS["thinking in contents"]])
    write_rows(tmp_path / "pairs.jsonl", [{"p": "2+2?", "c": "4", "r": "5"}])
    write_tokenizer(tmp_path / "model", TEMPLATES["chatml, marked"])
    write_tokenizer(tmp_path / "bare")
    write_tokenizer(tmp_path / "rewriting", TEMPLATES["qwen 3"])
    write_tokenizer(tmp_path / "dated", TEMPLATES["harmony"])
    (tmp_path / "chat.jinja").write_text(TEMPLATES["alpaca"])
    (tmp_path / "plain.txt").write_text("Hi.")
    return tmp_path


def run(command, capsys):
    code = main(["tokenize", *command.split(), "--out", "out", "--workers", "1"])
    return code, "".join(capsys.readouterr())


def text_of(number=0):
    data = millstream.open("out")
    return data.tokenizer.decode(data.document(number)["token"])


@pytest.mark.usefixtures("place")
def test_the_command_of_the_documentation(capsys):
    command = "chats.jsonl --messages messages --chat-template model --loss-on assistant"
    code, printed = run(command, capsys)
    assert code == 0
    assert "out: 2 documents" in printed
    assert "trained on: " in printed
    assert text_of() == "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"


def test_help_shows_it(capsys):
    with pytest.raises(SystemExit):
        main(["tokenize", "--help"])
    printed = capsys.readouterr().out
    assert "--messages messages --chat-template TOKENIZER_DIR" in printed
    for option in ("--loss-on", "--completion", "--rejected", "--tools", "--chat-date"):
        assert option in printed


@pytest.mark.usefixtures("place")
def test_options_reach_the_chat(capsys):
    command = "pairs.jsonl --prompt p --chosen c --rejected r --tokenizer model --loss-on all"
    assert run(f"{command} --chat-template chat.jinja", capsys)[0] == 0
    assert text_of(1) == "### Instruction:\n2+2?\n\n\n### Response:\n5</s>\n\n\n"
    assert millstream.open("out").document(1)["loss_mask"].all()


@pytest.mark.usefixtures("place")
def test_variables_and_dates_reach_the_template(place, capsys):
    written = "{{ strftime_now('%d.%m.%Y') }} {{ x is false }} {{ y }} {{ z|tojson }}"
    (place / "chat.jinja").write_text(written)
    command = "chats.jsonl --messages messages --tokenizer model --chat-template chat.jinja"
    given = "--chat-date 2026-01-31 --chat-variable x=false --chat-variable y=high"
    code, printed = run(f'{command} --loss-on all {given} --chat-variable z={{"a":1}}', capsys)
    assert code == 0, printed
    assert text_of() == '31.01.2026 True high {"a": 1}'


@pytest.mark.usefixtures("place")
def test_rows_without_an_answer_are_pointed_out(place, capsys):
    write_rows(place / "chats.jsonl", [said("Hi."), said("Hi.", "Hello!")])
    _, printed = run("chats.jsonl --messages messages --chat-template model", capsys)
    assert "nothing to train on: 1 of 2 conversations" in printed


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "chats.jsonl --messages messages --chat-template bare",
            ["no chat template", "(--chat-te"],
        ),
        ("chats.jsonl --messages chat --chat-template model", ["'chat'; they have messages"]),
        ("chats.jsonl --chosen a --rejected b --chat-template model", ["'a'; they have messages"]),
        ("chats.jsonl --tokenizer model", ["'text'", "--messages messages"]),
        (
            "chats.jsonl --messages messages --chat-template rewriting",
            ["line 2: the template writes messages 0 to 1 differently", "{% generation %}"],
        ),
        ("chats.jsonl --messages messages --chat-template dated", ["today's date", "--chat-date"]),
        ("chats.jsonl --messages messages", ["name a tokenizer: --tokenizer FILE"]),
        (
            "chats.jsonl --messages messages --chat-template chat.jinja",
            ["name a tokenizer: --tokenizer FILE ('chat.jinja' is not a directory with one)"],
        ),
        ("chats.jsonl --messages messages --tokenizer bytes", ['"bytes" has no chat template']),
        (
            "chats.jsonl --messages messages --tokenizer model --chat-template absent",
            ["absent: no such file or directory; a chat template is a directory with"],
        ),
        ("chats.jsonl --loss-on last --tokenizer model", ["name their column, as in --messages"]),
        ("chats.jsonl --prompt p --tokenizer model", ["prompt", "completion; or chosen"]),
        ("plain.txt --messages messages --tokenizer model", ["JSONL or Parquet, not from plain"]),
        (
            "chats.jsonl --messages messages --tokenizer model --chat-template none",
            ["messages need a chat template"],
        ),
    ],
)
def test_mistakes_are_explained_in_a_line(capsys, command, expected):
    code, printed = run(command, capsys)
    assert code == 1
    assert len(printed.splitlines()) == 1
    assert printed.startswith("millstream tokenize: ")
    for part in expected:
        assert part in printed


@pytest.mark.usefixtures("place")
def test_a_variable_without_a_value_is_explained(capsys):
    command = "chats.jsonl --messages messages --tokenizer model --chat-variable thinking"
    try:
        code, printed = run(command, capsys)
    except SystemExit as end:
        code, printed = end.code, "".join(capsys.readouterr())
    assert code != 0
    assert "'thinking' is not like NAME=VALUE" in printed


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("version", [None, "3.1.4"])
def test_jinja_is_asked_for(capsys, monkeypatch, version):
    template.jinja2.cache_clear()
    if version is None:
        monkeypatch.setitem(sys.modules, "jinja2", None)
    else:
        monkeypatch.setattr("jinja2.__version__", version)
    code, printed = run("chats.jsonl --messages messages --chat-template model", capsys)
    template.jinja2.cache_clear()
    assert code == 1
    how = "pip install 'millstream[text]'" if version is None else "pip install -U jinja2"
    assert printed.startswith("millstream tokenize: ")
    assert how in printed


@pytest.mark.usefixtures("place")
def test_skipped_rows_are_listed_with_their_reasons(place, capsys):
    rows = [said("Hi.", "Hello!"), {"messages": []}, {"messages": [{"role": "user"}]}]
    (place / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = "chats.jsonl --messages messages --chat-template model --bad-rows skip"
    code, printed = run(command, capsys)
    assert code == 0
    assert "left out: 2 bad rows" in printed
    assert "line 2: 'messages' is an empty list" in printed
    assert "line 3: 'messages', message 0: says nothing" in printed
