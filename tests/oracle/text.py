"""Topics of text: live batches, tokenized datasets, chats, repacked corpora, vocabularies."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.chat_templates import CHATML_MARKED, LLAMA_3
from tests.oracle.datasets import draw_spans
from tests.oracle.loaders import mark_rows, steps_of
from tests.oracle.views import EXTRAS

_WORDS = (  # noqa: SIM905 (a hundred strings are no easier to read)
    "the a of to and in is it that was he she for on are with as his they at be this have from "
    "or one had by word but not what all were we when your can said there use an each which do "
    "how their if will up other about out many then them these so some her would make like him "
    "into time has look two more write go see number no way could people my than first water "
    "Straße naïve Привет мир 日本語 한국어 ½ 😀 e\u0301 don't I'll 3.14 2,048 foo_bar\tx  y"
).split(" ")

# Tasks are cut by the bytes of row groups, which are then the same with every version of pyarrow.
_PLAIN = {"use_dictionary": False, "write_statistics": False, "compression": "none"}

_MARKERS = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)


def _draw_texts(draw, count):
    """Documents of a few words, some empty, some much longer."""
    sizes = [draw.integer(0, 30 if draw.chance(0.2) else 6) for _ in range(count)]
    return [" ".join(draw.one_of(*_WORDS) for _ in range(size)) for size in sizes]


def _write_corpus(case, *, kinds=("text", "jsonl", "parquet"), may_have_spans=True):
    """One to four files of a kind, and the source that reads them."""
    draw, directory = case.draw, case.new_path()
    directory.mkdir()
    kind = draw.one_of(*kinds)
    has_columns, has_spans = kind != "text", kind == "jsonl" and draw.chance(0.3 * may_have_spans)
    columns = case.engine.Columns(
        metadata=("score",) * (has_columns and draw.chance(0.4)),
        spans="spans" if has_spans else None,
    )
    for number in range(draw.integer(1, 4)):
        texts = _draw_texts(draw, draw.integer(1, 30))
        scores = [draw.integer(0, 9) for _ in texts]
        if kind == "text":
            content = "".join(f"{text}\n" for text in texts)
            (directory / f"{number}.txt").write_text(content, encoding="utf-8")
        elif kind == "jsonl":
            rows = [
                {"text": text, "score": score, "spans": draw_spans(draw, len(text))}
                for text, score in zip(texts, scores, strict=True)
            ]
            content = "".join(f"{json.dumps(row)}\n" for row in rows)
            (directory / f"{number}.jsonl").write_text(content)
        else:
            table = pa.table({"text": texts, "score": scores})
            path = directory / f"{number}.parquet"
            pq.write_table(table, path, row_group_size=draw.integer(1, 12), **_PLAIN)
    case.note("corpus", f"{kind}, {columns}")
    return case.engine.Source(directory, kind=kind, columns=columns)


def _draw_tokenizer(case, source):
    """A tokenizer of bytes, or one that is trained on the source."""
    if case.draw.chance(0.6):
        return "bytes"
    path = case.new_path()
    case.engine.train_tokenizer(source, 300, out=path, allow_smaller=True)
    return path


def _draw_packing(case, tokenizer):
    """Any of the ways to pack live text; each takes some options of its own."""
    draw = case.draw
    policy = draw.one_of("flat", "best_fit", "bos_best_fit", "full_best_fit")
    options = {"policy": policy, "add": "bos", "buffer_size": draw.integer(1, 30)}
    if tokenizer == "bytes":
        options["add"] = draw.one_of("bos", "both", "eos", "none")
    if policy in ("best_fit", "full_best_fit"):
        options["overflow"] = draw.one_of(None, "split", "truncate", "drop")
        may_repeat = options["add"] in ("bos", "both") and options["overflow"] in (None, "split")
        options["repeat_bos"] = may_repeat and draw.chance(0.5)
    elif policy == "bos_best_fit":
        options |= {"refill": draw.integer(1, 9), "overflow": draw.one_of(None, "truncate", "drop")}
    options["extras"] = tuple(draw.some_of(*EXTRAS))
    options |= {"pad_id": draw.one_of(0, 7), "mask_ends": draw.one_of(None, None, False, True)}
    case.note("packing", options)
    return case.engine.Packing(**options)


def live(case):
    """Live rows on some ranks; others continue after the loaders are gone."""
    draw, engine = case.draw, case.engine
    source = _write_corpus(case)
    tokenizer = _draw_tokenizer(case, source)
    packing = _draw_packing(case, tokenizer)
    shares = [(1, 1), (1, 2), (2, 2), (2, 4), (1, 3)]
    blocks = len(source.blocks())
    ranks, lanes = draw.one_of(*((ranks, lanes) for ranks, lanes in shares if lanes <= blocks))
    options = {
        "seq_len": draw.integer(2, 40),
        "packing": packing,
        "seed": draw.integer(0, 99),
        "shuffle": draw.chance(0.6),
        "tail": draw.one_of("drop", "keep"),
        "endless": draw.chance(0.5),
        "output": draw.one_of("numpy", "numpy", "torch"),
        "dtype": draw.one_of("int64", "int64", None),
        "lanes": lanes,
        "transform": mark_rows if draw.chance(0.15) else None,
    }
    case.note("live", options)
    states = _see_live_steps(case, source, tokenizer, options, ranks, draw.integer(1, 5), None)
    state = json.loads(json.dumps(engine.TextLoader.join_states(states)))
    case.see("position of the state", state["position"])
    ranks = draw.one_of(*(ranks for ranks in (1, 2, 3, 4) if lanes % ranks == 0))
    _see_live_steps(case, source, tokenizer, options, ranks, 4, state)


def _see_live_steps(case, source, tokenizer, options, ranks, count, state):
    """See steps on all ranks, which begin with a state if there is one; returns their states."""
    draw, states, batch_size = case.draw, [], case.draw.integer(1, 3)
    more = {"prefetch": draw.integer(1, 3), "threads": draw.integer(1, 2)}
    if draw.chance(0.2):
        more["global_batch_size"] = ranks * batch_size * draw.integer(1, 2)
    case.note("run", f"{ranks} ranks x {batch_size} {more}")
    for rank in range(ranks):
        share = {"rank": rank, "ranks": ranks, "batch_size": batch_size}
        loader = case.engine.TextLoader(source, tokenizer, **share, **options, **more)
        if state:
            loader.load_state_dict(state)
        with loader:
            for step in steps_of(loader, count):
                case.see("step", step)
                case.see("position", loader.position)
            states.append(loader.state_dict())
    return states


def tokenized(case):
    """The files that a tokenized corpus has, whoever does its tasks."""
    draw, engine, path = case.draw, case.engine, case.new_path()
    source = _write_corpus(case)
    tokenizer = _draw_tokenizer(case, source)
    has_score = bool(source.columns.metadata)
    split = draw.one_of(
        None,
        engine.Split(fraction=draw.one_of(0.2, 0.5), by="score" if has_score else "text"),
        engine.Split(count=3),
        engine.Split(files=f"{Path(source.files[0]).parent}/0.*"),
    )
    options = {
        "add": draw.one_of("bos", "both", "eos", "none") if tokenizer == "bytes" else None,
        "shuffle": draw.one_of(None, draw.integer(0, 99)),
        "split": split if len(source.files) > 1 else None,
        "shard_bytes": draw.one_of(100, 1 << 20),
        "task_bytes": draw.one_of(None, 200, 2000),
        "allow_empty": True,
        "workers": draw.one_of(1, 1, 1, 1, 1, 1, 1, 2),
    }
    case.note("tokenize", f"with {tokenizer} {options}")
    if options["shuffle"] is None and draw.chance(0.3):
        for share in draw.shuffled(range(2)):
            engine.tokenize(source, tokenizer, path, task=(share, 2), **options)
        report = engine.finish(path, allow_empty=True)
    else:
        report = engine.tokenize(source, tokenizer, path, **options)
    case.see("report", [report.documents, report.tokens, report.text_bytes, report.tasks])
    case.see_files(path)


def chats(case):
    """Conversations as tokens and loss masks, stored and live; pairs only stored."""
    draw, engine, path = case.draw, case.engine, case.new_path()
    tokenizer = _write_chat_tokenizer(case, draw.one_of(CHATML_MARKED, LLAMA_3))
    kind = draw.one_of("messages", "messages", "completion", "chosen")
    rows = []
    for _ in range(draw.integer(1, 8)):
        prompt, *turns = _draw_texts(draw, 2 * draw.integer(1, 3) + 1)
        messages = [
            {"role": "assistant" if number % 2 else "user", "content": text}
            for number, text in enumerate(turns)
        ]
        last, other = (
            [{"role": "assistant", "content": text}] for text in (turns[-1], f"{prompt} no")
        )
        rows.append(
            {
                "messages": {"messages": messages},
                "completion": {"prompt": messages[:-1], "completion": last},
                "chosen": {"prompt": messages[:-1], "chosen": last, "rejected": other},
            }[kind]
        )
    corpus = case.new_path().with_suffix(".jsonl")
    corpus.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    columns = {name: name for name in rows[0]}
    loss_on = draw.one_of("assistant", "last", "all") if kind == "messages" else "assistant"
    chat = engine.Chat(loss_on=loss_on, **columns)
    case.note("chat", f"{rows} {chat}")
    report = engine.tokenize(corpus, tokenizer, path, workers=1, chat=chat)
    case.see("tokens", report.tokens)
    data = engine.open(path)
    case.see("documents", [data.document(number) for number in range(data.num_documents)])
    if kind == "chosen":
        return
    packing = engine.Packing(policy=draw.one_of("best_fit", "full_best_fit"), add="none")
    options = {"packing": packing, "seq_len": 64, "chat": chat, "tail": "keep", "output": "numpy"}
    count = draw.integer(1, 3)
    (state,) = _see_live_steps(case, corpus, tokenizer, options, 1, count, None)
    _see_live_steps(case, corpus, tokenizer, options, 1, 3, json.loads(json.dumps(state)))


def _write_chat_tokenizer(case, template):
    """A tokenizer that knows the markers of the templates, with one of them."""
    path, words = case.new_path(), " ".join(_WORDS)
    source = case.engine.Source.from_documents([words] * 3)
    case.engine.train_tokenizer(source, 340, out=path, specials=_MARKERS, allow_smaller=True)
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def repacked(case):
    """Text shards of equal size: their names, and the documents in each."""
    draw, path = case.draw, case.new_path()
    to = draw.one_of("parquet", "jsonl", "text")  # lines of text cannot hold every document
    kinds = ("text",) if to == "text" else ("text", "jsonl", "parquet")
    source = _write_corpus(case, kinds=kinds, may_have_spans=False)
    options = {"shard_chars": draw.one_of(200, 1000), "shuffle": draw.one_of(None, 1, 2)}
    case.note("repack", f"to {to} {options}")
    report = case.engine.repack(source, path, to=to, workers=1, **options)
    case.see("documents", report.num_documents)
    for each in report.files:
        if to == "parquet":
            case.see(each.name, pq.read_table(each).to_pylist())
        else:  # the bytes of zstd depend on its version
            case.see(each.name, pa.input_stream(str(each), compression="zstd").read())


def vocabularies(case):
    """The tokens and merges that are learned, and the ids of other text."""
    draw, path, out = case.draw, case.new_path(), case.new_path()
    report = case.engine.train_tokenizer(
        _write_corpus(case), draw.integer(280, 500), out=path, allow_smaller=True
    )
    case.see("tokens", list(report.vocabulary.tokens))
    case.see_files(path)
    case.engine.tokenize(_write_corpus(case), path, out, workers=1, allow_empty=True)
    case.see_files(out)
