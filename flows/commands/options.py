"""What several commands are given: a run and where it is kept, and files to read.

What is not there, or is no text, is a mistake of whoever named it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Run = Annotated[str, Parameter(help="Name of the run.")]
Storage = Annotated[str, Parameter(help="Folder or s3://bucket/prefix of the runs.")]


class InputError(ValueError):
    """A file that was named cannot be read."""


def read_input(file: Path | None) -> bytes:
    """The bytes of a file, or of standard input where none was named."""
    if file is None:
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from None


def check_input(file: Path) -> None:
    """Raises `InputError` where a command could not read the file later."""
    try:
        file.open("rb").close()
    except OSError as error:
        raise _unreadable(file, error) from None


def read_text(file: Path | None) -> str:
    """The same as UTF-8 text."""
    try:
        return read_input(file).decode("utf-8")
    except UnicodeDecodeError as error:
        name = "standard input" if file is None else file
        raise InputError(
            f"{name}: byte {error.start} is not UTF-8; expected text in UTF-8"
        ) from None


def _unreadable(file: Path, error: OSError) -> InputError:
    return InputError(f"{file}: {error.strerror}; expected a file that can be read")
