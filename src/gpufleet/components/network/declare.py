"""Parse `gpu_network`: the driver of network adapters, and the PCI settings for GPUDirect."""

from __future__ import annotations

import re
from typing import Any

from gpufleet.catalog import network as facts
from gpufleet.components.base.reader import Reader
from gpufleet.documents.spec import NetworkSpec, RepositorySpec

DRIVERS = ("inbox", "doca")
KEYS = ("driver", "repository", "peermem", "max_read_request_bytes", "acs")
REPOSITORY_KEYS = ("uri", "suite", "components", "key", "fingerprints")
# Addresses for apt and dnf, without a login, which every account on a host could read.
ADDRESS = r"(https?://[^\s/@?]+(/[^\s@?]*)?|file:///[^\s@?]+)"
WORDS = r"[A-Za-z0-9][A-Za-z0-9._ -]*"
SUITE = r"[A-Za-z0-9./][A-Za-z0-9._/-]*"
# The forms of a repository's texts; the inventory's schema has them too.
PATTERNS = {"uri": ADDRESS, "key": ADDRESS, "suite": SUITE, "components": WORDS}
FINGERPRINT = r"([0-9a-fA-F]{40}|[0-9a-fA-F]{64})"
_WHERE = "gpu_network"


def network(reader: Reader, value: Any) -> NetworkSpec | None:
    """The declaration; None where nothing of the network is managed."""
    if value is None:
        return None
    entry = reader.mapping(value, _WHERE, KEYS)
    spec = NetworkSpec(
        driver=reader.choice(entry.get("driver"), f"{_WHERE}.driver", DRIVERS),
        repository=_repository(reader, entry.get("repository"), f"{_WHERE}.repository"),
        peermem=reader.flag(entry.get("peermem"), f"{_WHERE}.peermem"),
        max_read_request=_read_request(reader, entry.get("max_read_request_bytes")),
        acs_off=_acs_off(reader, entry.get("acs")),
    )
    if "repository" in entry and spec.driver != "doca":
        reader.wrong(
            entry["repository"],
            f"{_WHERE}.repository",
            "nothing: only driver: doca comes from a repository of the site",
        )
    return spec


def _read_request(reader: Reader, value: Any) -> int | None:
    sizes = facts.read_requests()
    wanted = f"one of {', '.join(map(str, sizes))}"
    found = reader.count(value, f"{_WHERE}.max_read_request_bytes", wanted)
    if found is not None and found not in sizes:
        reader.wrong(found, f"{_WHERE}.max_read_request_bytes", wanted)
        return None
    return found


def _acs_off(reader: Reader, value: Any) -> bool:
    """Return whether access control is switched off; YAML reads `off` without quotes as false."""
    if value in (None, "off") or value is False:
        return value is not None
    reader.wrong(value, f"{_WHERE}.acs", "off, or leave it out: nothing switches it on")
    return False


def _repository(reader: Reader, value: Any, where: str) -> RepositorySpec | None:
    if value is None:
        return None
    entry = reader.mapping(value, where, REPOSITORY_KEYS)

    def text(key: str, wanted: str, given: Any = None) -> str | None:
        place = f"{where}.{key}"
        found = reader.text(entry.get(key, given), place, wanted)
        if found and not re.fullmatch(PATTERNS[key], found):
            reader.wrong(found, place, wanted)
            return None
        return found

    wanted = "http(s)://HOST/... or file:///..., without a login and a query"
    uri, key = text("uri", wanted), text("key", wanted)
    listed = reader.sequence(entry.get("fingerprints"), f"{where}.fingerprints")
    prints = []
    for at, each in enumerate(listed):
        digits = "".join(each.split()) if isinstance(each, str) else each
        if isinstance(digits, str) and re.fullmatch(FINGERPRINT, digits):
            prints.append(digits.upper())
        else:
            reader.wrong(each, f"{where}.fingerprints[{at}]", "40 hexadecimal digits in quotes")
    for name in ("uri", "key", "fingerprints"):
        if not entry.get(name):
            reader.wrong(None, f"{where}.{name}", "set: a repository needs uri, key, fingerprints")
    components = text("components", "such as main")
    suite = text("suite", "such as ./", RepositorySpec.suite)
    if not (uri and key and suite and prints):
        return None
    return RepositorySpec(uri, key, tuple(prints), suite, components)
