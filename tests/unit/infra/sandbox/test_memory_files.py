import os

import pytest

from infra.sandbox.kernel import map_shared
from infra.sandbox.memory_files import (
    VALUE_BYTES,
    VALUE_FILE_BYTES,
    memory_file,
    read_output,
    read_value,
    stdin_file,
    write_value,
)


def test_output_is_read_to_its_cap_and_said_to_be_cut() -> None:
    fd = memory_file(8192)
    os.write(fd, b"abcdef")
    assert read_output(fd, 4) == (b"abcd", True, False)
    assert read_output(fd, 6) == (b"abcdef", False, False)
    os.close(fd)


def test_a_full_output_refuses_more_and_is_said_to_be_full() -> None:
    fd = memory_file(8192)
    os.write(fd, b"x" * 8192)
    with pytest.raises(PermissionError):
        os.write(fd, b"y")
    assert read_output(fd, 3) == (b"xxx", True, True)
    os.close(fd)


def test_an_output_cannot_be_made_longer_or_shorter() -> None:
    fd = memory_file(4096)
    for size in (0, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    os.close(fd)


def test_a_writer_that_seeks_far_away_costs_nothing() -> None:
    fd = memory_file(4096)
    os.lseek(fd, 1 << 40, os.SEEK_SET)
    data, is_cut, is_full = read_output(fd, 10)
    assert (len(data), is_cut, is_full) == (10, True, True)
    os.close(fd)


def test_standard_input_is_read_from_its_start() -> None:
    fd = stdin_file("né\n")
    assert os.read(fd, 10) == "né\n".encode()
    with pytest.raises(PermissionError):
        os.write(fd, b"x")
    os.close(fd)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"42", (b"42", False)),
        (b"x" * VALUE_BYTES, (b"x" * VALUE_BYTES, False)),
        (b"x" * (VALUE_BYTES + 9), (b"x" * VALUE_BYTES, True)),
    ],
)
def test_a_value_is_read_as_it_was_left(written: bytes, read: tuple[bytes, bool]) -> None:
    fd = memory_file(VALUE_FILE_BYTES)
    assert read_value(fd) == (b"", False)
    write_value(map_shared(fd, VALUE_FILE_BYTES), written)
    assert read_value(fd) == read
    os.close(fd)


def test_a_value_of_impossible_length_is_cut() -> None:
    fd = memory_file(VALUE_FILE_BYTES)
    os.write(fd, b"\xff" * 4 + b"forged")
    assert read_value(fd)[1]
    assert len(read_value(fd)[0]) == VALUE_BYTES
    os.close(fd)
