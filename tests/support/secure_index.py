"""A package index (PEP 503) over HTTPS on this machine, with a certificate authority of its own."""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import ssl
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    members: dict[str, bytes] | None = None,
    requires: tuple[str, ...] = (),
) -> Path:
    """A whole wheel: metadata, tags and a record with digests, as installers want it."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = dict(members or {})
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    head += [f"Requires-Dist: {each}" for each in requires]
    files[f"{stem}.dist-info/METADATA"] = ("\n".join(head) + "\n").encode()
    files[f"{stem}.dist-info/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = f"{stem}.dist-info/RECORD"
    rows = [
        f"{path},sha256={_record_digest(content)},{len(content)}" for path, content in files.items()
    ]
    files[record] = ("\n".join([*rows, f"{record},,"]) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    return path


def _record_digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


@dataclass
class SecureIndex:
    """The server: directories of wheels by the index's name, and the file of its authority."""

    root: Path
    address: str = ""
    authority: Path = Path()
    asked: list[str] = field(default_factory=list)

    def url(self, index: str) -> str:
        """The address of one index: each directory below `root` is one."""
        return f"{self.address}/{index}"

    def answer(self, path: str) -> bytes | None:
        """A project's page, or a wheel; None: not found."""
        self.asked.append(path)
        index, _, rest = path.strip("/").partition("/")
        if rest.endswith(".whl"):
            wheel = self.root / index / rest
            return wheel.read_bytes() if wheel.is_file() else None
        wheels = [
            each
            for each in sorted((self.root / index).glob("*.whl"))
            if each.name.split("-")[0].replace("_", "-") == rest
        ]
        links = "".join(
            f'<a href="../{each.name}#sha256={hashlib.sha256(each.read_bytes()).hexdigest()}">'
            f"{each.name}</a>\n"
            for each in wheels
        )
        page = f"<!DOCTYPE html><html><body>{links}</body></html>"
        return page.encode() if wheels else None


@contextmanager
def secure_index(root: Path) -> Iterator[SecureIndex]:
    """Serve the directories of wheels below `root`."""
    index = SecureIndex(root)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(self.head())

        def do_HEAD(self) -> None:
            self.head()

        def head(self) -> bytes:
            found = index.answer(unquote(self.path))
            self.send_response(404 if found is None else 200)
            kind = "text/html" if not self.path.endswith(".whl") else "application/octet-stream"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            return found or b""

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    index.authority, chain = _certificates(root.parent)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    index.address = f"https://{HOST}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _certificates(folder: Path) -> tuple[Path, Path]:
    """The authority's certificate, and the server's certificate with its key, as files."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
        for text in ("tests' own authority", HOST)
    ]
    now = datetime.datetime.now(datetime.UTC)
    made = []
    for at, is_authority in enumerate((True, False)):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[at])
            .issuer_name(names[0])
            .public_key(keys[at].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        if not is_authority:
            address = x509.IPAddress(ipaddress.ip_address(HOST))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        made.append(builder.sign(keys[0], hashes.SHA256()))
    authority, chain = folder / "authority.pem", folder / "server.pem"
    pem = serialization.Encoding.PEM
    authority.write_bytes(made[0].public_bytes(pem))
    chain.write_bytes(
        made[1].public_bytes(pem)
        + keys[1].private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return authority, chain
