"""A call's input and outputs: memory files of the zygote, so that nothing has to read along.

Written by the call through the descriptors it inherits, read by the zygote when the call is over. An
output has a fixed, sealed size: a program that prints for ever fails at its end, and what it may
cost in memory is bounded. Its length is the offset that all writers share.
"""

from __future__ import annotations

import os
from fcntl import fcntl

_MEMFD = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CHUNK = 65_536
_F_ADD_SEALS = 1033
_SEALS = 0x1 | 0x2 | 0x4  # no more seals, no shrinking, no growing


def memory_file(num_bytes: int) -> int:
    """A memory file of fixed size: writing past its end fails, and its length is its offset.

    Whole pages, since the kernel refuses the part of a write that leaves a sealed page.
    """
    fd = os.memfd_create("output", _MEMFD)
    os.ftruncate(fd, -(-num_bytes // _PAGE) * _PAGE)
    fcntl(fd, _F_ADD_SEALS, _SEALS)
    return fd


def stdin_file(text: str) -> int:
    fd = os.memfd_create("input", _MEMFD)
    data = memoryview(text.encode())
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


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
