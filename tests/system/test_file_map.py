"""Files in memory that hold no descriptor."""

import os

import numpy as np
import pytest

from millstream.system.file_map import FileMap
from tests.helpers.descriptors import open_descriptors

pytestmark = pytest.mark.kernels


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    with path.open("rb") as file:
        yield file


def test_maps_hold_no_descriptors_and_outlive_theirs(file):
    before = open_descriptors()
    maps = [FileMap(file.fileno(), 1 << 14) for _ in range(50)]
    assert open_descriptors() <= before
    file.close()
    for each in maps:
        assert bytes(memoryview(each)) == bytes(range(256)) * 64


def test_an_array_keeps_its_map_and_cannot_be_written(file):
    array = np.frombuffer(FileMap(file.fileno(), 1000), np.uint8, offset=8)
    assert array.tolist()[:3] == [8, 9, 10]
    assert array.size == 992
    assert not array.flags.writeable


@pytest.mark.parametrize("size", [0, -1])
def test_a_map_of_nothing_is_refused(file, size):
    with pytest.raises(ValueError, match="size_bytes is"):
        FileMap(file.fileno(), size)


def test_what_cannot_be_mapped_says_why(file):
    with pytest.raises(OSError, match="Bad file descriptor"):
        FileMap(-1, 10)
    reader, writer = os.pipe()
    with pytest.raises(OSError, match="No such device"):
        FileMap(reader, 10)
    os.close(reader)
    os.close(writer)
