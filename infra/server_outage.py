"""A Prefect server that goes away while a run works: the run waits for it where it needs it.

Asks the server's health over HTTP; starts this checkout's own server again where that was killed.
Between those places the server may be away: steps and their commits do without it.
"""

from __future__ import annotations

import json
import logging
import time

from infra.services import ServiceError, ensure_server, is_healthy, server_file
from infra.settings import Settings, load_settings

log = logging.getLogger(__name__)

WAIT_SECONDS = 3600.0
"""Longer than a restart of a machine or an update of a server takes."""


def await_server(*, wait_seconds: float = WAIT_SECONDS) -> None:
    """Returns when the server that this process reports to answers; raises `ServiceError`.

    Prefect begins a subflow with a new connection, and gives up at once where that is refused.
    """
    settings = load_settings()
    if not settings.is_api_url_chosen or is_healthy(settings.api_url):
        return
    if _is_ours(settings):
        log.warning("the Prefect server at %s is gone: starting it again", settings.api_url)
        ensure_server(settings)
        return
    log.warning(
        "the Prefect server at %s does not answer: waiting for it up to %.0f minutes; nothing is "
        "lost, and the same run name goes on later", settings.api_url, wait_seconds / 60,
    )  # fmt: skip
    deadline = time.monotonic() + wait_seconds
    while not is_healthy(settings.api_url):
        if time.monotonic() > deadline:
            raise ServiceError(
                f"the Prefect server at {settings.api_url} did not answer for {wait_seconds:.0f} s: "
                "expected it to come back. Start it, then the run again: it goes on where it was"
            )
        time.sleep(1.0)


def is_server_away() -> bool:
    """Whether the server that this process reports to does not answer now."""
    settings = load_settings()
    return settings.is_api_url_chosen and not is_healthy(settings.api_url)


def _is_ours(settings: Settings) -> bool:
    """Whether this checkout started the server at that address, be it alive or not."""
    try:
        record = json.loads(server_file(settings).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("address") == settings.api_url
