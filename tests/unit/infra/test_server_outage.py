"""A Prefect server that does not answer: waited for, and named where it stays away."""

from __future__ import annotations

import logging
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Timer

import pytest
from prefect_servers import free_port

from infra.server_outage import await_server, is_server_away
from infra.services import ServiceError


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A free one, at which the environment says that a server is which we did not start."""
    number = free_port()
    monkeypatch.setenv("RSTAR2_STATE_FOLDER", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{number}/api")
    return number


def test_a_server_that_comes_back_is_waited_for(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    servers: list[HTTPServer] = []

    def come_back() -> None:
        servers.append(HTTPServer(("127.0.0.1", port), Healthy))
        servers[0].serve_forever()

    timer = Timer(0.5, come_back)
    timer.start()
    with caplog.at_level(logging.WARNING):
        await_server(wait_seconds=60.0)
    servers[0].shutdown()
    servers[0].server_close()
    assert len(caplog.records) == 1
    assert "does not answer: waiting for it up to 1 minutes" in caplog.text


def test_a_server_that_stays_away_is_named(port: int) -> None:
    with pytest.raises(ServiceError, match=rf"127.0.0.1:{port}/api did not answer for 0 s"):
        await_server(wait_seconds=0.0)


def test_a_process_that_reports_to_no_server_waits_for_none(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_server_away()
    monkeypatch.delenv("PREFECT_API_URL")
    assert not is_server_away()
    await_server(wait_seconds=0.0)
