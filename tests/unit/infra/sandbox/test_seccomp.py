"""The filter is run here as the kernel would run it, instruction by instruction."""

import errno
import struct

import pytest

from infra.sandbox.seccomp import build_filter

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
X86_64, AARCH64 = 0xC000003E, 0xC00000B7


def decide(program: bytes, arch: int, number: int, argument: int = 0) -> int:
    data = struct.pack("=IIQQ", number, arch, 0, argument)
    code = list(struct.iter_unpack("=HBBI", program))
    position = accumulator = 0
    while True:
        operation, if_true, if_false, operand = code[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x06:
            return int(operand)
        else:
            tests = {0x15: accumulator == operand, 0x35: accumulator >= operand}
            is_true = tests.get(operation, bool(accumulator & operand))
            position += if_true if is_true else if_false


@pytest.mark.parametrize(
    ("name", "number", "argument", "action"),
    [
        ("read", 0, 0, ALLOW),
        ("execve", 59, 0, ALLOW),
        ("memfd_create", 319, 0, EPERM),
        ("rseq", 334, 0, ALLOW),
        ("close_range", 436, 0, ALLOW),
        ("fork by clone", 56, 17, ALLOW),
        ("clone into a user namespace", 56, 0x10000000 | 17, EPERM),
        ("clone3", 435, 0, ENOSYS),
        ("pair of unix sockets", 53, 1, ALLOW),
        ("pair of internet sockets", 53, 2, EPERM),
        ("socket", 41, 1, EPERM),
        ("ptrace", 101, 0, EPERM),
        ("mount", 165, 0, EPERM),
        ("bpf", 321, 0, EPERM),
        ("io_uring_setup", 425, 0, EPERM),
        ("open_tree", 428, 0, EPERM),
        ("number of tomorrow", 9999, 0, ENOSYS),
        ("x32 read", 0x40000000, 0, ENOSYS),
    ],
)
def test_what_the_filter_decides_on_x86_64(
    name: str, number: int, argument: int, action: int
) -> None:
    assert decide(build_filter("x86_64"), X86_64, number, argument) == action


@pytest.mark.parametrize(
    ("name", "number", "argument", "action"),
    [
        ("read", 63, 0, ALLOW),
        ("execve", 221, 0, ALLOW),
        ("fork by clone", 220, 17, ALLOW),
        ("clone into a network namespace", 220, 0x40000000, EPERM),
        ("socket", 198, 0, EPERM),
        ("connect", 203, 0, EPERM),
        ("socketpair", 199, 1, ALLOW),
        ("ptrace", 117, 0, EPERM),
        ("mount", 40, 0, EPERM),
        ("unshare", 97, 0, EPERM),
        ("keyctl", 219, 0, EPERM),
    ],
)
def test_what_the_filter_decides_on_aarch64(
    name: str, number: int, argument: int, action: int
) -> None:
    assert decide(build_filter("aarch64"), AARCH64, number, argument) == action


def test_calls_of_another_architecture_are_killed() -> None:
    assert decide(build_filter("x86_64"), 0x40000003, 0) == KILL


def test_a_processor_without_a_table_is_refused() -> None:
    with pytest.raises(KeyError):
        build_filter("riscv64")


@pytest.mark.parametrize(
    ("name", "number", "argument", "action"),
    [
        ("fork", 57, 0, EPERM),
        ("vfork", 58, 0, EPERM),
        ("fork by clone", 56, 17, EPERM),
        ("thread by clone", 56, 0x10000 | 0x100, ALLOW),
        ("own limits", 302, 0, ALLOW),
        ("limits of another", 302, 1, EPERM),
        ("kill", 62, 1, ALLOW),
        ("socket", 41, 1, EPERM),
    ],
)
def test_a_single_process_starts_threads_only(
    name: str, number: int, argument: int, action: int
) -> None:
    program = build_filter("x86_64", single_process=True)
    assert decide(program, X86_64, number, argument) == action


@pytest.mark.parametrize("number", [62, 129, 200, 234, 297, 424])
def test_no_signal_is_sent_where_they_are_refused(number: int) -> None:
    program = build_filter("x86_64", single_process=True, no_signals=True)
    assert decide(program, X86_64, number, 1) == EPERM
