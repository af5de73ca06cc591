from millstream.text.sources.slices import Slice
from millstream.text.sources.slices_ahead import fetching_ahead


def slices(count):
    return [Slice(files=(str(k),), start=0, stop=10, size_bytes=10) for k in range(count)]


def test_items_come_in_order_and_as_many_bytes_are_announced_as_allowed():
    announced = []

    def announce(piece, max_bytes):
        num_bytes = min(max_bytes, piece.size_bytes)
        announced.append((piece.files[0], num_bytes))
        return num_bytes

    pieces = slices(6)
    found = fetching_ahead(pieces, lambda piece: piece, announce, 25)
    assert next(found) is pieces[0]
    assert announced == [("1", 10), ("2", 10), ("3", 5)]
    assert next(found) is pieces[1]
    assert announced[3:] == [("4", 10)]
    assert list(found) == pieces[2:]
    assert [name for name, _ in announced] == ["1", "2", "3", "4", "5"]


def test_nothing_is_taken_from_an_endless_order_before_it_is_needed():
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield slices(1)[0]

    found = fetching_ahead(endless(), lambda piece: piece, lambda piece, most: 10, 30)
    next(found)
    assert len(taken) == 4
