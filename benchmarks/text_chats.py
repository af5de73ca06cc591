"""Conversations to tokens and loss masks: Millstream against plain text, and against transformers.

Conversations of one to three exchanges, cut from the text of `text_files`, as JSONL; and the same
conversations as text, which Millstream tokenizes without a template. GPT-2's vocabulary with the
special tokens of ChatML and Llama 3. transformers renders and tokenizes a part of the same
conversations, in memory and by the batch, with its assistant mask.

ChatML marks what the assistant writes; the template like Llama 3's does not, so its turns are found
by the difference of prefixes. The template like Qwen 3's looks into contents: conversations are
rendered one by one.

Targets: chats at least half as fast as plain text of the same bytes, and 5x transformers.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import millstream
from benchmarks import corpora, text_corpus, text_files
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio

_NUM_CORES = 2
_MB, _QUICK_MB = 60, 15
_NUM_FOR_PEER = 1_000
_BATCH = 100
_SPECIALS = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LIKE_LLAMA_3 = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_LOOKS_INSIDE = _CHATML.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
_TEMPLATES = {
    "ChatML, with generation marks": _CHATML,
    "like Llama 3, by prefixes": _LIKE_LLAMA_3,
    "looks into contents": _LOOKS_INSIDE,
}
_PLAIN, _TRANSFORMERS = "plain text of the same bytes", "transformers, apply_chat_template"
_LIVE, _LIVE_PLAIN = "live: ChatML, with generation marks", "live: plain text of the same bytes"


def measure(quick: bool) -> Section:
    """Time all contenders in turn, each into an empty directory."""
    num_rounds, num_bytes = (1, _QUICK_MB * 10**6) if quick else (5, _MB * 10**6)
    chats, plain = _files(num_bytes)
    with chats.open() as lines:
        conversations = [json.loads(line)["messages"] for line in islice(lines, _NUM_FOR_PEER)]
    text_bytes = sum(len(json.loads(line)["text"].encode()) for line in plain.open())
    out = corpora.DATA / "chats-tokenized"

    def job(run: Callable[[Path], object]) -> Contender:
        return Contender(lambda: run(out), text_bytes, partial(shutil.rmtree, out, True))

    contenders = {
        name: job(partial(_tokenize, chats, millstream.Chat(template=template)))
        for name, template in _TEMPLATES.items()
    }
    contenders[_PLAIN] = job(partial(_tokenize, plain, None))
    contenders[_LIVE] = Contender(
        partial(_load, chats, millstream.Chat(template=_CHATML)), text_bytes
    )
    contenders[_LIVE_PLAIN] = Contender(partial(_load, plain, None), text_bytes)
    peer_bytes = sum(len(_as_text(each).encode()) for each in conversations)
    contenders[_TRANSFORMERS] = Contender(lambda: _apply(conversations), peer_bytes)
    _apply(conversations[:_BATCH])  # imports, and compiles its template
    measured = rates(contenders, num_rounds)
    shutil.rmtree(out)
    return Section(
        topic="chats",
        text=(
            f"{text_bytes / 1e6:.0f} MB of text, {_NUM_CORES} processes; transformers gets "
            f"{peer_bytes / 1e6:.1f} MB, in memory, and its tokenizer uses all cores. {num_rounds} "
            "interleaved rounds, medians (least to most)."
        ),
        tables=[_table(measured)],
        targets=_targets(measured),
        raw=measured,
    )


def _conversations() -> Iterator[list[dict[str, str]]]:
    """Exchanges without end: questions of 40 to 600 letters, answers of 100 to 1,800."""
    generator = random.Random(0)
    while True:
        for text in text_files.documents():
            start = 0
            while start < len(text):
                messages = list[dict[str, str]]()
                if generator.random() < 0.3:
                    messages.append({"role": "system", "content": "You are a helpful assistant."})
                for _ in range(generator.randint(1, 3)):
                    for role, low, high in (("user", 40, 600), ("assistant", 100, 1_800)):
                        size = generator.randint(low, high)
                        messages.append({"role": role, "content": text[start : start + size]})
                        start += size
                yield messages


def _files(num_bytes: int) -> tuple[Path, Path]:
    """Return the conversations, and the same as plain text."""
    directory = corpora.DATA / f"chats-{num_bytes}"
    chats, plain = directory / "chats.jsonl", directory / "plain.jsonl"
    if not plain.exists():
        directory.mkdir(parents=True, exist_ok=True)
        written, unfinished = 0, directory / "unfinished"
        with chats.open("w") as of_chats, unfinished.open("w") as of_plain:
            for messages in _conversations():
                text = _as_text(messages)
                print(json.dumps({"messages": messages}), file=of_chats)
                print(json.dumps({"text": text}), file=of_plain)
                written += len(text)
                if written >= num_bytes:
                    break
        unfinished.rename(plain)
    return chats, plain


def _as_text(messages: list[dict[str, str]]) -> str:
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)


@cache
def _tokenizer() -> Path:
    """GPT-2's vocabulary with special tokens for chats."""
    directory = corpora.DATA / "chats-tokenizer"
    stored = json.loads(text_corpus.tokenizer_json().read_text())
    stored["added_tokens"] += [
        {
            "id": 50_257 + k,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for k, name in enumerate(_SPECIALS)
    ]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(stored))
    config = {"eos_token": text_corpus.END_OF_TEXT, "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def _tokenize(path: Path, chat: millstream.Chat | None, out: Path) -> None:
    millstream.tokenize(path, _tokenizer(), out, workers=_NUM_CORES, chat=chat)


def _load(path: Path, chat: millstream.Chat | None) -> None:
    """One epoch of live rows; tokenizing is most of the work."""
    with millstream.TextLoader(
        path, _tokenizer(), 16, 2_048, chat=chat, threads=_NUM_CORES, output="numpy"
    ) as loader:
        for _ in loader:
            pass


@cache
def _peer() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(_tokenizer())


def _apply(conversations: list[list[dict[str, str]]]) -> None:
    for start in range(0, len(conversations), _BATCH):
        _peer().apply_chat_template(
            conversations[start : start + _BATCH],
            chat_template=_CHATML,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )


def _table(measured: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1e6, 1),
            f"{ratio(rounds, measured[_PLAIN]).median:.2f}x",
            f"{ratio(rounds, measured[_TRANSFORMERS]).median:.2f}x",
        ]
        for name, rounds in measured.items()
    ]
    return Table("Chats", ["", "MB of text/s", "of plain text", "of transformers"], rows)


def _targets(measured: dict[str, list[float]]) -> list[Target]:
    fast = list(_TEMPLATES)[:2]
    promises = [(name, _PLAIN, 0.5) for name in fast]
    promises += [(_LIVE, _LIVE_PLAIN, 0.5), *((name, _TRANSFORMERS, 5.0) for name in fast)]
    return [
        Target(
            what=f"{name} / {other}",
            measured=ratio(measured[name], measured[other]).median,
            limit=limit,
            relation="at least",
        )
        for name, other, limit in promises
    ]
