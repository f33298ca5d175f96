"""Starting a suspended flow run again, from a server that answers as a busy one does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from infra.prefect_api import RESUME_ATTEMPTS, resume_flow_run

ACCEPT = {"status": "ACCEPT"}
REJECT = {"status": "REJECT", "details": {"reason": "Run input schema not found."}}
ABORT = {"status": "ABORT"}


class Server(ThreadingHTTPServer):
    """Answers each POST with the next of `answers` (None: hangs up), each GET with `state`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[dict[str, object] | None] = []
        self.state = "PAUSED"
        self.posted: list[object] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, json.loads(body)))
        answer = self.server.answers.pop(0) if self.server.answers else REJECT
        if answer is not None:
            self._send(answer)

    def do_GET(self) -> None:
        self._send({"state": {"type": self.server.state}})

    def _send(self, answer: dict[str, object]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def resume(server: Server) -> str:
    url = f"http://127.0.0.1:{server.server_port}/api"
    return resume_flow_run(url, "f1", run_input={"verdict": "approve"}, pause_seconds=0.0)


def test_a_server_that_takes_the_answer_is_asked_once(server: Server) -> None:
    server.answers = [ACCEPT]
    assert resume(server) == "SCHEDULED"
    expected = ("/api/flow_runs/f1/resume", {"run_input": {"verdict": "approve"}})
    assert server.posted == [expected]


def test_a_busy_server_and_a_form_that_is_not_stored_yet_are_asked_again(server: Server) -> None:
    server.answers = [None, REJECT, ACCEPT]
    assert resume(server) == "SCHEDULED"
    assert len(server.posted) == 3


def test_a_flow_run_that_is_not_waiting_is_left_alone(server: Server) -> None:
    server.answers, server.state = [ABORT], "RUNNING"
    assert resume(server) == "RUNNING"
    assert len(server.posted) == 1


def test_a_server_that_never_takes_it_is_given_up(server: Server) -> None:
    assert resume(server) == "PAUSED"
    assert len(server.posted) == RESUME_ATTEMPTS


def test_without_a_server_no_state_is_told() -> None:
    url = "http://127.0.0.1:9/api"
    assert resume_flow_run(url, "f1", run_input={}, pause_seconds=0.0) == ""
