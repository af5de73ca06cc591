"""`tokenize` with conversations: from every kind of source to documents with loss masks."""

import contextlib
import functools
import json
import os
import pickle
import signal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream
from millstream.errors import FormatError, MillstreamError, UsageError
from millstream.text.chats.loading import renderer_of
from millstream.text.sources import Columns, Source
from millstream.verifying import find_problems
from tests.helpers.chat_rows import ROWS, WEATHER, odd_json, said, write_rows, write_tokenizer
from tests.helpers.chat_templates import TEMPLATES
from tests.helpers.fork_server import start
from tests.helpers.text_sources import compress
from tests.helpers.waiting import num_files, wait_until

MARKED, PLAIN = TEMPLATES["chatml, marked"], TEMPLATES["chatml"]
CHATS = [said(f"Question {k}?", f"Answer {k}. " * (k % 7), f"And é{k}?", "ok") for k in range(40)]
PAIRS = [{"prompt": f"{k}?", "chosen": f"yes {k}", "rejected": f"no {k} " * 3} for k in range(60)]
OF_PAIRS = millstream.Chat(prompt="prompt", chosen="chosen", rejected="rejected")


@pytest.fixture
def model(tmp_path):
    return write_tokenizer(tmp_path / "model", MARKED)


def tokenize(source, model, out, chat=None, **options):
    chat = chat or millstream.Chat()
    return millstream.tokenize(source, model, out, chat=chat, **{"workers": 1} | options)


def documents_in(path):
    """The text of every document, and the part of it that is trained on."""
    data = millstream.open(path)
    assert not list(find_problems(data))
    found = []
    for k in range(data.num_documents):
        records = data.document(k)
        trained = records["token"][records["loss_mask"] != 0]
        found.append(tuple(map(data.tokenizer.decode, (records["token"], trained))))
    return found


def as_chatml(row):
    """What the template writes, and what of it is the assistant's."""
    turns = [(each["role"], f"{each['content']}<|im_end|>") for each in row["messages"]]
    whole = "".join(f"<|im_start|>{role}\n{text}\n" for role, text in turns)
    return whole, "".join(text for role, text in turns if role == "assistant")


EXPECTED = [as_chatml(row) for row in CHATS]


@pytest.mark.parametrize("codec", ["", ".gz", ".zst"])
def test_lines_of_json(tmp_path, model, codec):
    content = "".join(json.dumps(row) + "\n" for row in CHATS).encode()
    path = tmp_path / f"chats.jsonl{codec}"
    path.write_bytes(compress(content, codec))
    report = tokenize(path, model, tmp_path / "out")
    assert documents_in(tmp_path / "out") == EXPECTED
    data = millstream.open(tmp_path / "out")
    trained = sum(int(data.document(k)["loss_mask"].sum()) for k in range(len(CHATS)))
    assert (report.documents, report.trained, report.untrained_documents) == (40, trained, 0)


def test_tables_with_nested_messages(tmp_path, model):
    rows = [*CHATS, ROWS["nulls"], ROWS["one turn"]]  # the struct has more names than most use
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet", row_group_size=9)
    tokenize(tmp_path / "chats.parquet", model, tmp_path / "out", task_bytes=1000)
    assert documents_in(tmp_path / "out") == [as_chatml(row) for row in rows]


