"""A server on this machine that speaks as much of the hub's API as `datasets` needs for one set."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40


@contextmanager
def hub_server(name: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Serves the set `name` (owner/name) with these files; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            _, is_file, rest = path.partition(f"/datasets/{name}/resolve/")
            file = rest.partition("/")[2]
            if is_file and file in files:
                self._send(200, files[file], {"etag": f'"{_oid(file)}"'})
            elif is_file:
                self._send(404, b"", {"x-error-code": "EntryNotFound"})
            elif path.startswith(f"/api/datasets/{name}/tree/"):
                folder = path.partition("/tree/")[2].partition("/")[2]
                self._send(200, json.dumps(_listing(files, folder)).encode(), {})
            elif path.startswith(f"/api/datasets/{name}"):
                siblings = [{"rfilename": file} for file in files]
                info = {"id": name, "sha": COMMIT, "tags": [], "siblings": siblings}
                self._send(200, json.dumps(info).encode(), {})
            else:
                self._send(404, b"{}", {"x-error-code": "RepoNotFound"})

        do_HEAD = do_GET

        def _send(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for key, value in {"x-repo-commit": COMMIT, **headers}.items():
                self.send_header(key, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def _oid(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()


def _listing(files: Mapping[str, bytes], folder: str) -> list[dict[str, object]]:
    """The files and folders directly in `folder`."""
    prefix = f"{folder}/" if folder else ""
    inside = [file.removeprefix(prefix) for file in files if file.startswith(prefix)]
    entries: list[dict[str, object]] = [
        {"type": "directory", "path": prefix + each, "oid": _oid(each), "size": 0}
        for each in sorted({file.split("/")[0] for file in inside if "/" in file})
    ]
    for file in inside:
        if "/" not in file:
            path = prefix + file
            entries.append(
                {"type": "file", "path": path, "oid": _oid(path), "size": len(files[path])}
            )
    return entries
