"""A night's changes, a configuration file, and real servers on this machine that are told."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


def change(host: str, check: str = "cudnn.files", **more: Any) -> dict[str, Any]:
    """A row of the document of changes."""
    return {
        "kind": "failure",
        "host": host,
        "check": check,
        "before": "PASS",
        "after": "FAIL",
        "text": "cudnn.files fails: 1 of its 39 files changed",
        "weight": "bad",
        "strikes": 1,
        "remedy": f"./gpufleet provision --limit {host}",
        **more,
    }


@pytest.fixture
def changes() -> dict[str, Any]:
    """Two hosts broke alike, one is well again."""
    return {
        "schema": 1,
        "since": "2026-11-20T03:00:00Z",
        "night": "2026-11-21T03:00:00Z",
        "changes": [
            change("gpu02"),
            change("gpu01"),
            change(
                "gpu09",
                "host.reachable",
                kind="recovery",
                weight="good",
                strikes=0,
                text="it answers again",
                remedy="",
            ),
        ],
        "standing": [
            {
                "host": host,
                "check": "cudnn.files",
                "verdict": "FAIL",
                "cause": "1 of its 39 files changed",
                "remedy": f"./gpufleet provision --limit {host}",
                "strikes": 1,
            }
            for host in ("gpu01", "gpu02")
        ],
        "hosts": {
            "PASS": 98,
            "FAIL": 2,
            "HUNG": 0,
            "UNREACHABLE": 0,
            "INCONCLUSIVE": 0,
            "NOT-DECLARED": 0,
        },
        "hosts_before": {
            "PASS": 99,
            "FAIL": 0,
            "HUNG": 0,
            "UNREACHABLE": 1,
            "INCONCLUSIVE": 0,
            "NOT-DECLARED": 0,
        },
    }


@dataclass
class Listener:
    """A web server that keeps what it is told, and answers as it is told to."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    heard: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A web server on this machine."""
    found = Listener()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found.heard.append((self.command, dict(self.headers), json.loads(body or b"null")))
            status = found.answers.pop(0) if found.answers else 200
            self.send_response(status)
            if status == 302:
                self.send_header("Location", found.url)
            self.end_headers()

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}/hook/s3cret"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        server.shutdown()


@dataclass
class Post:
    """A mail server that keeps the subjects it is handed, and refuses some recipients."""

    port: int = 0
    refused: set[str] = field(default_factory=set)
    heard: list[str] = field(default_factory=list)


@pytest.fixture
def post() -> Iterator[Post]:
    """A mail server on this machine."""
    found = Post()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 here")
            for line in self.rfile:
                word = line.decode().strip().lower()
                if word == "data":
                    self.say("354 go on")
                    lines = list(iter(lambda: self.rfile.readline().decode().strip(), "."))
                    found.heard += [line for line in lines if line.startswith("Subject: ")]
                refused = any(f"<{name}>" in word for name in found.refused)
                self.say(
                    "550 unknown"
                    if refused and word.startswith("rcpt")
                    else "221 bye"
                    if word == "quit"
                    else "250 well"
                )

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        found.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        server.shutdown()


@pytest.fixture
def configured(tmp_path: Path) -> Any:
    """Writes a configuration file; returns its path."""

    def write(**more: Any) -> Path:
        path = tmp_path / "nightly.yml"
        path.write_text(
            json.dumps(
                {
                    "inventory": [str(tmp_path / "hosts.yml")],
                    "state_dir": str(tmp_path / "state"),
                    "reports_dir": str(tmp_path / "reports"),
                    "tell_within_s": 5,
                    **more,
                }
            )
        )
        return path

    (tmp_path / "hosts.yml").write_text(
        "gpu_hosts: {hosts: {gone: {ansible_host: 127.0.0.1, ansible_port: 1,"
        " gpu_expect: {count: 0}}}}"
    )
    return write
