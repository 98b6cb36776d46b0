"""The settings that a lab host copies from this machine, since it uses this machine's network.

A site's own certificate authorities, Python package index and proxy are needed there to reach
anything at all. On a machine that has none of these a lab host stays plain Debian.
"""

from __future__ import annotations

import configparser
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

SYSTEM_STORE = "/etc/ssl/certs/ca-certificates.crt"
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class Network:
    certificates: tuple[Path, ...] = ()
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    proxies: Mapping[str, str] = field(default_factory=dict)

    def files(self) -> dict[str, str]:
        """The text of each file that the host gets, by its path below the root."""
        pip: list[str] = []
        uv: list[str] = []
        login = [f"{name}={value}" for name, value in self.proxies.items()]
        if self.certificates:
            pip.append(f"cert = {SYSTEM_STORE}")
            uv.append("system-certs = true")
            login.append(f"SSL_CERT_FILE={SYSTEM_STORE}")
        if self.index_url:
            pip.append(f"index-url = {self.index_url}")
        if self.extra_index_urls:
            pip.append(f"extra-index-url = {' '.join(self.extra_index_urls)}")
        indexes = [(url, False) for url in self.extra_index_urls]
        indexes += [(self.index_url, True)] if self.index_url else []
        for url, default in indexes:
            uv += ["[[index]]", f'url = "{url}"', *(["default = true"] if default else [])]
        apt = [
            f'Acquire::{name.split("_")[0]}::Proxy "{value}";'
            for name, value in self.proxies.items()
            if name != "no_proxy"
        ]
        texts = {
            "etc/pip.conf": ["[global]", *pip] if pip else [],
            "etc/uv/uv.toml": uv,
            "etc/environment": login,
            "etc/apt/apt.conf.d/80proxy": apt,
        }
        return {path: "\n".join(lines) + "\n" for path, lines in texts.items() if lines}

    def write(self, overlay: Path) -> None:
        """Lay the files out below `overlay`, as they will lie on the host."""
        for path, text in self.files().items():
            place = overlay / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
            place.chmod(0o644)
        authorities = overlay / "usr/local/share/ca-certificates"
        authorities.mkdir(parents=True, exist_ok=True)
        for certificate in self.certificates:
            shutil.copyfile(certificate, authorities / certificate.name)
            (authorities / certificate.name).chmod(0o644)


def _remote(url: str | None) -> bool:
    """Return whether a container can reach an address: not on this machine's own loop."""
    parts = urlsplit(url or "")
    return parts.scheme in ("http", "https") and parts.hostname not in (
        *(None, "localhost", "127.0.0.1", "::1"),
    )


def _pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    home = Path(environment.get("HOME", "/root"))
    parser = configparser.RawConfigParser(strict=False)
    if (own := environment.get("PIP_CONFIG_FILE")) != "/dev/null":
        # pip's own order: the machine's, the user's (old and new place), the one named.
        places = [Path("/etc/pip.conf"), home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
        parser.read([*places, *([Path(own)] if own else [])])
    settings = {**parser["global"]} if parser.has_section("global") else {}
    for name in ("index-url", "extra-index-url"):
        if value := environment.get("PIP_" + name.upper().replace("-", "_")):
            settings[name] = value
    return settings


def network(
    environment: Mapping[str, str],
    authorities: Path = Path("/usr/local/share/ca-certificates"),
) -> Network:
    pip = _pip_settings(environment)
    index = pip.get("index-url")
    proxies = {name: environment.get(name) or environment.get(name.upper()) for name in _PROXIES}
    return Network(
        certificates=tuple(sorted(authorities.rglob("*.crt"))),
        index_url=index if _remote(index) else None,
        extra_index_urls=tuple(filter(_remote, pip.get("extra-index-url", "").split())),
        proxies={
            name: value
            for name, value in proxies.items()
            if value and (name == "no_proxy" or _remote(value))
        },
    )
