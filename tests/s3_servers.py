"""For tests of S3: the bucket they use, and a proxy before the server that does one thing wrong."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

BUCKET = "rstar2-tests"

Fault = Callable[[BaseHTTPRequestHandler], str | None]
"""Sees a request before it is forwarded and may change its headers. Returns `drop` to close the
connection instead of replying, an S3 error code to reply with instead of forwarding, or None."""

STATUS = {"SlowDown": 503, "InternalError": 500}
"""Of an error code; 403 for the others."""


@contextmanager
def faulty_proxy(endpoint: str, fault: Fault) -> Iterator[str]:
    """Address of a proxy before `endpoint` with this fault."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(endpoint, fault))
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _handler(endpoint: str, fault: Fault) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            verdict = fault(self)
            if verdict not in (None, "drop"):
                return self.refuse(verdict)
            upstream = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            reply = upstream.getresponse()
            data = reply.read()
            if verdict == "drop":
                self.close_connection = True
                return None
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = reply.getheader("Content-Length") if self.command == "HEAD" else len(data)
            self.send_header("Content-Length", str(length or 0))
            self.end_headers()
            self.wfile.write(data)
            return None

        def refuse(self, code: str | None) -> None:
            data = f"<Error><Code>{code}</Code><Message>the key id is AKIASECRET</Message></Error>"
            self.send_response(STATUS.get(code or "", 403))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data.encode())

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = forward

        def log_message(self, *_: object) -> None:
            return None

    return Handler
