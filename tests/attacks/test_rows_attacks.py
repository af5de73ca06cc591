"""Hostile stored rows: damage is repaired or named, and never read out of range.

Rows are made by Millstream and can be made again, so a file whose header is not exactly what it
should be is silently replaced. Pieces are too many to check when a file is opened: kernels check
the checksum of each block that they use, and then each piece, for checksums can be forged; and
`audit_tokens` checks them all. Attacks on pieces are therefore sealed with right checksums.
"""

import json
import os
import shutil
import signal
import traceback

import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
import millstream.load.loader  # for children: each of them would load it by itself
from millstream.auditing.tokens import audit_tokens
from millstream.errors import FormatError, MillstreamError, VerificationError
from millstream.pack.rows_file import verify_rows
from millstream.system.checksums import block_checksums
from tests.helpers.numbered_documents import EXTRAS, POLICIES, numbered, write_numbered

LENGTHS = [5, 3, 9, 0, 2, 7, 12, 1, 4, 6, 8, 20, 30, 1, 1, 6, 8, 8]
WIDTH = 8
HEADER_BYTES = 4096
VIEWS = {
    **{
        policy: lambda data, policy=policy: data.packed(WIDTH, policy=policy, extras=EXTRAS)
        for policy in POLICIES
    },
    "truncate": lambda data: data.documents(WIDTH, pad_to=3, extras=EXTRAS),
    "split": lambda data: data.documents(WIDTH, overflow="split", by_length=True),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A dataset with the rows of every view."""
    path = tmp_path_factory.mktemp("sound") / "data"
    write_numbered(path, LENGTHS, shard_bytes=50)
    for make_view in VIEWS.values():
        len(make_view(millstream.open(path)))
    return path


@pytest.fixture
def path(tmp_path, monkeypatch, sound):
    """A copy, for a test to damage, and no other place for rows that would open."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(sound, tmp_path / "data")


def file_of(path, name):
    return VIEWS[name](millstream.open(path)).stored_in


def in_a_child(function, seconds=30):
    """What `function` answers in a process that may crash or hang."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            os.close(reader)
            with os.fdopen(writer, "w") as pipe:
                try:
                    json.dump([function(), None], pipe)
                except BaseException:
                    json.dump([None, traceback.format_exc()], pipe)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"ended by signal {-status}"
    answer, error = json.loads(text)
    assert error is None, error
    return answer


def content_of(view):
    """All that a view gives, and its report."""
    batch = view[:]
    return {name: np.asarray(batch[name]).tolist() for name in batch} | view.report.to_json()


def assert_made_again(path, name, sound):
    """The view is as if nothing had happened, and so is the next one."""
    expected = content_of(VIEWS[name](millstream.open(sound)))
    for _ in range(2):
        found = in_a_child(lambda: content_of(VIEWS[name](millstream.open(path))))
        assert found == expected


def split_header(content):
    return json.loads(content[:HEADER_BYTES]), content[HEADER_BYTES:]


def with_header(header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return text.ljust(HEADER_BYTES - 1) + b"\n" + body


def with_changes(content, **changes):
    header, body = split_header(content)
    return with_header({**header, **changes}, body)


def with_report(content, **changes):
    header, body = split_header(content)
    return with_header({**header, "report": {**header["report"], **changes}}, body)


def without(content, *keys):
    header, body = split_header(content)
    place = header
    for key in keys[:-1]:
        place = place[key]
    del place[keys[-1]]
    return with_header(header, body)


DAMAGES = {
    "empty": lambda content: b"",
    "half a header": lambda content: content[:2000],
    "only a header": lambda content: content[:HEADER_BYTES],
    "one byte short": lambda content: content[:-1],
    "one piece short": lambda content: content[:-24],
    "one byte long": lambda content: content + b"\0",
    "zeros": lambda content: bytes(len(content)),
    "spaces": lambda content: b" " * len(content),
    "no header": lambda content: content[HEADER_BYTES:],
    "not utf-8": lambda content: b"\xff" + content[1:],
    "a list": lambda content: with_header([], content[HEADER_BYTES:]),
    "a number": lambda content: with_header(5, content[HEADER_BYTES:]),
    "null": lambda content: with_header(None, content[HEADER_BYTES:]),
    "not closed": lambda content: with_header(b'{"format": ', content[HEADER_BYTES:]),
    "very deep": lambda content: with_header(b"[" * 4000, content[HEADER_BYTES:]),
    "a huge number": lambda content: with_header(b"9" * 4090, content[HEADER_BYTES:]),
    "another version": lambda content: with_changes(content, version=1),
    "version true": lambda content: with_changes(content, version=True),
    "another format": lambda content: with_changes(content, format="millstream-stream"),
    "other documents": lambda content: with_changes(content, documents="0" * 16),
    "another recipe": lambda content: with_changes(content, recipe="best_fit-9"),
    "one key more": lambda content: with_changes(content, more=1),
    "no report": lambda content: with_changes(content, report=None),
    "a list as report": lambda content: with_changes(content, report=[]),
    "without a version": lambda content: without(content, "version"),
    "without rows": lambda content: without(content, "report", "num_rows"),
    "one count more": lambda content: with_report(content, more=1),
    "negative pieces": lambda content: with_report(content, num_pieces=-1),
    "huge pieces": lambda content: with_report(content, num_pieces=1 << 59),
    "too many pieces": lambda content: with_report(content, num_pieces=1 << 70),
    "pieces as text": lambda content: with_report(content, num_pieces="5"),
    "pieces as a float": lambda content: with_report(content, num_pieces=5.0),
    "huge rows": lambda content: with_report(content, num_rows=1 << 59),
    "no rows": lambda content: with_report(content, num_rows=0),
    "rows that are true": lambda content: with_report(content, num_rows=True),
    "endless rows": lambda content: with_report(content, num_rows=float("inf")),
    "no pieces in a row": lambda content: with_report(content, max_pieces=0),
    "many pieces in a row": lambda content: with_report(content, max_pieces=1 << 59),
    "more pieces in a row": lambda content: with_report(content, max_pieces=1000),
    "more records": lambda content: with_report(content, num_records=1 << 40),
    "records cropped": lambda content: with_report(content, cropped=7),
    "records lost": lambda content: with_report(content, lost=1 << 59),
    "more labels only": lambda content: with_report(content, label_only=1),
    "more documents": lambda content: with_report(content, num_documents=1000),
    "another width": lambda content: with_report(content, seq_len=1 << 30),
    "another policy": lambda content: with_report(content, policy="none"),
    "a policy that is no text": lambda content: with_report(content, policy=[1]),
}


@pytest.mark.process
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["best_fit", "truncate"])
def test_a_damaged_header_is_made_again_silently(path, sound, name, damage):
    file = file_of(path, name)
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    assert_made_again(path, name, sound)


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_names_a_damaged_header(path, damage):
    file = file_of(path, "best_fit")
    assert list(verify_rows(file)) == []
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    (problem,) = verify_rows(file)
    assert problem.startswith(f"{file}: ")
    assert "remove this file" in problem


@pytest.mark.parametrize("size", [-8, 0, 8, 1 << 70, 448.0, float("inf"), True, "448", None, []])
def test_verify_does_not_believe_sizes_behind_a_right_checksum(path, size):
    file = file_of(path, "best_fit")
    header, body = split_header(file.read_bytes())
    header.pop("xxh3")
    header["body_bytes"] = size
    header["xxh3"] = xxhash.xxh3_64_hexdigest(json.dumps(header).encode())
    file.write_bytes(with_header(header, body))
    (problem,) = verify_rows(file)
    assert problem.startswith(f"{file}: ")


@pytest.mark.process
@pytest.mark.parametrize("damage", [name for name in DAMAGES if "pieces" in name or "rows" in name])
@pytest.mark.parametrize("name", ["best_fit", "truncate"])
def test_counts_that_cannot_be_are_not_believed_behind_a_right_checksum(path, sound, name, damage):
    file = file_of(path, name)
    header, body = split_header(DAMAGES[damage](file.read_bytes()))
    header.pop("xxh3")
    header["xxh3"] = xxhash.xxh3_64_hexdigest(json.dumps(header).encode())
    file.write_bytes(with_header(header, body))
    assert_made_again(path, name, sound)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["best_fit", "bos_best_fit", "split"])
def test_any_flipped_bit_of_the_header_is_undone(path, sound, name):
    file = file_of(path, name)
    content = file.read_bytes()
    expected = VIEWS[name](millstream.open(sound)).report
    random = np.random.default_rng(1)
    kept = []
    for place in range(len(content[:HEADER_BYTES].rstrip())):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(random.integers(0, 8))
        file.write_bytes(flipped)
        if VIEWS[name](millstream.open(path)).report != expected:
            kept.append(bytes(flipped[place - 20 : place + 3]))
    assert not kept


@pytest.mark.process
@pytest.mark.parametrize("name", VIEWS)
def test_more_rows_than_there_are_pieces_are_not_read(path, name):
    file = file_of(path, name)
    honest = len(VIEWS[name](millstream.open(path)))
    file.write_bytes(with_report(file.read_bytes(), num_rows=1 << 40))

    def read():
        view = VIEWS[name](millstream.open(path))
        try:
            view.read([len(view) - 1])
        except MillstreamError as error:
            return str(error)
        return len(view)

    answer = in_a_child(read)
    assert answer == honest or str(file) in str(answer)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["directory", "dangling link", "loop"])
def test_something_else_in_the_place_of_the_file_does_not_stop_anybody(path, sound, kind):
    file = file_of(path, "best_fit")
    file.unlink()
    if kind == "directory":
        file.mkdir()
        (file / "something").write_text("")
    else:
        file.symlink_to(file if kind == "loop" else path / "nowhere")
    assert_made_again(path, "best_fit", sound)


@pytest.mark.process
def test_a_pipe_in_the_place_of_the_file_does_not_make_anybody_wait(path):
    file = file_of(path, "best_fit")
    file.unlink()
    os.mkfifo(file)
    assert in_a_child(lambda: len(VIEWS["best_fit"](millstream.open(path)))) > 0


@pytest.mark.process
def test_a_link_in_the_place_of_the_file_is_not_written_through(path, tmp_path, sound):
    file = file_of(path, "best_fit")
    file.unlink()
    (tmp_path / "precious").write_text("precious")
    file.symlink_to(tmp_path / "precious")
    assert_made_again(path, "best_fit", sound)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.process
@pytest.mark.parametrize("name", VIEWS)
def test_a_file_that_is_cut_after_its_header_was_checked_is_an_error(path, name):
    file = file_of(path, name)
    view = VIEWS[name](millstream.open(path))
    assert len(view) > 0
    os.truncate(file, HEADER_BYTES + 8)

    def read():
        try:
            view[0]
        except MillstreamError as error:
            return str(error)
        return "no error"

    assert file.name in in_a_child(read)


def tables_of(file):
    """The pieces and the first piece of each row, for writing."""
    header, _ = split_header(file.read_bytes())
    num = header["report"]["num_pieces"]
    words = np.memmap(file, "<i8", "r+", HEADER_BYTES, header["body_bytes"] // 8)
    return words[: 3 * num].reshape(num, 3), words[3 * num :]


def seal(file):
    """Give tables that were changed their checksums."""
    content = file.read_bytes()
    end = HEADER_BYTES + split_header(content)[0]["body_bytes"]
    sealed = content[:end] + block_checksums(content[HEADER_BYTES:end]).tobytes()
    assert len(sealed) == len(content)
    file.write_bytes(sealed)


def names(error, view):
    return str(view.stored_in) in str(error)


def rows_of(view):
    """The inputs of every row by itself, or None where they are refused."""
    rows = []
    for k in range(len(view)):
        try:
            rows.append(view[k]["input_ids"].tolist())
        except FormatError as error:
            rows.append(None if names(error, view) else str(error))
    return rows


def in_batches(view):
    """Whether loaders of all kinds get through."""
    answers = []
    for prefetch, shuffle in ((0, False), (2, True)):
        loader = millstream.Loader(
            view, 3, shuffle=shuffle, prefetch=prefetch, threads=2, tail="keep", output="numpy"
        )
        try:
            with loader:
                list(loader)
            answers.append("all")
        except FormatError as error:
            answers.append("refused" if names(error, view) else str(error))
    return answers


integers = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-3, sum(LENGTHS) + 3),
    st.sampled_from([(1 << 63) - 1, -(1 << 63), 1 << 62, (1 << 63) - WIDTH]),
)


@pytest.mark.process
@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(sorted(VIEWS)),
    st.lists(st.tuples(st.integers(0, 1000), integers), min_size=1, max_size=8),
    st.sampled_from(["pread", "mmap"]),
)
@example("truncate", [(4, (1 << 63) - 1), (13, (1 << 63) - 1)], "pread")
@example("best_fit", [(1, (1 << 63) - 1)], "mmap")
def test_overwritten_pieces_are_refused_or_read_as_they_say(name, changes, access):
    """A row that no change touches is right; one that is touched shows records of the dataset."""
    with numbered(LENGTHS, shard_bytes=50) as data:
        path = data.shards[0].directory
        honest = rows_of(VIEWS[name](data))
        file = VIEWS[name](data).stored_in
        pieces, row_first = tables_of(file)
        before = pieces.copy(), row_first.copy()
        words = np.concatenate([pieces.reshape(-1), row_first])
        for place, value in changes:
            words[place % words.size] = value
        pieces[:], row_first[:] = words[: pieces.size].reshape(-1, 3), words[pieces.size :]
        seal(file)

        def read():
            view = VIEWS[name](millstream.open(path, access=access))
            return rows_of(view), in_batches(view)

        rows, batches = in_a_child(read)
        assert len(rows) == len(honest)
        for k, row in enumerate(rows):
            edges = row_first[k : k + 2].tolist() if row_first.size else [k, k + 1]
            same_edges = not row_first.size or edges == before[1][k : k + 2].tolist()
            here = slice(*edges) if 0 <= edges[0] <= edges[1] else slice(0, 0)
            if same_edges and np.array_equal(pieces[here], before[0][here]):
                assert row == honest[k]
            elif row is not None:
                tokens = [
                    start + i + 1
                    for start, length, _ in pieces[here].tolist()
                    for i in range(min(length, WIDTH + 1))
                ][: len(row)]
                assert row == tokens + [0] * (len(row) - len(tokens))
        assert batches == ["refused" if None in rows else "all"] * 2


def audit_of(path, name):
    return audit_tokens(VIEWS[name](millstream.open(path)))


@pytest.mark.parametrize("name", VIEWS)
def test_an_audit_of_sound_rows_counts_their_inputs(path, name):
    view = VIEWS[name](millstream.open(path))
    report = audit_of(path, name)
    batch = view[:]
    assert report.num_inputs == (batch["input_ids"] > 0).sum()
    assert report.is_lossless == (name not in ("bos_best_fit", "truncate"))


def tamper(how, pieces, row_first):
    """RunShape the rows so that a token comes twice or not at all."""
    starts, lengths = pieces[:, 0], pieces[:, 1]
    inputs = np.minimum(lengths, WIDTH)
    if how == "two starts swapped":
        other = int(np.argmax(inputs != inputs[0]))
        starts[[0, other]] = starts[[other, 0]]
    elif how == "a piece twice":
        k, twin = next(
            (k, j) for k in range(len(pieces)) for j in range(k) if lengths[j] == lengths[k]
        )
        pieces[twin] = pieces[k]
    elif how == "a piece one to the left":
        starts[np.argmax(starts)] -= 1
    elif how == "a piece one to the right":
        starts[np.argmin(starts)] += 1
    elif how == "a record less":
        lengths[np.argmax(lengths < WIDTH)] -= 1
    elif how == "a record more":
        goes_on = (lengths > 1) & (lengths < WIDTH)
        goes_on[row_first[1:] - 1] = False  # at the end of a row it would only be a label
        lengths[np.argmax(goes_on)] += 1


TAMPERS = [
    "two starts swapped",
    "a piece twice",
    "a piece one to the left",
    "a piece one to the right",
    "a record less",
    "a record more",
]


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("how", TAMPERS)
def test_an_audit_finds_rows_that_were_tampered_with(path, name, how):
    pieces, row_first = tables_of(file_of(path, name))
    before = pieces.copy()
    tamper(how, pieces, row_first)
    assert not np.array_equal(before, pieces)
    seal(file_of(path, name))
    with pytest.raises(VerificationError, match=file_of(path, name).name):
        audit_of(path, name)


@pytest.mark.process
@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(VIEWS)),
    st.integers(0, 1000),
    st.integers(0, 1),
    st.one_of(st.integers(-20, 20), st.integers(-(1 << 60), 1 << 60)).filter(bool),
)
def test_an_audit_finds_any_change_of_one_piece_that_moves_an_input(name, place, word, change):
    with numbered(LENGTHS, shard_bytes=50) as data:
        view = VIEWS[name](data)
        pieces, _ = tables_of(view.stored_in)
        before = rows_of(view)
        piece = pieces[place % len(pieces)]
        piece[word] += change
        seal(view.stored_in)
        again = VIEWS[name](millstream.open(data.shards[0].directory))
        if in_a_child(lambda: rows_of(again)) != before:
            with pytest.raises(VerificationError):
                audit_tokens(again)


@pytest.mark.parametrize("name", ["bos_best_fit", "bos_best_fit_keep"])
def test_an_audit_finds_rows_whose_pieces_are_dealt_out_wrongly(path, name):
    _, row_first = tables_of(file_of(path, name))
    k = int(np.argmax(np.diff(row_first)))
    row_first[k + 1] -= 1  # the last piece of a row goes to the next, which has no room
    seal(file_of(path, name))
    with pytest.raises(VerificationError):
        audit_of(path, name)


def move_an_edge(pieces):
    """Let a document's last record stand in the row of the document after it."""
    starts, lengths = pieces[:, 0], pieces[:, 1]
    for k in np.argsort(starts):
        after = np.flatnonzero(starts == starts[k] + lengths[k])
        if lengths[k] > 1 and after.size and lengths[after[0]] < WIDTH - 1:
            lengths[k] -= 1
            starts[after[0]] -= 1
            lengths[after[0]] += 1
            return
    raise AssertionError("no such documents")


@pytest.mark.parametrize("how", ["another document", "an edge moved", "a label of another"])
def test_an_audit_finds_pieces_that_do_not_keep_to_their_documents(path, how):
    """Every token is an input once, but beside the wrong ones, or under a wrong number."""
    view = VIEWS["split"](millstream.open(path))
    pieces, _ = tables_of(view.stored_in)
    if how == "another document":
        pieces[0, 2], pieces[1, 2] = pieces[1, 2], pieces[0, 2]
    elif how == "an edge moved":
        move_an_edge(pieces)
    else:
        k = np.flatnonzero(pieces[:, 1] == WIDTH)[0]  # its document ends with the row
        pieces[k, 1] += 1
    seal(view.stored_in)
    with pytest.raises(VerificationError):
        audit_of(path, "split")


@pytest.mark.process
def test_rows_of_another_user_s_cache_are_checked_like_any(path, sound, tmp_path):
    """The cache is looked into second, and by the same rules."""
    file = file_of(path, "best_fit")
    content = file.read_bytes()
    shutil.rmtree(path / "plans")
    (path / "plans").write_text("in the way")
    cache = tmp_path / "cache" / "millstream" / "plans"
    cache.mkdir(parents=True)
    (cache / file.name).write_bytes(with_changes(content, documents="0" * 16))
    assert_made_again(path, "best_fit", sound)
    assert split_header((cache / file.name).read_bytes()) == split_header(content)
