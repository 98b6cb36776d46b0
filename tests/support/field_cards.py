"""Cards and adapters of public reports (tests/field), at the places of the planted host's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache

from gpufleet.catalog import facts
from tests.support.healthy_host import Document
from tests.support.planted_gpu_host import CARDS

# The lines of a kernel's log that name a card.
OF_CARDS = re.compile(r"NVRM|nvidia|Xid", re.IGNORECASE)
ADDRESS = re.compile(
    r"(?<![\w.])(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<place>[0-9a-f]{2}:[0-9a-f]{2})(?P<function>\.[0-7])?(?![\w:])",
    re.IGNORECASE,
)


def on_two_cards(report: Document) -> Document:
    """The report with its cards and adapters at the places of the planted host's."""
    report = _on_two_adapters(report)
    given = report["input"]
    lines = [line for line in given.get("klog", ()) if OF_CARDS.search(line)]
    lines.append(str((given.get("programs") or {}).get("nvidia-smi")))
    named = dict.fromkeys(
        found["place"].lower()
        for line in lines
        for found in ADDRESS.finditer(line)
        if found["domain"] or found["function"]
    )
    places = [address[5:10] for address in CARDS]
    if set(named) <= set(places) and not lost_a_card(given):
        return report
    if _speaks_of_a_later_card(given):
        places.reverse()
    at = dict(zip(named, places, strict=False))

    def moved(found: re.Match[str]) -> str:
        place = at.get(found["place"].lower())
        if place is None:
            return found[0]
        domain = "0" * len(found["domain"]) + ":" if found["domain"] else ""
        return f"{domain}{place}{found['function'] or ''}"

    return _with(report, lambda text: ADDRESS.sub(moved, text))


def _with(report: Document, changed: Callable[[str], str]) -> Document:
    """The report with another text of its input, and of what is expected of it."""
    parts = json.dumps({name: report[name] for name in ("input", "expect")})
    return {**report, **json.loads(changed(parts))}


def _on_two_adapters(report: Document) -> Document:
    """The report with its later adapters by the name of the planted host's last."""
    paths = report["input"].get("snapshot") or {}
    numbers = {found[1] for path in paths if (found := re.match(r"network/devices/(\d+)", path))}
    later = "|".join(number for number in numbers if int(number) >= len(CARDS))
    last = f"mlx5_{len(CARDS) - 1}"
    return (
        _with(report, lambda text: re.sub(rf"\bmlx5_(?:{later})\b", last, text))
        if later
        else report
    )


def lost_a_card(given: Document) -> bool:
    """Return whether one of the cards no longer answers."""
    lines = given.get("klog", ())
    fallen = any(re.search(r"\bXid \(PCI:[^)]*\): 79,", line) for line in lines)
    return fallen or "smi/attached" in (given.get("snapshot") or {})


def _speaks_of_a_later_card(given: Document) -> bool:
    """Return whether the cards that the report names are not the first of its host."""
    if lost_a_card(given):
        return True
    paths = [*(given.get("smi") or {}), *(given.get("snapshot") or {})]
    named = {found[1] for path in paths if (found := re.match(r"(?:gpus/pci/|gpu)(\d+)", path))}
    return bool(named and "0" not in named)


# Products that the catalog does not have.
OTHER_PRODUCTS = {"GTX 560 Ti": "1200", "GT 740M": "1292", "GTX 960M": "139b"}


@cache
def _products() -> list[tuple[frozenset[str], str, str]]:
    """The words, the PCI device id and the compute capability of each product."""
    return [
        (frozenset(re.findall(r"[a-z0-9]+", name.lower())), device, chip["compute_capability"])
        for chip in facts.document("pci.yml")["chips"]
        for device, names in chip["devices"].items()
        for name in names.split(" / ")
    ] + [
        (frozenset(name.lower().split()), device, "5.0") for name, device in OTHER_PRODUCTS.items()
    ]


def product(name: str) -> tuple[str, str] | None:
    """The PCI device id and compute capability of the product whose name is most alike."""
    words = {*re.findall(r"[a-z0-9]+", name.lower())} - {"nvidia"}
    known, device, capability = max(
        _products(), key=lambda row: (len(words & row[0]), -len(row[0]))
    )
    return (device, capability) if re.search(r"\d", " ".join(words & known)) else None


def device_of(name: str) -> str:
    """The PCI device id of a product."""
    found = product(name)
    assert found, f"no product is called {name}"
    return f"0x{found[0]}"
