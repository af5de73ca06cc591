"""Datasets that say which documents belong together: written, joined, opened and converted."""

import json
import threading

import pytest

import millstream
from millstream.cli import main
from millstream.errors import FormatError, UsageError


def write(path, num_documents, *, group_size=2, **options):
    with millstream.Writer(path, vocab_size=1000, group_size=group_size, **options) as writer:
        for number in range(num_documents):
            writer.append([number] * 3)
    return path


def manifest_of(path):
    return json.loads((path / "millstream.json").read_text())


def test_a_dataset_says_how_many_documents_belong_together(tmp_path):
    data = millstream.open(write(tmp_path / "pairs", 6, shard_bytes=1))
    assert data.group_size == 2
    assert millstream.open(write(tmp_path / "alone", 5, group_size=1)).group_size == 1


def test_readers_that_do_not_know_groups_refuse_them_by_the_version(tmp_path):
    pairs, alone = write(tmp_path / "pairs", 6), write(tmp_path / "alone", 6, group_size=1)
    assert (manifest_of(pairs)["version"], manifest_of(pairs)["group_size"]) == (2, 2)
    assert manifest_of(alone)["version"] == 1
    assert "group_size" not in manifest_of(alone)


@pytest.mark.parametrize("options", [{}, {"part": 3}])
def test_groups_that_are_not_whole_are_refused_and_leave_nothing(tmp_path, options):
    with pytest.raises(UsageError, match="5 documents were appended, which are not whole groups"):
        write(tmp_path / "pairs", 5, **options)
    assert not (tmp_path / "pairs").exists()


def test_a_document_in_several_pieces_counts_once(tmp_path):
    with millstream.Writer(tmp_path / "pairs", vocab_size=10, group_size=2) as writer:
        writer.extend([1, 2, 3], [1, 2], continues=True)
        writer.extend([4, 5], [1, 1], continues=True)
        writer.extend([6, 7], [1, 1])
    rows = millstream.open(tmp_path / "pairs").documents(8)
    assert [row["input_ids"].tolist() for row in rows] == [
        [1, 2, 3, 4, 0, 0, 0, 0],
        [5, 6, 7, 0, 0, 0, 0, 0],
    ]


def in_thread(function, *arguments):
    """Call a function in another thread, and return what it raised."""
    raised = []

    def call():
        try:
            function(*arguments)
        except UsageError as error:
            raised.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return raised


def test_threads_cannot_mix_documents_of_their_groups(tmp_path):
    with millstream.Writer(tmp_path / "pairs", vocab_size=10, group_size=2) as writer:
        writer.append([1])
        for call, arguments in ((writer.append, ([7],)), (writer.extend, ([7, 8], [1, 1]))):
            (message,) = in_thread(call, *arguments)
            assert "document 1 would continue a group that another thread has begun" in message
        writer.append([2])
        assert not in_thread(writer.extend, [3, 4], [1, 1])
        writer.extend([5, 6], [1, 1])
    assert millstream.open(tmp_path / "pairs").records(0, 6).tolist() == [1, 2, 3, 4, 5, 6]


def test_parts_with_groups_are_joined(tmp_path):
    for part in (1, 0):
        write(tmp_path / "pairs", 4, part=part)
    millstream.finish(tmp_path / "pairs", parts=2)
    data = millstream.open(tmp_path / "pairs")
    assert (data.group_size, data.num_documents) == (2, 8)
    assert len(data.documents(6)) == 4


def test_parts_with_different_groups_are_not_joined(tmp_path):
    write(tmp_path / "pairs", 6, part=0)
    write(tmp_path / "pairs", 6, part=1, group_size=3)
    with pytest.raises(FormatError, match=r"00001.part.json: group_size differ"):
        millstream.finish(tmp_path / "pairs")


