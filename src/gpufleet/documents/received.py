"""The one door for what a host sends: bounded, typed by the documents' types, and printable.

    received.snapshot(raw, "gpu01")     a snapshot as the probe printed it
    received.document(raw)              any other document: a bundle, a message of a pair
    received.output(raw)                standard error and other text

In a snapshot, names, addresses, versions and messages of the kernel are cut to what such texts have
on any host (`MOST_OF`), since rules search each of them. `UnfitError` names the place of the first
value that is refused. A section of a snapshot that is refused costs that section only: it is marked
as damaged. Code behind the door may trust that documents are as deep, as long and as large as is
said here, that numbers are finite and have at most 64 bits, that texts print, and that sections in
the state `ok` are of their type. Pure.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, cast

from .snapshot import Snapshot
from .text import printable
from .validator import Location, damaged_section, faults, place, typed_section

# A snapshot has some hundred kilobytes, ten thousand values, and a depth of a dozen.
MOST_BYTES = 8 << 20
MOST_VALUES = 250_000
MOST_ITEMS = 100_000
MOST_DEPTH = 32
MOST_TEXT = 16 << 10
# The longest names, addresses and versions, in characters: a file system has no longer name, and an
# nvidia-smi, DMI or PCI no longer value. And the longest messages: the kernel's buffer for one line
# (LOG_LINE_MAX in kernel/printk/internal.h) has 1024 bytes. What is cut ends in CUT, so it is equal
# to no whole text, and is judged as what it is.
MOST_NAME, MOST_MESSAGE, CUT = 256, 1024, " ..."
# The mapping of what nvidia-smi prints: its texts have names that only nvidia-smi knows.
ELEMENTS = "elements"
MOST_OF = {
    **dict.fromkeys(
        (
            *("address", "arch", "bank", "board", "boot_id", "branch", "class", "codename"),
            *("compute_capability", "compute_mode", "cuda", "cuda_version", "cudart", "cudnn"),
            *("driver", "driver_version", ELEMENTS, "firmware", "gid", "governor", "guid"),
            *("hostname", "id", "installed", "interface", "loaded", "maker", "model", "module"),
            *("name", "part", "product", "rate", "running", "serial", "serial_board", "slot"),
            *("soname", "speed", "uuid", "vbios", "vendor", "version", "version_id", "width"),
        ),
        MOST_NAME,
    ),
    "text": MOST_MESSAGE,
}
MOST_KEY = 4096
MOST_SECTIONS = 64
# Lists of sections with rows of GPUs or of pairs of them, or of what a stack maps and computes:
# rows are compared with each other, so a thousand times as many take a million times as long.
MOST_ROWS = {
    **dict.fromkeys(("gpus", "smi", "smi_after", "compute", "network", "machine"), 512),
    # Pythons, drives, modules of memory and features of the processor.
    "os": 1000,
    **dict.fromkeys(("stacks", "containers", "kernel_log", "kernel_log_after"), 5000),
    # Sources and pins of packages, libraries of cuDNN, and what sets variables.
    **dict.fromkeys(("packages", "cudnn", "environment"), 5000),
}
# A probe sends 600 elements of a card (`LARGEST` in probe/smi_elements.py), and rules search them.
MOST_ELEMENTS = 5000
# An answer to a challenge, as `on_host/challenge.py` prints it.
ANSWER = re.compile(r"[0-9a-f]{64}")
LEAST_INTEGER, MOST_INTEGER = -(1 << 63), (1 << 64) - 1

REMEDY = (
    "find out why the host sends this: take a new snapshot with this release's probe; if it"
    " sends the same again, examine the host, which may be damaged or taken over"
)


class UnfitError(ValueError):
    """The fault of a document, as a sentence that begins with the place of the value."""


def output(raw: bytes) -> str:
    """Text that a host printed, such as its standard error."""
    return printable(raw.decode("utf-8", "replace"))


def document(raw: bytes, name: str = "document") -> Any:
    """A JSON document within the bounds. Raises `UnfitError`; `ValueError` for what is no JSON."""
    return checked(parsed(raw, name), name)


def snapshot(raw: bytes, host: str) -> Snapshot | None:
    """The snapshot under the host's own name; None for any other JSON. Raises likewise."""
    return snapshot_in(parsed(raw, "snapshot"), host)


def snapshot_in(found: object, host: str) -> Snapshot | None:
    """Check a parsed document like `snapshot()`; the document is changed in place."""
    if not isinstance(found, dict) or not found.get("schema") or not found.get("sections"):
        return None
    sections = found.pop("sections")
    if not isinstance(sections, dict) or len(sections) > MOST_SECTIONS:
        raise UnfitError(f"snapshot.sections should be a mapping of at most {MOST_SECTIONS}")
    head = checked({**found, "host": host}, "snapshot")
    if wrong := faults(Snapshot, {**head, "sections": {}}, "snapshot"):
        raise UnfitError(wrong[0])
    return cast(
        Snapshot,
        {
            **head,
            "sections": {
                printable(name[:MOST_KEY]): _section(name, section)
                for name, section in sections.items()
            },
        },
    )


