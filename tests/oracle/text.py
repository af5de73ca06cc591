"""Topics of text: live batches, tokenized datasets, chats, repacked corpora, vocabularies."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.chat_templates import CHATML_MARKED, LLAMA_3
from tests.oracle.loaders import mark_rows, steps_of
from tests.oracle.views import EXTRAS

_WORDS = (  # noqa: SIM905 (a hundred strings are no easier to read)
    "the a of to and in is it that was he she for on are with as his they at be this have from "
    "or one had by word but not what all were we when your can said there use an each which do "
    "how their if will up other about out many then them these so some her would make like him "
    "into time has look two more write go see number no way could people my than first water "
    "Straße naïve Привет мир 日本語 한국어 ½ 😀 e\u0301 don't I'll 3.14 2,048 foo_bar\tx  y"
).split(" ")

_MARKERS = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)


def _draw_texts(draw, count):
    """Documents of a few words, some empty, some much longer."""
    sizes = [draw.integer(0, 30 if draw.chance(0.2) else 6) for _ in range(count)]
    return [" ".join(draw.one_of(*_WORDS) for _ in range(size)) for size in sizes]


def _write_corpus(case, *, kinds=("text", "jsonl", "parquet")):
    """One to four files of a kind, and the source that reads them."""
    draw, directory = case.draw, case.new_path()
    directory.mkdir()
    kind = draw.one_of(*kinds)
    columns = case.engine.Columns(metadata=("score",) * (kind != "text" and draw.chance(0.4)))
    for number in range(draw.integer(1, 4)):
        texts = _draw_texts(draw, draw.integer(1, 30))
        scores = [draw.integer(0, 9) for _ in texts]
        if kind == "text":
            content = "".join(f"{text}\n" for text in texts)
            (directory / f"{number}.txt").write_text(content, encoding="utf-8")
        elif kind == "jsonl":
            rows = [{"text": text, "score": s} for text, s in zip(texts, scores, strict=True)]
            content = "".join(f"{json.dumps(row)}\n" for row in rows)
            (directory / f"{number}.jsonl").write_text(content)
        else:
            table = pa.table({"text": texts, "score": scores})
            path = directory / f"{number}.parquet"
            pq.write_table(table, path, row_group_size=draw.integer(1, 12))
    case.note("corpus", f"{kind}, {columns}")
    return case.engine.Source(directory, kind=kind, columns=columns)


def _draw_tokenizer(case, source):
    """A tokenizer of bytes, or one that is trained on the source."""
    if case.draw.chance(0.6):
        return "bytes"
    path = case.new_path()
    case.engine.train_tokenizer(source, 300, out=path, allow_smaller=True)
    return path


def live(case):
    """Live rows on some ranks, and after a kill on others."""
    draw, engine = case.draw, case.engine
    source = _write_corpus(case)
    tokenizer = _draw_tokenizer(case, source)
    policy = draw.one_of("flat", "best_fit", "bos_best_fit", "full_best_fit")
    add = draw.one_of("bos", "both", "eos", "none") if tokenizer == "bytes" else "bos"
    repeats_bos = policy in ("best_fit", "full_best_fit") and add in ("bos", "both")
    rules = {"flat": [None], "bos_best_fit": [None, "truncate", "drop"]}
    packing = engine.Packing(
        policy=policy,
        add=add,
        buffer_size=draw.integer(1, 30),
        refill=draw.integer(1, 9),
        extras=tuple(draw.some_of(*EXTRAS)),
        repeat_bos=repeats_bos and draw.chance(0.3),
        pad_id=draw.one_of(0, 7),
        overflow=draw.one_of(*rules.get(policy, [None, "split", "truncate", "drop"])),
    )
    shares = [(1, 1), (1, 2), (2, 2), (2, 4), (1, 3)]
    blocks = len(source.blocks())
    ranks, lanes = draw.one_of(*((ranks, lanes) for ranks, lanes in shares if lanes <= blocks))
    options = {
        "seed": draw.integer(0, 99),
        "shuffle": draw.chance(0.6),
        "tail": draw.one_of("drop", "keep"),
        "endless": draw.chance(0.5),
        "output": draw.one_of("numpy", "numpy", "torch"),
        "lanes": lanes,
        "transform": mark_rows if draw.chance(0.15) else None,
    }
    seq_len = draw.integer(2, 40)
    case.note("live", f"{ranks} ranks, {seq_len} tokens, {tokenizer}, {packing} {options}")

    def see_steps(ranks, batch_size, count, state):
        states = []
        for rank in range(ranks):
            given = {**options, "rank": rank, "ranks": ranks}
            loader = engine.TextLoader(source, tokenizer, batch_size, seq_len, packing, **given)
            if state:
                loader.load_state_dict(state)
            with loader:
                steps = []
                for step in steps_of(loader, count):
                    steps.append(step)
                    case.see("step", step)
                    case.see("position", loader.position)
                states.append(loader.state_dict())
        return states

    states = see_steps(ranks, draw.integer(1, 3), draw.integer(1, 5), None)
    state = json.loads(json.dumps(engine.TextLoader.join_states(states)))
    case.see("position of the state", state["position"])
    ranks = draw.one_of(*(ranks for ranks in (1, 2, 3, 4) if lanes % ranks == 0))
    case.note("continue on", f"{ranks} ranks")
    see_steps(ranks, draw.integer(1, 3), 4, state)


def tokenized(case):
    """The files that a tokenized corpus has, whatever the number of tasks."""
    draw, engine, path = case.draw, case.engine, case.new_path()
    source = _write_corpus(case)
    tokenizer = _draw_tokenizer(case, source)
    split = draw.one_of(
        None, None, engine.Split(fraction=draw.one_of(0.2, 0.5)), engine.Split(count=3)
    )
    options = {
        "add": draw.one_of("bos", "both", "eos", "none") if tokenizer == "bytes" else None,
        "shuffle": draw.one_of(None, draw.integer(0, 99)),
        "split": split,
        "shard_bytes": draw.one_of(100, 1 << 20),
        "task_bytes": draw.one_of(None, 200, 2000),
        "allow_empty": True,
    }
    case.note("tokenize", f"with {tokenizer} {options}")
    report = engine.tokenize(source, tokenizer, path, workers=1, **options)
    case.see("report", [report.documents, report.tokens, report.text_bytes, report.tasks])
    case.see_files(path)


def chats(case):
    """Conversations as tokens and loss masks, stored and live."""
    draw, engine, path = case.draw, case.engine, case.new_path()
    tokenizer = _write_chat_tokenizer(case, draw.one_of(CHATML_MARKED, LLAMA_3))
    rows = []
    for _ in range(draw.integer(1, 8)):
        turns = _draw_texts(draw, 2 * draw.integer(1, 3))
        roles = ("user", "assistant") * len(turns)
        messages = [{"role": role, "content": text} for role, text in zip(roles, turns)]  # noqa: B905
        rows.append({"messages": messages})
    corpus = case.new_path().with_suffix(".jsonl")
    corpus.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    chat = engine.Chat(messages="messages", loss_on=draw.one_of("assistant", "last", "all"))
    case.note("chat", f"{rows} {chat}")
    report = engine.tokenize(corpus, tokenizer, path, workers=1, chat=chat)
    case.see("tokens", report.tokens)
    data = engine.open(path)
    case.see("documents", [data.document(number) for number in range(data.num_documents)])
    packing = engine.Packing(policy=draw.one_of("best_fit", "full_best_fit"), add="none")
    loader = engine.TextLoader(
        corpus, tokenizer, 2, 64, packing, chat=chat, tail="keep", output="numpy", seed=1
    )
    with loader:
        for step in steps_of(loader, 4):
            case.see("live", step)


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
    source = _write_corpus(case, kinds=("text",) if to == "text" else ("text", "jsonl", "parquet"))
    options = {"shard_chars": draw.one_of(200, 1000), "shuffle": draw.one_of(None, 1, 2)}
    case.note("repack", f"to {to} {options}")
    report = case.engine.repack(source, path, to=to, workers=1, **options)
    case.see("documents", report.num_documents)
    for each in sorted(path.rglob(f"*.{'txt' if to == 'text' else to}")):
        if to == "parquet":
            case.see(each.name, pq.read_table(each).to_pylist())
        else:
            case.see(each.name, each.read_bytes())


def vocabularies(case):
    """The merges that are learned, and the ids of text that has not been seen."""
    draw, path = case.draw, case.new_path()
    source = _write_corpus(case)
    size = draw.integer(280, 500)
    report = case.engine.train_tokenizer(source, size, out=path, allow_smaller=True)
    case.see("tokens", [len(report.vocabulary.tokens), list(report.vocabulary.tokens)])
    tokenizer = case.engine.load_tokenizer(path)
    data = case.engine.tokenize(source, tokenizer, case.new_path(), workers=1, allow_empty=True)
    case.see("counts", [data.documents, data.tokens])