def test_directories_with_different_groups_are_not_opened_together(tmp_path):
    pairs, triples = write(tmp_path / "pairs", 6), write(tmp_path / "triples", 6, group_size=3)
    alone = write(tmp_path / "alone", 6, group_size=1)
    for other, size in ((triples, 3), (alone, 1)):
        with pytest.raises(FormatError, match=f"in groups of {size}, but those of .*/pairs/"):
            millstream.open([pairs, other])
    assert millstream.open([pairs, write(tmp_path / "more", 4)]).group_size == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group_size": 4}, "6 documents are not whole groups of 4"),
        ({"group_size": 0}, "group_size is 0; a group has at least one document"),
        ({"group_size": -2}, "group_size is -2, not a count"),
        ({"group_size": 2.0}, "group_size is 2.0, not a count"),
        ({"group_size": "2"}, "group_size is '2', not a count"),
        ({"group_size": None}, "group_size is None, not a count"),
        ({"group_size": 1 << 70}, "not a count"),
        ({"version": 1}, "version is 1, which has no groups"),
        ({"version": 3}, "version is 3; this version of Millstream reads versions 1 and 2"),
        ({"version": True}, "version is True"),
    ],
)
def test_a_manifest_with_impossible_groups_is_refused(tmp_path, changes, words):
    path = write(tmp_path / "pairs", 6)
    manifest = manifest_of(path) | changes
    (path / "millstream.json").write_text(json.dumps(manifest))
    with pytest.raises(FormatError) as caught:
        millstream.open(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("group_size", [0, -1, 1.5, "2", True, None])
def test_a_group_has_a_whole_number_of_documents(tmp_path, group_size):
    with pytest.raises(UsageError, match=r"group_size is .*; it must be an integer from 1 on"):
        write(tmp_path / "pairs", 4, group_size=group_size)
    assert not (tmp_path / "pairs").exists()


def test_conversion_keeps_groups_or_names_the_loss(tmp_path):
    data = millstream.open(write(tmp_path / "pairs", 6))
    kept = millstream.convert(data, tmp_path / "kept", "millstream", shard_bytes=1)
    assert (millstream.open(tmp_path / "kept").group_size, kept.lost) == (2, ())
    lost = millstream.convert(data, tmp_path / "ds", "datatrove").lost
    assert "datatrove does not store that documents belong together in groups of 2" in lost
    assert millstream.open(tmp_path / "ds").group_size == 1


def test_a_conversion_of_other_groups_does_not_continue_one(tmp_path):
    write(tmp_path / "pairs", 6)
    write(tmp_path / "triples", 6, group_size=3)
    millstream.convert(millstream.open(tmp_path / "pairs"), tmp_path / "out", "millstream")
    with pytest.raises(millstream.errors.DatasetExistsError, match="the source is different"):
        millstream.convert(millstream.open(tmp_path / "triples"), tmp_path / "out", "millstream")


def test_inspect_verify_audit_and_pack_know_groups(tmp_path, capsys):
    path = str(write(tmp_path / "pairs", 6))
    assert main(["inspect", path, "--view", "documents", "--seq-len", "4"]) == 0
    printed = capsys.readouterr().out
    assert "of 2 documents each" in printed
    assert "3 samples, padding 0.000%, 6 of 6 documents split, 6 tokens cropped" in printed
    assert main(["inspect", path, "--view", "packed", "--seq-len", "4", "--overflow", "drop"]) == 0
    assert "6 documents with 18 tokens dropped" in capsys.readouterr().out
    assert main(["verify", path]) == 0
    audit = ["audit", path, "--batch-size", "1", "--seq-len", "4", "--view"]
    assert main([*audit, "packed"]) == main([*audit, "documents"]) == 0
    assert "12 of 18 are inputs exactly once" in " ".join(capsys.readouterr().out.split())
    assert main(["pack", path, "--seq-len", "4", "--report"]) == 0
    printed = capsys.readouterr().out
    assert "in groups of 2" in printed
    assert "bos_best_fit" not in printed