def answer_in(found: object) -> str | None:
    """Take the answer to a challenge out of a parsed snapshot; None where it is no such answer."""
    answer = found.pop("answer", None) if isinstance(found, dict) else None
    return answer if isinstance(answer, str) and ANSWER.fullmatch(answer) else None


def _section(name: str, section: Any) -> Any:
    try:
        rows = MOST_ROWS.get(name, MOST_ITEMS)
        return typed_section(name, checked(section, "section", rows, cuts=True))
    except UnfitError as error:
        return damaged_section(str(error).removeprefix("section."))


def parsed(raw: bytes, name: str) -> Any:
    """JSON, counted before Python makes objects of it; `checked` or `snapshot_in` come next."""
    if len(raw) > MOST_BYTES:
        raise UnfitError(f"{name} has {len(raw)} bytes: more than {MOST_BYTES}")
    if sum(map(raw.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise UnfitError(f"{name} has more than {MOST_VALUES} values")
    try:
        return json.loads(raw.decode("utf-8", "replace"))
    except RecursionError:
        raise UnfitError(f"{name} is nested deeper than {MOST_DEPTH} levels") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        # Python reads no number of thousands of digits.
        raise UnfitError(f"{name} has a number of more than 64 bits") from None


def checked(value: Any, name: str, most_items: int = MOST_ITEMS, *, cuts: bool = False) -> Any:
    """A parsed document within the bounds, with every text and key printable; it is changed.

    `cuts`: texts are cut to what those of a snapshot have (`MOST_OF`).
    """
    location = (None, name)
    if isinstance(value, dict | list):
        _check_container(value, location, MOST_DEPTH, most_items, MOST_NAME if cuts else MOST_TEXT)
        return value
    return _leaf(value, location)


def _check_container(
    value: Any, location: Location, depth: int, most_items: int, most_plain: int
) -> None:
    """`most_plain`: the longest text that needs no look at the name of its value."""
    if depth == 0:
        raise UnfitError(f"{place(location)} is nested deeper than {MOST_DEPTH} levels")
    named = isinstance(value, dict)
    most = MOST_ITEMS if named else most_items
    if named and location[1] == ELEMENTS:
        most = MOST_ELEMENTS
    if len(value) > most:
        raise UnfitError(f"{place(location)} has {len(value)} entries: more than {most}")
    for key, item in value.items() if named else enumerate(value):
        kind = type(item)
        if kind is str:
            # Nearly every text passes this, and needs no call.
            if len(item) > most_plain or not item.isprintable():
                value[key] = _text(item, (location, key))
                if most_plain == MOST_NAME:
                    value[key] = _cut(value[key], (location, key))
        elif kind is dict or kind is list:
            _check_container(item, (location, key), depth - 1, most_items, most_plain)
        elif kind is float:
            if not isfinite(item):
                _check_number(item, (location, key))
        elif kind is int and not LEAST_INTEGER <= item <= MOST_INTEGER:
            _check_number(item, (location, key))
    if named:
        # All keys at once: nearly always they pass.
        keys = "".join(value)
        if not keys.isprintable() or (len(keys) > MOST_KEY and max(map(len, value)) > MOST_KEY):
            _rename(value, location)


def _leaf(value: Any, location: Location) -> Any:
    if isinstance(value, str):
        return _text(value, location)
    if isinstance(value, int | float):
        _check_number(value, location)
    return value


def _text(text: str, location: Location) -> str:
    if len(text) > MOST_TEXT:
        raise UnfitError(f"{place(location)} has {len(text)} characters: more than {MOST_TEXT}")
    return printable(text)


def _cut(text: str, location: Location) -> str:
    """The text, or its beginning and a mark: by the name of its value, or of its list."""
    around, step = location
    while around is not None and isinstance(step, int):
        around, step = around
    if around is not None and around[1] == ELEMENTS:
        step = ELEMENTS
    most = MOST_OF.get(str(step), MOST_TEXT)
    return text if len(text) <= most else text[:most].removesuffix(CUT) + CUT


def _check_number(number: float, location: Location) -> None:
    if isinstance(number, float):
        if not isfinite(number):
            raise UnfitError(f"{place(location)} is {number}: not a finite number")
    elif not LEAST_INTEGER <= number <= MOST_INTEGER:
        raise UnfitError(f"{place(location)} is a number of more than 64 bits")


def _rename(value: dict[str, Any], location: Location) -> None:
    """Make the keys printable."""
    entries = list(value.items())
    value.clear()
    for key, item in entries:
        if len(key) > MOST_KEY:
            raise UnfitError(f"{place(location)} has a key of {len(key)} characters")
        name = printable(key).replace("\n", " ")
        if name in value:
            raise UnfitError(f"{place((location, name))} is there twice")
        value[name] = item
