"""Rung C's file system: what a call may open, by Landlock, where no namespace can be had.

Reads the kernel's Landlock version; restricts a process for good. Nothing is hidden by name (`stat`
works everywhere), but nothing outside the interpreter, its libraries and the call's own folder can
be opened or listed: other processes' /proc entries, home folders and the project included. TCP is
refused from version 4 on, signals to others from version 6 on; before, the system-call filter has
to refuse them. Disk space of the call's folder is bounded by file only.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from infra.sandbox import kernel, root

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
READ = EXECUTE | READ_FILE | READ_DIR
SIGNAL_SCOPE_VERSION = 6
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_NEWEST = (1 << 16) - 1
_TCP, _SCOPES = 0b11, 0b11
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on every processor
_VERSION_FLAG = 1
_PATH_BENEATH = 1


class _RulesetAttr(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def version() -> int:
    """The kernel's Landlock version; raises `OSError` where it has none."""
    return kernel.system_call(_CREATE, None, 0, _VERSION_FLAG)


def all_rights() -> int:
    """Every file right that this kernel can handle."""
    return _ALL_BY_VERSION.get(version(), _ALL_NEWEST)


def open_rules(tier: str, project: str) -> list[tuple[int, int]]:
    """`(descriptor, rights)` of what every call of a tier may open; the zygote keeps them open."""
    rules: list[tuple[int, int]] = []
    paths = sysconfig.get_paths()
    libraries = sysconfig.get_config_var("LIBDIR") or ""
    sites = dict.fromkeys((paths["purelib"], paths["platlib"]))
    readable = [paths["stdlib"], *root.SYSTEM_FOLDERS, "/etc/ld.so.cache", "/bin/sh"]
    readable += [str(file) for file in Path(libraries).glob("libpython*.so*")]
    readable.append(os.path.realpath(sys.executable))
    if tier == "verify":
        readable += [*sites, f"{project}/rstar2"]
    else:
        readable += [str(p) for site in sites for p in root.packages_in(site, root.USER_PACKAGES)]
    _add(rules, readable, READ)
    _add(rules, sites, READ_DIR)
    _add(rules, (f"/dev/{name}" for name in root.DEVICES), READ_FILE | WRITE_FILE)
    return rules


def _add(rules: list[tuple[int, int]], paths: Iterable[str], rights: int) -> None:
    for path in paths:
        if os.path.exists(path):
            allowed = rights if os.path.isdir(path) else rights & ~READ_DIR
            rules.append((os.open(path, os.O_PATH | os.O_CLOEXEC), allowed))


def make_ruleset(rules: list[tuple[int, int]], own_folder: str) -> int:
    """A descriptor of what one call may open: the tier's rules and all of its own folder."""
    number = version()
    attr = _RulesetAttr(
        files=all_rights(),
        network=_TCP if number >= 4 else 0,
        scoped=_SCOPES if number >= SIGNAL_SCOPE_VERSION else 0,
    )
    size = 24 if number >= SIGNAL_SCOPE_VERSION else 16 if number >= 4 else 8
    ruleset = kernel.system_call(_CREATE, ctypes.byref(attr), size, 0)
    own = os.open(own_folder, os.O_PATH | os.O_CLOEXEC)
    for fd, rights in [*rules, (own, all_rights())]:
        rule = _PathBeneath(rights, fd)
        kernel.system_call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    os.close(own)
    return ruleset


def restrict(ruleset: int) -> None:
    """Restricts this process to the ruleset; needs no_new_privs."""
    kernel.system_call(_RESTRICT, ruleset, 0)
