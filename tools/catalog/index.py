"""The Python package index: its address, and the wheels of a project (PEP 503)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from gpufleet.catalog import facts

from .errors import MeasureError

DEFAULT = "https://pypi.org/simple"
TIMEOUT_S = 60
MOST_PAGE_BYTES = 64 << 20


@dataclass(frozen=True)
class File:
    """One wheel on the index."""

    name: str
    url: str
    sha256: str | None
    version: Version
    python: str  # "3.6"; "3" for any Python 3

    @property
    def platform(self) -> str:
        """Its platform tags as in the name, joined by dots."""
        return self.name.removesuffix(".whl").rsplit("-", 1)[-1]


def address(environment: Mapping[str, str] = os.environ) -> str:
    """Return the index configured for uv or pip: environment, then pip's files, else PyPI."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if environment.get(name):
            return re.sub(r"^[\w.-]+=", "", environment[name]).rstrip("/")  # uv's may have a name
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(environment),
    )
    found = dict(re.findall(r"^(\w+)\.index-url='(.*)'$", listing.stdout, re.MULTILINE))
    return str(found.get("download", found.get("global", DEFAULT))).rstrip("/")


@contextmanager
def request(url: str, headers: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Open a URL as a stream; raise MeasureError, also while the stream is read.

    The URL's user and password are sent, and never appear in a message.
    """
    parts = urlsplit(url)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if parts.scheme not in ("http", "https"):
        raise MeasureError(f"{plain}: only http and https indexes are supported")
    passwords = urllib.request.HTTPPasswordMgrWithPriorAuth()
    if parts.username:
        user, password = unquote(parts.username), unquote(parts.password or "")
        passwords.add_password(None, plain, user, password, is_authenticated=True)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
    asked = urllib.request.Request(plain, headers=dict(headers or {}))
    try:
        with opener.open(asked, timeout=TIMEOUT_S) as answer:
            yield answer
    except urllib.error.HTTPError as error:
        error.close()
        raise MeasureError(f"{plain}: the answer is {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise MeasureError(f"{plain}: not read ({getattr(error, 'reason', error)})") from None


class _Links(HTMLParser):
    """The links of a page as absolute URLs."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page = page
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a" and (href := dict(attrs).get("href")):
            self.found.append(urljoin(self.page, href))


def files(project: str, index: str, arch: str = facts.X86_64) -> list[File]:
    """The project's wheels for Linux on a machine, by version and Python; raises MeasureError."""
    page = f"{index}/{project}/"
    with request(page, {"Accept": "application/vnd.pypi.simple.v1+html, text/html"}) as answer:
        links = _Links(page)
        content = answer.read(MOST_PAGE_BYTES + 1)
        if len(content) > MOST_PAGE_BYTES:
            raise MeasureError(f"{page}: the page is larger than {MOST_PAGE_BYTES} bytes")
        links.feed(content.decode("utf-8", "replace"))
    wheels = [wheel for link in links.found if (wheel := _wheel(link, arch))]
    return sorted(wheels, key=lambda wheel: (wheel.version, Version(wheel.python)))


def _wheel(link: str, arch: str) -> File | None:
    """The wheel that a link points to, if it is for CPython, or any Python 3, on that Linux."""
    url, fragment = urldefrag(link)
    name = unquote(url.rsplit("/", 1)[-1])
    try:
        _, version, _, tags = parse_wheel_filename(name)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    tag = next(iter(tags))
    python = re.fullmatch(r"cp(\d)(\d+)|py(3)", tag.interpreter)
    if not python or not re.fullmatch(rf"(many)?linux.*_{re.escape(arch)}", tag.platform):
        return None
    digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
    return File(name, url, digest and digest[1], version, python[3] or f"{python[1]}.{python[2]}")
