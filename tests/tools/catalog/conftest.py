"""A package index on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.support.wheel_index import (
    Index,
)


@pytest.fixture
def index() -> Iterator[Index]:
    """An empty index over http, that knows ranges."""
    here = Index({})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            here.asked.append((self.path, self.headers["Range"]))
            here.passwords.append(self.headers["Authorization"])
            _, kind, name, *_ = self.path.split("/")
            body = here.page(name) if kind == "simple" else here.files.get(name)
            part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
            if not body:
                self.send_error(404)
                return
            whole = len(body)
            if part and here.ranges:
                body = body[int(part[1]) : int(part[2]) + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {part[1]}-{part[2]}/{whole}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the log quiet: the index has what was asked for."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        here.address = f"http://127.0.0.1:{server.server_port}/simple"
        yield here
        server.shutdown()