def test_tables_with_json(tmp_path):
    model = write_tokenizer(tmp_path / "model", TEMPLATES["qwen"])
    tools = json.dumps([WEATHER])
    rows = [
        {"messages": json.dumps(ROWS["one turn"]["messages"]), "tools": t} for t in (tools, None)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet")
    tokenize(tmp_path / "chats.parquet", model, tmp_path / "out")
    (first, said_first), (second, said_second) = documents_in(tmp_path / "out")
    assert json.dumps(WEATHER, ensure_ascii=False) in first
    assert "tools" not in second
    assert said_first == said_second == "Hi there.<|im_end|>\n"


def test_documents_from_python(tmp_path, model):
    tokenize(Source.from_documents(CHATS), model, tmp_path / "out")
    assert documents_in(tmp_path / "out") == EXPECTED


def test_metadata_columns_are_kept(tmp_path, model):
    path = write_rows(tmp_path / "chats.jsonl", [row | {"id": k} for k, row in enumerate(CHATS)])
    source = Source(path, columns=Columns(metadata=("id",)))
    tokenize(source, model, tmp_path / "out")
    data = millstream.open(tmp_path / "out")
    assert [data.metadata(k, json.loads)[0][2] for k in (0, 39)] == [{"id": 0}, {"id": 39}]


def test_names_of_sharegpt(tmp_path, model):
    names = {"user": "human", "assistant": "gpt"}
    rows = [
        {
            "conversations": [
                {"from": names[each["role"]], "value": each["content"]} for each in row["messages"]
            ]
        }
        for row in CHATS
    ]
    path = write_rows(tmp_path / "chats.jsonl", rows)
    tokenize(path, model, tmp_path / "out", millstream.Chat(messages="conversations"))
    assert documents_in(tmp_path / "out") == EXPECTED


@pytest.mark.parametrize("as_lists", [False, True])
def test_prompts_and_completions(tmp_path, model, as_lists):
    rows = [{"prompt": "2+2?", "completion": "4"}, {"prompt": "JSON?", "completion": "[]"}]
    if as_lists:
        for row in rows:
            row["prompt"] = said("a", "b", row["prompt"])["messages"]
            row["completion"] = [{"role": "assistant", "content": row["completion"]}]
    path = write_rows(tmp_path / "chats.jsonl", rows)
    chat = millstream.Chat(prompt="prompt", completion="completion")
    tokenize(path, model, tmp_path / "out", chat)
    found = documents_in(tmp_path / "out")
    assert [trained for _, trained in found] == ["4<|im_end|>", "[]<|im_end|>"]
    assert all(whole.count("im_start") == (4 if as_lists else 2) for whole, _ in found)


def test_texts_without_a_template(tmp_path, model):
    path = write_rows(tmp_path / "chats.jsonl", [{"prompt": "Q: 2+2? A:", "completion": " 4"}])
    chat = millstream.Chat(prompt="prompt", completion="completion", template="none")
    tokenize(path, model, tmp_path / "out", chat, add="both")
    assert documents_in(tmp_path / "out") == [("<s>Q: 2+2? A: 4</s>", " 4</s>")]


def test_a_tokenizer_whose_special_tokens_take_white_space(tmp_path):
    model = write_tokenizer(tmp_path / "model", TEMPLATES["phi 3"], content=odd_json())
    path = write_rows(tmp_path / "chats.jsonl", [said("a", "b")])
    tokenize(path, model, tmp_path / "out")
    data = millstream.open(tmp_path / "out")
    assert (
        data.tokenizer.decode(data.document(0)["token"])
        == "<|user|>a<|end|><|assistant|>b<|end|></s>"
    )
    with pytest.raises(UsageError, match=r"engine 'huggingface'|not byte-level BPE"):
        tokenize(path, model, tmp_path / "fast", engine="fast")


def test_conversations_without_an_answer_are_counted(tmp_path, model):
    path = write_rows(tmp_path / "chats.jsonl", [said("a"), said("a", "b"), said("a", "b", "c")])
    assert tokenize(path, model, tmp_path / "out").untrained_documents == 1


@pytest.mark.slow
def test_a_long_conversation_stays_one_document(tmp_path, model):
    rows = [said("x " * 600_000, "<|im_end|> é " * 40_000), said("a", "b")]
    path = write_rows(tmp_path / "chats.jsonl", rows)
    tokenize(path, model, tmp_path / "out")
    assert documents_in(tmp_path / "out") == [as_chatml(row) for row in rows]


# Bad rows

BAD = {
    "no messages": ({"text": "x"}, "'messages' is missing"),
    "empty": ({"messages": []}, "'messages' is an empty list"),
    "a wrong role": ({"messages": [{"role": 1}]}, "its role is 1"),
    "a surrogate": (said("a", "b\ud800"), "unpaired surrogate"),
    "not an object": ([1, 2], "expected a JSON object on every line"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_refused_or_left_out_with_the_reason(tmp_path, model, name):
    row, reason = BAD[name]
    path = write_rows(tmp_path / "chats.jsonl", [CHATS[0], row, CHATS[1]])
    with pytest.raises(FormatError, match=reason) as error:
        tokenize(path, model, tmp_path / "out")
    assert f"{path}: line 2" in str(error.value)
    source = Source(path, bad_rows="skip")
    report = tokenize(source, model, tmp_path / "out")
    assert report.skipped == 1
    assert reason in report.places[0]
    assert documents_in(tmp_path / "out") == EXPECTED[:2]


def test_what_a_template_refuses_is_a_bad_row(tmp_path):
    model = write_tokenizer(tmp_path / "model", TEMPLATES["mistral"])
    rows = [said("a", "b"), {"messages": said("a", "b")["messages"][1:]}]
    path = write_rows(tmp_path / "chats.jsonl", rows)
    with pytest.raises(FormatError, match="refuses it: Conversation roles must alternate"):
        tokenize(path, model, tmp_path / "out")


def test_a_template_that_rewrites_earlier_turns_says_so(tmp_path):
    model = write_tokenizer(tmp_path / "model", TEMPLATES["qwen 3"])
    path = write_rows(tmp_path / "chats.jsonl", [ROWS["thinking in contents"]])
    with pytest.raises(FormatError, match="writes messages 0 to 1 differently if others follow"):
        tokenize(path, model, tmp_path / "out")
    tokenize(path, model, tmp_path / "out", millstream.Chat(loss_on="all"))
    ((whole, trained),) = documents_in(tmp_path / "out")
    assert whole == trained


def test_a_header_that_no_turn_begins_with_is_named(tmp_path):
    model = write_tokenizer(tmp_path / "model", TEMPLATES["deepseek"])
    path = write_rows(tmp_path / "chats.jsonl", [said("a", "b")])
    with pytest.raises(FormatError, match=r"\(add_generation_prompt\) is not how its turns begin"):
        tokenize(path, model, tmp_path / "out")


@pytest.mark.parametrize("chosen", ["b" * 4000, ""])
def test_a_pair_is_left_out_as_a_whole(tmp_path, model, chosen):
    rows = [PAIRS[0], {"prompt": "a", "chosen": chosen, "rejected": "c"}, PAIRS[1]]
    rows[1]["rejected"] = None if not chosen else "c"
    path = write_rows(tmp_path / "pairs.jsonl", rows)
    source = Source(path, bad_rows="skip", max_document_bytes=1000)
    report = tokenize(source, model, tmp_path / "out", OF_PAIRS)
    assert (report.documents, report.skipped) == (4, 1)
    assert [t for _, t in documents_in(tmp_path / "out")] == expected_answers(PAIRS[:2])


# Pairs


def expected_answers(pairs):
    return [f"{pair[name]}<|im_end|>" for pair in pairs for name in ("chosen", "rejected")]


def pairs_in(path):
    """Numbers of the pairs, whose documents must be neighbours, the chosen one first."""
    answers = [trained for _, trained in documents_in(path)]
    numbers = [int(answer.split()[1].removesuffix("<|im_end|>")) for answer in answers]
    assert numbers[::2] == numbers[1::2]
    assert all(answer.startswith("yes") for answer in answers[::2])
    assert all(answer.startswith("no") for answer in answers[1::2])
    return numbers[::2]


@pytest.mark.parametrize("prompt", [True, False])
def test_pairs_become_neighbours(tmp_path, model, prompt):
    rows, chat = PAIRS, OF_PAIRS
    if not prompt:
        chat = millstream.Chat(chosen="chosen", rejected="rejected")
        rows = [
            {name: said(row["prompt"], row[name])["messages"] for name in ("chosen", "rejected")}
            for row in PAIRS
        ]
    tokenize(write_rows(tmp_path / "pairs.jsonl", rows), model, tmp_path / "out", chat)
    assert pairs_in(tmp_path / "out") == list(range(60))
    assert [t for _, t in documents_in(tmp_path / "out")] == expected_answers(PAIRS)


@pytest.mark.parametrize("split", [{"fraction": 0.3}, {"count": 7}])
@pytest.mark.parametrize("shuffle", [None, 3])
def test_pairs_stay_together_through_splits_and_shuffles(tmp_path, model, split, shuffle):
    path = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    options = {"split": millstream.Split(**split), "shuffle": shuffle, "task_bytes": 900}
    tokenize(path, model, tmp_path / "out", OF_PAIRS, **options)
    sides = [pairs_in(tmp_path / "out" / side) for side in ("train", "val")]
    assert sorted(sides[0] + sides[1]) == list(range(60))
    assert (sides[0] == sorted(sides[0])) == (shuffle is None)
    if "count" in split:
        assert len(sides[1]) == 7
    else:
        assert 5 < len(sides[1]) < 35


# Plans, and runs that die


def test_another_template_is_another_plan(tmp_path, model):
    path = write_rows(tmp_path / "chats.jsonl", CHATS)
    tokenize(path, model, tmp_path / "out")
    tokenize(path, model, tmp_path / "out")
    for changed in (
        millstream.Chat(template=PLAIN),
        millstream.Chat(loss_on="last"),
        millstream.Chat(variables={"x": 1}),
    ):
        with pytest.raises(MillstreamError, match=r"out"):
            tokenize(path, model, tmp_path / "out", changed)
    assert documents_in(tmp_path / "out") == EXPECTED


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.stem != "report"
    }


OPTIONS = {"split": millstream.Split(fraction=0.2), "shuffle": 1, "task_bytes": 1200, "workers": 2}


def is_time_to_kill(runner, out, num_files_before):
    return runner.exitcode is not None or num_files(out) >= num_files_before


@pytest.mark.slow
@pytest.mark.process
def test_a_killed_run_is_continued(tmp_path, model):
    path = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    tokenize(path, model, tmp_path / "undisturbed", OF_PAIRS, **OPTIONS)
    out = tmp_path / "out"
    for num_files_before in (1, 6):
        runner = start(tokenize, path, model, out, OF_PAIRS, **OPTIONS)
        wait_until(functools.partial(is_time_to_kill, runner, out, num_files_before))
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner.pid, signal.SIGKILL)
        runner.join(30)
    tokenize(path, model, out, OF_PAIRS, **OPTIONS)
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_a_renderer_in_another_process_is_the_same(model):
    renderer = renderer_of(millstream.Chat(), model)
    again = pickle.loads(pickle.dumps(renderer))
    assert [again.render(row) for row in CHATS] == [renderer.render(row) for row in CHATS]
    assert json.dumps(again.identity) == json.dumps(renderer.identity)


# Views


def test_views_mask_labels_and_keep_conversations_apart(tmp_path, model):
    rows = [said(f"{k}?", "x" * (k + 1)) for k in range(9)]
    tokenize(write_rows(tmp_path / "chats.jsonl", rows), model, tmp_path / "out")
    data = millstream.open(tmp_path / "out")
    expected = []
    for k in range(9):
        tokens, is_trained = (data.document(k)[name].astype(int) for name in ("token", "loss_mask"))
        labels = np.where(is_trained[1:] != 0, tokens[1:], -100)
        expected.append((tokens.tolist(), [*labels.tolist(), -100]))
    view, packed = data.documents(64), data.packed(64)
    for k, (tokens, labels) in enumerate(expected):
        row = view[k]
        assert row["input_ids"][: len(tokens)].tolist() == tokens
        assert row["labels"].tolist() == labels + [-100] * (64 - len(labels))
    found = []
    for row in (packed[k] for k in range(len(packed))):
        for first, last in pairwise(row["cu_seqlens"].tolist()):
            if set(row["labels"][first:last].tolist()) == {-100}:
                continue  # padding
            assert row["position_ids"][first:last].tolist() == list(range(last - first))
            found.append(tuple(row[name][first:last].tolist() for name in ("input_ids", "labels")))
    assert sorted(found) == sorted(expected)
    assert len(packed) < 9
