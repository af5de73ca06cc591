"""Help texts have one style: sentence case, and no period at the end."""

import argparse

import pytest

from millstream.cli import _COMMANDS, main


def help_texts(command, monkeypatch):
    """The help of every option of a command."""
    texts = {}
    add_argument = argparse.ArgumentParser.add_argument

    def note(self, *names, **options):
        texts[names] = options.get("help")
        return add_argument(self, *names, **options)

    monkeypatch.setattr(argparse._ActionsContainer, "add_argument", note)
    with pytest.raises(SystemExit):
        main([command, "--help"])
    return texts


@pytest.mark.parametrize("command", sorted(_COMMANDS))
def test_every_option_is_explained_in_one_style(command, monkeypatch, capsys):
    texts = help_texts(command, monkeypatch)
    assert len(texts) > 1
    assert {k: v for k, v in texts.items() if not v or v[0].islower() or v[-1] == "."} == {}
    assert capsys.readouterr().out.startswith(f"usage: millstream {command}")
