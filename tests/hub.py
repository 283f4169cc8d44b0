"""A model hub on loopback, as far as huggingface_hub asks it: one model of a few files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Answers for one model; counts how often each file was fetched."""

    def __init__(self, name: str, files: dict[str, bytes]) -> None:
        self.name, self.files = name, files
        self.fetched: Counter[str] = Counter()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(request.path).path)
        data, headers = b"", {"X-Repo-Commit": REVISION, "Content-Type": "application/json"}
        status = 200
        if path.startswith(f"/api/models/{self.name}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.files.items()
            ]
            data = json.dumps(tree).encode()
        elif path.startswith(f"/api/models/{self.name}"):
            siblings = [{"rfilename": name} for name in self.files]
            about = {"id": self.name, "modelId": self.name, "sha": REVISION, "private": False}
            data = json.dumps({**about, "tags": [], "downloads": 0, "siblings": siblings}).encode()
        elif path.startswith(f"/{self.name}/resolve/"):
            name = path.split("/resolve/", 1)[1].partition("/")[2]
            data = self.files.get(name, b"")
            status = 200 if name in self.files else 404
            headers["ETag"] = f'"{hashlib.sha1(data).hexdigest()}"'
            headers["Content-Type"] = "application/octet-stream"
            if body:
                self.fetched[name] += 1
        else:
            status = 404
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if body:
            request.wfile.write(data)


@contextmanager
def hub(name: str, files: dict[str, bytes]) -> Iterator[Hub]:
    """The hub, while inside."""
    running = Hub(name, files)
    thread = threading.Thread(target=running.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.server.shutdown()
        running.server.server_close()
        thread.join()
