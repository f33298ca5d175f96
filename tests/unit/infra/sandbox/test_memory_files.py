import os

import pytest

from infra.sandbox.memory_files import memory_file, read_output, stdin_file


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
    os.close(fd)
