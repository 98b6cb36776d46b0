"""Add what is published to the catalog: find out what a source is, and read it.

A source is a manifest or a list of md5 sums (a file or an address), or a release on the package
index (`torch==2.15.0`, or the name of one of its wheels).
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from gpufleet.frameworks import DEFAULT

from . import index, published, releases
from .errors import ContradictionError, MeasureError
from .tables import Data

MOST_BYTES = 16 << 20


def add(data: Data, source: str, today: str, via: str | None = None) -> list[str]:
    """Add a source's rows to the data; what was done, a line for each.

    `via`: where a file comes from; the address of a source that is one.
    """
    address = urlsplit(source)
    name = address.path.rpartition("/")[2]
    if address.scheme in {"http", "https"}:
        via = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    if name.endswith(".whl"):
        source = releases.wheel_requirement(name)
    if "==" in source:
        return releases.add_release(data, source, index.address(), today)
    content = _content(source)
    if name.endswith(".json"):
        return published.add_manifest(data, _manifest(content, name), name, today, via)
    return published.add_md5_sums(data, content, name, today, via)


def _content(source: str) -> str:
    if source.startswith(("http://", "https://")):
        with index.request(source) as answer:
            content = answer.read(MOST_BYTES + 1)
    else:
        try:
            content = Path(source).read_bytes()
        except OSError as error:
            raise ContradictionError(
                f"It cannot be read: {error.strerror}.",
                source,
                "Give a file or an address of NVIDIA's, or a release such as"
                f" {DEFAULT.requirement}.",
            ) from None
    if len(content) > MOST_BYTES:
        raise MeasureError(f"{source} is larger than {MOST_BYTES} bytes")
    return str(content.decode("utf-8", "replace"))


def _manifest(content: str, name: str) -> dict[str, object]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ContradictionError(f"This is no JSON: {error}.", name) from None
    if not isinstance(found, dict):
        raise ContradictionError("This is no redistribution manifest.", name)
    return found
