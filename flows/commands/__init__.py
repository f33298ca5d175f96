"""The `rstar2` command: one file per group, each loaded only when it is used."""

from flows.commands.main import main

__all__ = ["main"]
