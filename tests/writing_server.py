"""A server on this machine that speaks the OpenAI chat API, for tests: answers, counts, misbehaves."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = tuple[int, str]
"""A status, and the answer's text or an error's."""


class WritingServer:
    """`reply` is asked with the last message and how often it was seen before."""

    def __init__(self, reply: Callable[[str, int], Reply], *, seconds: float) -> None:
        self.reply, self.seconds = reply, seconds
        self.seen: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.bodies: list[dict] = []
        self.keys: set[str | None] = set()
        self.num_now = self.most_at_once = 0
        self.lock = threading.Lock()
        self.url = ""


@contextmanager
def writing_server(reply: Callable[[str, int], Reply], *, seconds: float = 0.0) -> Iterator:
    server = WritingServer(reply, seconds=seconds)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path != "/v1/chat/completions":
                self._send(404, "no such path")
                return
            text = body["messages"][-1]["content"]
            with server.lock:
                server.bodies.append(body)
                server.keys.add(self.headers.get("authorization"))
                number = server.seen[text]
                server.seen[text] += 1
                server.num_now += 1
                server.most_at_once = max(server.most_at_once, server.num_now)
            time.sleep(server.seconds)
            status, answer = server.reply(text, number)
            with server.lock:
                server.num_now -= 1
                server.answered[text] += status == 200
            self._send(status, answer)

        def _send(self, status: int, answer: str) -> None:
            message = {"message": {"role": "assistant", "content": answer}}
            body = {"choices": [message]} if status == 200 else {"error": {"message": answer}}
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            if status == 429:
                self.send_header("retry-after", "0.05")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that was killed is no error of the server's."""

    http = Quiet(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
