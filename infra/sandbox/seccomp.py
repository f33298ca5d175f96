"""The system-call filter of a sandboxed call, as a program for the kernel.

Reads and writes nothing. An allow list: what is not named here is refused, new calls of new kernels
included. Refused are sockets, tracing, namespaces, mounts, keys, kernel modules, io_uring, bpf, IPC
objects that outlive a process and memory files, which would count neither as memory nor as disk.
The tables are by processor, since the kernel numbers them so. The program is a binary search, about
130 instructions: the kernel evaluates it once per number when it is installed, so its depth is what
a call pays for it.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15
_JUMP_GREATER_EQUAL = 0x35
_JUMP_BITS = 0x45
_RETURN = 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENT = 0, 4, 16

ALLOW = 0x7FFF0000
KILL = 0x80000000
REFUSE = 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS

NAMESPACE_FLAGS = 0x7E020000
"""Every CLONE_NEW* flag that clone accepts."""
AF_UNIX = 1

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_FORK = {"x86_64": (57, 58), "aarch64": ()}
_SIGNAL = {"x86_64": (62, 129, 200, 234, 297, 424), "aarch64": (129, 130, 131, 138, 240, 424)}
CLONE_THREAD = 0x10000
_LAST = {"x86_64": 334, "aarch64": 293}
"""The last number of the old, dense table; of what came later only `_LATER` is allowed."""
_LATER = (424, 434, 436, 439, 441, 449)
"""pidfd_send_signal, pidfd_open, close_range, faccessat2, epoll_pwait2, futex_waitv."""
_LATER_KNOWN = range(424, 451)
_CLONE3 = 435

_REFUSED = {
    "x86_64": (
        *range(29, 32),  # shmget shmat shmctl
        *(41, 42, 43, 49, 50, 288),  # socket connect accept bind listen accept4
        *range(64, 72),  # semget … msgctl
        *(101, 103),  # ptrace syslog
        *(134, 135, 136, 139),  # uselib personality ustat sysfs
        *range(153, 157),  # vhangup modify_ldt pivot_root _sysctl
        *(159, 161, 163, 164, 165, 166),  # adjtimex chroot acct settimeofday mount umount2
        *range(167, 186),  # swapon … security
        *range(206, 211),  # io_setup … io_cancel
        *(212, 216, 220, 227),  # lookup_dcookie remap_file_pages semtimedop clock_settime
        *(236, 237, 238),  # vserver mbind set_mempolicy
        *range(240, 247),  # mq_open … mq_getsetattr kexec_load
        *range(248, 251),  # add_key request_key keyctl
        *range(253, 257),  # inotify_init … migrate_pages
        *(272, 276, 278, 279),  # unshare tee vmsplice move_pages
        *(294, 298, 300, 301),  # inotify_init1 perf_event_open fanotify_init fanotify_mark
        *(303, 304, 305, 308),  # name_to_handle_at open_by_handle_at clock_adjtime setns
        *range(310, 314),  # process_vm_readv process_vm_writev kcmp finit_module
        *(317, 319, 320, 321, 322),  # seccomp memfd_create kexec_file_load bpf execveat
        *(323, 333),  # userfaultfd io_pgetevents
    ),
    "aarch64": (
        *range(0, 5),  # io_setup … io_getevents
        *(18, 26, 27, 28),  # lookup_dcookie inotify
        *range(39, 43),  # umount2 mount pivot_root nfsservctl
        *(51, 58, 60, 75, 77, 89, 92, 97),  # chroot vhangup quotactl vmsplice tee acct personality
        *(104, 105, 106, 112, 116, 117),  # kexec_load modules clock_settime syslog ptrace
        *(142, 161, 162, 170, 171),  # reboot sethostname setdomainname settimeofday adjtimex
        *range(180, 199),  # mq_open … socket
        *range(200, 204),  # bind listen accept connect
        *range(217, 220),  # add_key request_key keyctl
        *(224, 225, 234, 235, 237, 238, 239),  # swapon swapoff remap_file_pages mempolicy pages
        *(241, 242, 262, 263, 264, 265, 266),  # perf_event_open accept4 fanotify handles clock
        *(268, 270, 271, 272, 273, 277),  # setns process_vm kcmp finit_module seccomp
        *(279, 280, 281, 282, 292),  # memfd_create bpf execveat userfaultfd io_pgetevents
    ),
}


def build_filter(
    machine: str | None = None, *, single_process: bool = False, no_signals: bool = False
) -> bytes:
    """The filter for `machine` (this one by default): `struct sock_filter` records, 8 bytes each.

    Without a process namespace (rung C) a call may start threads only, and change no other
    process's limits; with `no_signals` it may send none. Raises `KeyError` for a processor without
    a table.
    """
    machine = machine or platform.machine()
    refused = {*_REFUSED[machine]}
    special = _argument_check(_SOCKETPAIR[machine], _JUMP_EQUAL, AF_UNIX, (ALLOW, REFUSE))
    if single_process:
        refused |= {*_FORK[machine]}
        special += _argument_check(_CLONE[machine], _JUMP_BITS, CLONE_THREAD, (ALLOW, REFUSE))
        special += _argument_check(_PRLIMIT[machine], _JUMP_EQUAL, 0, (ALLOW, REFUSE))
    else:
        special += _argument_check(_CLONE[machine], _JUMP_BITS, NAMESPACE_FLAGS, (REFUSE, ALLOW))
    if no_signals:
        refused |= {*_SIGNAL[machine]}
    head = [(_LOAD, 0, 0, _OFFSET_ARCH), (_JUMP_EQUAL, 1, 0, _ARCH[machine]), (_RETURN, 0, 0, KILL)]
    body = _tree(_intervals(_LAST[machine], refused))
    program = [*head, (_LOAD, 0, 0, _OFFSET_NUMBER), *special, *body]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


Instruction = tuple[int, int, int, int]


def _argument_check(
    number: int, test: int, operand: int, actions: tuple[int, int]
) -> list[Instruction]:
    """For one call: test its first argument, then return `actions[0]` (true) or `actions[1]`."""
    return [
        (_JUMP_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _OFFSET_ARGUMENT),
        (test, 0, 1, operand),
        (_RETURN, 0, 0, actions[0]),
        (_RETURN, 0, 0, actions[1]),
    ]


def _action(number: int, last: int, refused: set[int]) -> int:
    if number in refused:
        return REFUSE
    if number <= last or number in _LATER:
        return ALLOW
    return REFUSE if number in _LATER_KNOWN and number != _CLONE3 else UNKNOWN


def _intervals(last: int, refused: set[int]) -> list[tuple[int, int]]:
    """`(first number, action)` of each run of equal actions, ascending."""
    runs: list[tuple[int, int]] = []
    for number in range(_LATER_KNOWN.stop + 1):
        action = _action(number, last, refused)
        if not runs or runs[-1][1] != action:
            runs.append((number, action))
    return runs


def _tree(runs: list[tuple[int, int]]) -> list[Instruction]:
    if len(runs) == 1:
        return [(_RETURN, 0, 0, runs[0][1])]
    middle = len(runs) // 2
    left, right = _tree(runs[:middle]), _tree(runs[middle:])
    return [(_JUMP_GREATER_EQUAL, len(left), 0, runs[middle][0]), *left, *right]
