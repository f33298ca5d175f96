"""The few requests that we send to a Prefect server without importing Prefect.

Reads and writes over HTTP at the API's address. Never raises for a server that is away: it answers
None, and the caller says what that means.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

RESUME_ATTEMPTS = 5
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def get_json(url: str) -> object:
    """The answer, or None where there is none."""
    return _answer(url)


def post_json(url: str, body: Mapping[str, object]) -> object:
    """The answer to a POST, or None where there is none."""
    return _answer(url, json.dumps(body).encode())


def resume_flow_run(
    api_url: str, flow_run_id: str, *, run_input: Mapping[str, object], pause_seconds: float = 1.0
) -> str:
    """Has a suspended flow run go on; returns the type of its state then, empty where none is told.

    Asked again while the flow run is still paused: a busy server answers late, and for a moment
    after a flow run has suspended its form is not stored yet and every input is rejected.
    """
    url = f"{api_url}/flow_runs/{flow_run_id}"
    for attempt in range(RESUME_ATTEMPTS):
        if attempt:
            time.sleep(pause_seconds)
        answer = post_json(f"{url}/resume", {"run_input": run_input})
        if isinstance(answer, dict) and answer.get("status") == "ACCEPT":
            return "SCHEDULED"
        state = _state_type(get_json(url))
        if state not in ("", "PAUSED"):
            break
    return state


def _state_type(flow_run: object) -> str:
    state = flow_run.get("state") if isinstance(flow_run, dict) else None
    return str(state["type"]) if isinstance(state, dict) else ""


def _answer(url: str, data: bytes | None = None) -> object:
    """A proxy is never asked for this machine's own ports. What is no URL has no answer either."""
    headers = {"Content-Type": "application/json"} if data is not None else {}
    try:
        is_local = urlsplit(url).hostname in LOOPBACK
        handlers = [urllib.request.ProxyHandler({})] if is_local else []
        request = urllib.request.Request(url, data, headers)
        with urllib.request.build_opener(*handlers).open(request, timeout=5.0) as answer:
            parsed: object = json.loads(answer.read())
            return parsed
    except (OSError, ValueError, http.client.HTTPException):  # URLError is an OSError
        return None
