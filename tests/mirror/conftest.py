"""A site that serves files, and an inventory whose artifacts come from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.mirror_site import CONTENTS, Desk, Handler, Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "site")
    made.root.mkdir()
    made.hold.set()
    for name, content in CONTENTS.items():
        (made.root / name).write_bytes(content)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, site=made))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    yield made
    made.hold.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def desk(tmp_path: Path, site: Site, capfd: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, site, capfd)
