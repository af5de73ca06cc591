"""`ChatTemplate`: turns a conversation into text, as transformers' `apply_chat_template` does.

Templates are untrusted programs in Jinja's language. They run in Jinja's sandbox, which changes no
data and reaches no Python objects but those of the conversation.

Templates may mark what the model writes: `{% generation %}…{% endgeneration %}`.
"""

import importlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from millstream.errors import FormatError, UsageError

Messages = Sequence[Mapping[str, Any]]

_DATE_FUNCTION = "strftime_now"
_MAX_CHARACTERS = 1 << 20  # the known ones have some 10,000; Jinja compiles a million in 7 s
_TAG, _TRACK = "generation", "track"
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""names of a message's reasoning; templates read the first or the second"""


class TemplateRefusalError(Exception):
    """Why a template does not render a conversation; never leaves this package."""


class Rendered(NamedTuple):
    """A conversation as text."""

    text: str
    generated: list[tuple[int, int]] | None
    """the characters that the template marks as written by the model; None if they are lost"""

    @property
    def end(self) -> int:
        """Where the text ends."""
        return len(self.text)

    def end_of(self, prefix: "Rendered") -> int | None:
        """Where a prefix of the text ends; None if it is not one."""
        return len(prefix.text) if self.text.startswith(prefix.text) else None


@cache
def jinja2() -> Any:
    """Import Jinja; raise with the install command if it is missing or too old."""
    try:
        module = importlib.import_module("jinja2")
        importlib.import_module("jinja2.sandbox")
        importlib.import_module("jinja2.ext")
    except ImportError:
        raise UsageError("chat templates need jinja2: pip install 'millstream[text]'") from None
    version = tuple(int(part) for part in module.__version__.split(".")[:3] if part.isdigit())
    if version < (3, 1, 6):
        raise UsageError(
            f"jinja2 {module.__version__} is installed, and programs can escape from its sandbox; "
            "chat templates need 3.1.6 or later: pip install -U jinja2"
        )
    return module


class ChatTemplate:
    """A compiled template, for any thread."""

    def __init__(
        self, source: str, variables: Mapping[str, Any], where: str, date: str | None
    ) -> None:
        """`date` is what the template takes for today, as YYYY-MM-DD."""
        self.source, self.variables, self.date = source, dict(variables), date
        if len(source) > _MAX_CHARACTERS:
            raise FormatError(
                f"{where}: a chat template of {len(source):,} characters; at most "
                f"{_MAX_CHARACTERS:,} are allowed"
            )
        self._tracker = _GenerationTracker()
        environment = new_environment(self._tracker.track)
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2().TemplateSyntaxError as error:
            raise FormatError(f"{where}: line {error.lineno}: {error.message}") from None
        except Exception as error:  # what Python says of the program that Jinja makes of it
            reason = f"{type(error).__name__}: {error!s:.100}"
            raise FormatError(f"{where}: Jinja cannot compile the template ({reason})") from None
        called = tree.find_all(jinja2().nodes.ExtensionAttribute)
        self.marks_generation = any(node.name == _TRACK for node in called)
        """whether it marks what the model writes"""
        self.variables.setdefault(_DATE_FUNCTION, _date_function(date, where))

    def render(
        self,
        messages: Messages,
        tools: Any = None,
        *,
        add_generation_prompt: bool = False,
    ) -> Rendered:
        """Return the text of a conversation; raises `TemplateRefusalError`."""
        inputs = self.variables | {
            "messages": plain_messages(messages),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._tracker.collect(self._template.generate(**inputs))
        except TemplateRefusalError:
            raise
        except UsageError:  # for all conversations
            raise
        except Exception as error:  # templates raise what they like
            raise TemplateRefusalError(f"{type(error).__name__}: {error!s:.200}") from None


def plain_messages(messages: Messages) -> list[dict[str, Any]]:
    """Messages as templates expect them: no nulls, and the reasoning under its usual names."""
    plain = []
    for message in messages:
        known = {name: value for name, value in message.items() if value is not None}
        reasoning = next((known[name] for name in _REASONING if name in known), None)
        if reasoning is not None:
            known = {"thinking": reasoning, **known, "reasoning_content": reasoning}
        plain.append(known)
    return plain


def _date_function(date: str | None, where: str) -> Callable[[str], str]:
    """`strftime_now` of a fixed day."""
    if date is not None:
        return datetime.strptime(date, "%Y-%m-%d").strftime

    def refuse(_: str) -> str:
        raise UsageError(
            f"{where}: the template writes today's date ({_DATE_FUNCTION}), so the same files "
            "would give other tokens tomorrow; choose a day with date='2026-01-31' (--chat-date)"
        )

    return refuse


def new_environment(track: Callable[[Any], Any]) -> Any:
    """The sandbox, with the functions that chat templates expect.

    `track` is called with the text of every generation block, and returns what to write for it.
    """
    environment = jinja2().sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation_extension(), jinja2().ext.loopcontrols],
    )
    environment.extend(track_generation=track)
    # Jinja would compute these while it compiles a template: 9**9**9 would not end.
    environment.intercepted_binops = frozenset({"*", "**", "%"})
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    # Functions instead of types, whose attributes a template could reach.
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = lambda *args, **named: _namespace_class()(*args, **named)
    return environment


class _Dict:
    """What templates use of `dict`."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args, **named)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As of `dict`."""
        return dict.fromkeys(*args)


@cache
def _namespace_class() -> Any:
    """Jinja's `namespace`, without names that Python gives a meaning."""

    class TemplateNamespace(jinja2().utils.Namespace):  # type: ignore[misc]
        def __init__(*args: Any, **named: Any) -> None:  # so that one may be called `self`
            own, *values = args
            attributes = dict(*values, **named)
            for name in attributes:
                _refuse_underscore(name)
            jinja2().utils.Namespace.__init__(own, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_underscore(name)
            super().__setitem__(name, value)

    return TemplateNamespace


def _refuse_underscore(name: Any) -> None:
    if str(name).startswith("_"):
        raise TemplateRefusalError(f"namespace: the name {name!r:.40} begins with an underscore")


def _raise_exception(message: str) -> None:
    raise TemplateRefusalError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: Jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _GenerationTracker(threading.local):
    """Notes which characters come from generation blocks, in each thread for itself."""

    def __init__(self) -> None:
        self._length = 0
        self._blocks: list[tuple[int, str]] = []

    def track(self, text: str) -> str:
        """Note a block: it begins after everything that was written before."""
        self._blocks.append((self._length, text))
        return text

    def collect(self, parts: Any) -> Rendered:
        """Join what a template writes."""
        self._length, self._blocks = 0, []
        written = list[str]()
        for part in parts:
            written.append(part)
            self._length += len(part)
        text = "".join(written)
        # The text of a block in a macro may be written later, and elsewhere.
        if not all(text.startswith(block, start) for start, block in self._blocks):
            return Rendered(text, None)
        return Rendered(text, [(start, start + len(block)) for start, block in self._blocks])


@cache
def _generation_extension() -> Any:
    """The tags `{% generation %}` and `{% endgeneration %}`, as an extension of Jinja."""
    nodes = jinja2().nodes

    class Generation(jinja2().ext.Extension):  # type: ignore[misc]
        tags = frozenset({_TAG})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements((f"name:end{_TAG}",), drop_needle=True)
            call = self.call_method(_TRACK)
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def track(self, caller: Callable[[], Any]) -> Any:
            return self.environment.track_generation(caller())

    return Generation
