"""The Linux calls that the sandbox needs and Python 3.11 does not offer, one function each.

Reads and writes nothing of its own. Every function raises `OSError` with the call's name, so that
a failed step of the isolation says which one. Deliberately holds no policy.
"""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
ADDR_NO_RANDOMIZE = 0x0040000

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_SECCOMP_MODE_FILTER = 2
_PROT_READ_WRITE = 3
_MAP_SHARED = 1
_NUM_CAPABILITIES = 41
_CAPABILITY_VERSION_3 = 0x20080522
_NUMBERS = {
    "x86_64": {"pivot_root": 155, "mount_setattr": 442, "close_range": 436},
    "aarch64": {"pivot_root": 41, "mount_setattr": 442, "close_range": 436},
}

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_mount = _libc.mount
_mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


class _SockFprog(ctypes.Structure):
    _fields_ = (("num_instructions", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def is_supported() -> bool:
    """Whether this is Linux on a processor whose call numbers are known here."""
    return platform.system() == "Linux" and platform.machine() in _NUMBERS


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def enter_namespace(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = _mount(
        source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None
    )
    _check(result, f"mount {target}")


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def restrict_mounts(target: str, attributes: int) -> None:
    """Adds `attributes` to the mount at `target` and all below it (kernel 5.12 or newer)."""
    attr = _MountAttr(attributes, 0, 0, 0)
    number = _NUMBERS[platform.machine()]["mount_setattr"]
    result = _syscall(
        ctypes.c_long(number),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(target.encode()),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attr),
        ctypes.c_size_t(ctypes.sizeof(attr)),
    )
    _check(result, f"mount_setattr {target}")


def replace_root(new_root: str) -> None:
    """Makes `new_root` (a mount point) the root; the old one becomes unreachable."""
    os.chdir(new_root)
    number = _NUMBERS[platform.machine()]["pivot_root"]
    _check(_syscall(ctypes.c_long(number), ctypes.c_char_p(b"."), ctypes.c_char_p(b".")), "pivot")
    unmount(".")
    os.chdir("/")


def process_control(option: int, *arguments: int) -> None:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    _check(_prctl(option, *padded), f"prctl {option}")


class Filter:
    """A seccomp program, laid out once so that a child installs it with one call."""

    __slots__ = ("_address", "_buffer", "_program")

    def __init__(self, program: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self._program = _SockFprog(len(program) // 8, ctypes.addressof(self._buffer))
        self._address = ctypes.addressof(self._program)

    def install(self) -> None:
        """For this process and all it will start; needs no_new_privs."""
        _check(_prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._address, 0, 0), "seccomp")


def set_personality(flags: int) -> int:
    """Sets the personality for this process and what it executes; returns the previous one."""
    return int(_libc.personality(ctypes.c_ulong(flags)))


def system_call(number: int, *arguments: object) -> int:
    """A call without a wrapper in the C library; integers are passed as `long`."""
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_syscall(ctypes.c_long(number), *values))
    _check(result, f"system call {number}")
    return result


def map_shared(fd: int, num_bytes: int) -> memoryview:
    """The file's first bytes as memory, for as long as this process lives; needs `fd` no more.

    Not by `mmap.mmap`, which keeps a descriptor of its own.
    """
    address = _mmap(None, num_bytes, _PROT_READ_WRITE, _MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        _check(-1, "mmap")
    return memoryview((ctypes.c_char * num_bytes).from_address(address)).cast("B")


def close_from(first: int) -> None:
    """Closes every descriptor from `first` upwards."""
    number = _NUMBERS[platform.machine()]["close_range"]
    result = _syscall(
        ctypes.c_long(number), ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0)
    )
    if result < 0:  # kernels before 5.9
        os.closerange(first, 4096)


def keep_capabilities_over_exec() -> None:
    """Raises every permitted capability into the ambient set (a non-root user of a namespace)."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, data), "capget")
    data[2], data[5] = data[1], data[4]  # inheritable = permitted, low and high words
    _check(_libc.capset(header, data), "capset")
    permitted = data[1] | data[4] << 32
    for capability in range(_NUM_CAPABILITIES):
        if permitted >> capability & 1:
            process_control(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def drop_capabilities() -> None:
    """Empties the permitted, effective, inheritable and (with them) ambient sets."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
