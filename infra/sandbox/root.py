"""Builds the file system that a zygote and its calls see: interpreter, libraries, nothing else.

Reads where this interpreter and its packages lie; writes mounts in a private mount namespace, on
a tmpfs over an empty folder. Paths inside are always the same (`/python/...`), wherever the
project and its environment lie outside, so neither tracebacks nor `sys.path` name the host's
folders. Deliberately not visible: home folders, the project, the rest of the environment (torch,
this package), /etc, /usr/bin, and every process outside.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from infra.sandbox import kernel

PREFIX = "/python"
SITE = f"{PREFIX}/site"
"""Where packages lie; named by PYTHONPATH, since a distribution's interpreter may look nowhere."""
CODE = "/harness"
"""Where the zygote's own code lies until it has been imported."""
LAUNCHER = """\
#!/bin/sh
LD_LIBRARY_PATH={prefix}/lib PYTHONPATH={site} exec {interpreter} "$@"
"""
USER_PACKAGES = (
    "numpy", "sympy", "mpmath", "scipy", "gmpy2", "networkx", "pandas", "dateutil", "six",
    "pytz", "tzdata",
)  # fmt: skip
"""What a snippet may import, where installed; a fixed list, so that the rest of the environment
cannot change what code does."""
VERIFY_PACKAGES = (
    "numpy", "sympy", "mpmath", "math_verify", "latex2sympy2_extended", "antlr4",
    "antlr4_python3_runtime", "gmpy2",
)  # fmt: skip
SYSTEM_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64")
_LIBRARIES = (
    "libpython", "libssl", "libcrypto", "libffi", "libz.", "liblzma", "libbz2", "libsqlite3",
    "libexpat", "libstdc++", "libgcc_s", "libtinfo", "libncurses", "libmpdec", "libuuid",
)  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom")


def interpreter_inside() -> str:
    """The path of the interpreter, seen from inside."""
    return f"{PREFIX}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def launcher_inside() -> str:
    """What `sys.executable` is inside: starts the interpreter with its libraries found."""
    return f"{PREFIX}/bin/python"


def build_root(new_root: str, *, tier: str, user_id: int, project: str, with_proc: bool) -> None:
    """Mounts the view at `new_root` and enters it. The caller has a private mount namespace.

    The whole is read-only afterwards; `/tmp` is where each call mounts a folder of its own.
    """
    kernel.mount("tmpfs", new_root, kind="tmpfs", options="mode=0755,size=1m")
    base = Path(new_root)
    for folder in ("etc", "dev", "proc", "tmp", "bin"):
        (base / folder).mkdir()
    _write_accounts(base / "etc", user_id)
    _bind_system(base)
    _bind_interpreter(base, VERIFY_PACKAGES if tier == "verify" else USER_PACKAGES)
    _bind_harness(base, project, tier)
    (base / "dev/shm").symlink_to("/tmp")
    for device in DEVICES:
        (base / "dev" / device).touch()
    flags = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
    kernel.restrict_mounts(new_root, flags)
    for device in DEVICES:
        _bind(f"/dev/{device}", base / "dev" / device)
    if with_proc:
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("proc", f"{new_root}/proc", kind="proc", flags=flags)
    kernel.replace_root(new_root)


def _bind(source: str | Path, target: Path) -> None:
    kernel.mount(str(source), str(target), flags=kernel.MS_BIND | kernel.MS_REC)


def _bind_folder(source: str | Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    _bind(source, target)


def _bind_file(source: str | Path, target: Path) -> None:
    """A file, or a symbolic link with a relative target, which is made anew."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.islink(source) and "/" not in os.readlink(source):
        target.symlink_to(os.readlink(source))
        return
    target.touch()
    _bind(os.path.realpath(source), target)


def _write_accounts(folder: Path, user_id: int) -> None:
    line = f"sandbox:x:{user_id}:{user_id}:sandbox:/tmp:/bin/sh\n"
    (folder / "passwd").write_text(line)
    (folder / "group").write_text(f"sandbox:x:{user_id}:\n")


def _bind_system(base: Path) -> None:
    """The C library and its friends, a shell, and the loader's index."""
    for folder in SYSTEM_FOLDERS:
        target = base / folder[1:]
        if os.path.islink(folder):
            target.symlink_to(os.readlink(folder))
        elif os.path.isdir(folder):
            _bind_folder(folder, target)
    for file in ("/bin/sh", "/etc/ld.so.cache"):
        if os.path.exists(file):
            target = base / file[1:]
            target.touch()
            _bind(os.path.realpath(file), target)


def _bind_interpreter(base: Path, packages: tuple[str, ...]) -> None:
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    inside = base / PREFIX[1:] / sys.platlibdir / stdlib.name
    _bind_folder(stdlib, inside)
    executable = os.path.realpath(sys.executable)
    _bind_file(executable, base / interpreter_inside()[1:])
    launcher = base / launcher_inside()[1:]
    launcher.write_text(LAUNCHER.format(prefix=PREFIX, site=SITE, interpreter=interpreter_inside()))
    launcher.chmod(0o755)
    libraries = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent")
    if not str(libraries).startswith(SYSTEM_FOLDERS):
        for file in sorted(libraries.glob("*.so*")):
            if file.name.startswith(_LIBRARIES):
                _bind_file(file, base / PREFIX[1:] / "lib" / file.name)
    if (inside / "site-packages").is_dir():
        _cover(inside / "site-packages")
    _bind_packages(base / SITE[1:], packages)


def _cover(folder: Path) -> None:
    """Hides what else is installed beside the interpreter."""
    kernel.mount("tmpfs", str(folder), kind="tmpfs", options="mode=0755,size=4k")


def packages_in(site: str, packages: tuple[str, ...]) -> list[Path]:
    """Entries of a site-packages folder that belong to `packages`, their metadata included."""
    return [
        entry
        for entry in sorted(Path(site).iterdir())
        if entry.name.split("-")[0].removesuffix(".libs").removesuffix(".py") in packages
    ]


def _bind_packages(target: Path, packages: tuple[str, ...]) -> None:
    target.mkdir()
    sites = dict.fromkeys((sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]))
    entries = [entry for site in sites for entry in packages_in(site, packages)]
    for entry in {entry.name: entry for entry in reversed(entries)}.values():
        if entry.is_dir():
            _bind_folder(entry, target / entry.name)
        else:
            _bind_file(entry, target / entry.name)


def _bind_harness(base: Path, project: str, tier: str) -> None:
    (base / CODE[1:] / "infra").mkdir(parents=True)
    (base / CODE[1:] / "infra/__init__.py").touch()
    _bind_folder(Path(project) / "infra/sandbox", base / CODE[1:] / "infra/sandbox")
    if tier == "verify":
        _bind_folder(Path(project) / "rstar2", base / CODE[1:] / "rstar2")
