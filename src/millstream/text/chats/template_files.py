"""Finds the chat template of a tokenizer: in its directory, in a file, or in a Python object."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.formats.files import read_whole

CONFIG, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
_SPECIAL_TOKENS_FILE = "special_tokens_map.json"
_TEMPLATE_WITH_TOOLS = Path("additional_chat_templates", "tool_use.jinja")
SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_DEFAULT, _WITH_TOOLS = "default", "tool_use"


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateSource:
    """A chat template before it is compiled."""

    default: str
    """the Jinja source"""
    with_tools: str | None = None
    """the one for conversations with tools, if the tokenizer has two"""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """the names of special tokens, for the template"""
    where: str = ""
    """for messages"""


def find_template(template: str | os.PathLike[str] | None, tokenizer: Any) -> TemplateSource:
    """Return the template that is asked for, or that the tokenizer comes with.

    `template` is a directory with a tokenizer's files, a file, the text of a template, or None.
    `tokenizer` is what the user calls the tokenizer: a path, or an object, such as transformers'.
    """
    of_tokenizer = _variables_of(tokenizer)
    if template is None:
        if str(tokenizer) == "bytes":
            raise UsageError(
                'the tokenizer "bytes" has no chat template; name one with template=… '
                "(--chat-template)"
            )
        if isinstance(tokenizer, str | os.PathLike):
            return _from_directory(_directory_of(Path(tokenizer)))
        return _from_object(tokenizer)
    if isinstance(template, str) and ("{{" in template or "{%" in template):
        return TemplateSource(default=template, variables=of_tokenizer, where="the chat template")
    path = Path(template)
    if path.is_dir():
        return _from_directory(path)
    if not path.is_file():
        raise MissingDataError(
            f"{path}: no such file or directory; a chat template is a directory with {CONFIG} or "
            f"{TEMPLATE_FILE}, or a file in Jinja's language"
        )
    if path.suffix == ".json":
        return _from_config(path, _read_json(path), {})
    variables = {**of_tokenizer, **_special_tokens(_config_of(path.parent))}
    return TemplateSource(default=_read(path), variables=variables, where=str(path))


def _directory_of(tokenizer: Path) -> Path:
    return tokenizer if tokenizer.is_dir() else tokenizer.parent


def _config_of(directory: Path) -> dict[str, Any]:
    """The settings of a tokenizer; older ones have a file of special tokens besides."""
    files = [directory / name for name in (_SPECIAL_TOKENS_FILE, CONFIG)]
    settings = [_read_json(file) for file in files if file.exists()]
    return {name: value for each in settings for name, value in each.items() if value is not None}


def _from_directory(directory: Path) -> TemplateSource:
    config, found = directory / CONFIG, _config_of(directory)
    file = directory / TEMPLATE_FILE
    if file.exists():
        with_tools = directory / _TEMPLATE_WITH_TOOLS
        return TemplateSource(
            default=_read(file),
            with_tools=_read(with_tools) if with_tools.exists() else None,
            variables=_special_tokens(found),
            where=str(file),
        )
    return _from_config(config, found, _special_tokens(found))


def _from_config(
    path: Path, config: Mapping[str, Any], variables: Mapping[str, Any]
) -> TemplateSource:
    found = config.get("chat_template")
    variables = variables or _special_tokens(config)
    if isinstance(found, str):
        return TemplateSource(default=found, variables=variables, where=str(path))
    if found is None:
        raise UsageError(
            f"{path.parent}: the tokenizer has no chat template (no {TEMPLATE_FILE}, and no "
            f"chat_template in {CONFIG}); name one with template=… (--chat-template)"
        )
    named = _named_templates(path, found)
    if _DEFAULT not in named:
        raise UsageError(
            f"{path}: chat_template has {', '.join(named) or 'no templates'}, and none is named "
            f"{_DEFAULT!r}; put the one to use into a file, and name it with template=… "
            "(--chat-template)"
        )
    return TemplateSource(
        default=named[_DEFAULT],
        with_tools=named.get(_WITH_TOOLS),
        variables=variables,
        where=str(path),
    )


def _named_templates(path: Path, found: Any) -> dict[str, str]:
    """Several templates, as transformers stores them: a list of names and templates, or a dict."""
    try:
        named = (
            dict(found)
            if isinstance(found, dict)
            else {each["name"]: each["template"] for each in found}
        )
    except (TypeError, KeyError):
        named = {"": None}
    if not all(isinstance(text, str) for text in (*named, *named.values())):
        raise FormatError(
            f"{path}: chat_template is {found!r:.60}; expected a text, or a list of objects with "
            "name and template"
        )
    return named


def _from_object(tokenizer: Any) -> TemplateSource:
    found, name = getattr(tokenizer, "chat_template", None), type(tokenizer).__name__
    if found is None:
        raise UsageError(
            f"the tokenizer, a {name}, has no chat template; name one with Chat(template=…)"
        )
    return _from_config(Path(name), {"chat_template": found}, _variables_of(tokenizer))


def _variables_of(tokenizer: Any) -> dict[str, str]:
    """The names of the special tokens of a tokenizer, if it tells them."""
    if isinstance(tokenizer, str | os.PathLike) and str(tokenizer) != "bytes":
        return _special_tokens(_config_of(_directory_of(Path(tokenizer))))
    found = getattr(tokenizer, "special_tokens_map", None)
    return _special_tokens(found) if isinstance(found, Mapping) else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a config names, as text or as an object with `content`."""
    named = {name: config.get(name) for name in SPECIAL_TOKENS}
    texts = {
        name: value.get("content") if isinstance(value, Mapping) else value
        for name, value in named.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _read(path: Path) -> str:
    try:
        return read_whole(path).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a text in UTF-8 ({error})") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path}: expected a JSON object; found {found!r:.60}")
    return found
