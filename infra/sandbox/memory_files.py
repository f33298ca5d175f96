"""A call's input and outputs: memory files of the zygote, so that nothing has to read along.

Written by the call, read by the zygote when the call is over. Standard output and error are the
descriptors 1 and 2 of the call. They have a fixed, sealed size: a program that prints for ever fails
at its end, and what it may cost in memory is bounded. Their length is the offset that all writers
share. The value of a snippet has no descriptor in the call: its file is mapped there and closed, so
that no write, seek or close of the snippet meets it.
"""

from __future__ import annotations

import os
from fcntl import fcntl

_MEMFD = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CHUNK = 65_536
_F_ADD_SEALS = 1033
_SEALS = 0x1 | 0x2 | 0x4  # no more seals, no shrinking, no growing
_SEAL_WRITE = 0x8
_LENGTH_BYTES = 4
VALUE_BYTES = 65_536
"""Longest value that is kept."""
VALUE_FILE_BYTES = _LENGTH_BYTES + VALUE_BYTES + 1
_len = len  # a snippet may have replaced it when its value is written


def memory_file(num_bytes: int) -> int:
    """A memory file of fixed size: writing past its end fails, and its length is its offset.

    Whole pages, since the kernel refuses the part of a write that leaves a sealed page.
    """
    fd = os.memfd_create("output", _MEMFD)
    os.ftruncate(fd, -(-num_bytes // _PAGE) * _PAGE)
    fcntl(fd, _F_ADD_SEALS, _SEALS)
    return fd


def stdin_file(text: str) -> int:
    """A file that can only be read; where there is no input, one of its own without content.

    Never shared: flags that a call sets would be seen by the next.
    """
    if not text:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    fd = os.memfd_create("input", _MEMFD)
    data = memoryview(text.encode())
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl(fd, _F_ADD_SEALS, _SEALS | _SEAL_WRITE)
    return fd


def write_value(memory: memoryview, data: bytes) -> None:
    """Leaves a value, in the call, for `read_value`; the length goes last."""
    data = data[: VALUE_BYTES + 1]
    memory[_LENGTH_BYTES : _LENGTH_BYTES + _len(data)] = data
    memory[:_LENGTH_BYTES] = _len(data).to_bytes(_LENGTH_BYTES, "big")


def read_value(fd: int) -> tuple[bytes, bool]:
    """The value, in the zygote, and whether it was cut; empty where the call left none."""
    data = os.pread(fd, VALUE_FILE_BYTES, 0)
    length = int.from_bytes(data[:_LENGTH_BYTES], "big")
    return data[_LENGTH_BYTES:][: min(length, VALUE_BYTES)], length > VALUE_BYTES


def read_output(fd: int, cap: int) -> tuple[bytes, bool, bool]:
    """At most `cap` bytes; whether there was more; whether the file was filled.

    Filled counts from shortly before the end: a kernel may refuse the whole of a larger chunk.
    """
    length = os.lseek(fd, 0, os.SEEK_CUR)
    if length <= 0:
        return b"", False, False
    size = os.fstat(fd).st_size
    is_full = length >= size - min(_CHUNK, size // 4)
    return os.pread(fd, min(length, cap, size), 0), length > cap, is_full
