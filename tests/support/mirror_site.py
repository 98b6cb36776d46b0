"""A web site that serves artifacts, and the artifacts commands run on an inventory of it."""

from __future__ import annotations

import hashlib
import io
import json
import signal
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.cli.main import main

RUNFILE = "cuda_11.8.0_520.61.05_linux.run"
ARCHIVE = "cudnn-linux-x86_64-8.6.0.163_cuda11-archive.tar.xz"
CONTENTS = {RUNFILE: b"a runfile's content " * 5000, ARCHIVE: b"an archive's content " * 3000}


class Handler(SimpleHTTPRequestHandler):
    """Serves a directory, continues where asked, and breaks off where the site says so."""

    def __init__(self, *words: Any, site: Site, **more: Any) -> None:
        self.site = site
        super().__init__(*words, directory=str(site.root), **more)

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.site.asked.append((self.command, self.path, asked))
        content = Path(self.translate_path(self.path))
        if not content.is_file() or not (asked or self.path in self.site.cut):
            super().do_GET()
            return
        body = content.read_bytes()
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : self.site.cut.get(self.path)])
        if self.path in self.site.cut:
            self.wfile.flush()
            self.site.hold.wait()

    def do_HEAD(self) -> None:
        self.site.asked.append((self.command, self.path, None))
        super().do_HEAD()

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


@dataclass
class Site:
    """A web site: `cut` says after how many bytes which path breaks off; `asked` what came.

    Before it breaks off it waits for `hold`, which is set unless a test clears it.
    """

    root: Path
    url: str = ""
    cut: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)

    def got(self) -> list[tuple[str, str | None]]:
        """The path and range of each file that was asked for."""
        return [(path, part) for verb, path, part in self.asked if verb == "GET"]


@dataclass
class Call:
    """A command's end: status, the document or text on standard output, words for a person."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The document on standard output, which has nothing else."""
        read: dict[str, Any] = json.loads(self.out)
        return read

    def state(self, path: str) -> str:
        """The state of a file, by the document."""
        return next(row["state"] for row in self.document["files"] if row["path"] == path)


class Desk:
    """An inventory, a directory for the mirror, and the command line."""

    def __init__(self, root: Path, site: Site, capfd: pytest.CaptureFixture[str]) -> None:
        self.root, self.capfd = root, capfd
        self.mirror, self.inventory = root / "mirror", root / "inventory" / "hosts.yml"
        self.inventory.parent.mkdir()
        self.variables: dict[str, Any] = {
            "gpu_toolkits": [{"cuda": "11.8", "cudnn": ["8.6"]}],
            "gpu_accept_nvidia_eula": True,
            "gpu_artifacts": {
                name: {
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "size_bytes": len(content),
                    "url": f"{site.url}/{name}",
                }
                for name, content in CONTENTS.items()
            },
        }

    def __call__(self, verb: str, *words: str | Path) -> Call:
        """`python -m gpufleet artifacts VERB DIR -i INVENTORY WORDS`."""
        native = self.words(verb, *words)
        self.capfd.readouterr()
        return Call(main(["artifacts", *native]), *self.capfd.readouterr())

    def words(self, verb: str, *words: str | Path) -> list[str]:
        """The words after `python -m gpufleet artifacts`, with the inventory written down."""
        hosts: dict[str, Any] = {"gpu01": {}, "gpu02": {}}
        text = yaml.safe_dump({"gpu_hosts": {"hosts": hosts, "vars": self.variables}})
        self.inventory.write_text(text)
        return [verb, str(self.mirror), "-i", str(self.inventory), *map(str, words)]


def wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any") -> Path:
    """A wheel that any installer takes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def source(folder: Path, name: str, version: str, **files: str) -> Path:
    """A source package; `files` by their names with _ for the dot."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    info = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in {"PKG-INFO": info, **files}.items():
            member = tarfile.TarInfo(f"{name}-{version}/{file.replace('_', '.')}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def heed_interrupts() -> None:
    """Heed interrupts, which a process in the background ignores, and its children too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
