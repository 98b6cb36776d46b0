"""Find the Debian mirror for lab hosts: the one that this machine uses.

Reads both forms of apt's sources: one line per source (`*.list`) and paragraphs (`*.sources`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

# Plain names only: `bookworm-security` and `bookworm-updates` live at or beside other addresses.
DEBIAN_SUITES = {
    *("oldoldstable", "oldstable", "stable", "testing", "unstable", "sid"),
    *("buster", "bullseye", "bookworm", "trixie", "forky"),
}
_ONE_LINE = re.compile(r"deb\s+(?:\[[^]]*\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")


@dataclass(frozen=True)
class Source:
    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]

    @property
    def has_debian(self) -> bool:
        """True if this is Debian's main archive, over a protocol that a host can use too."""
        return (
            self.uri.startswith(("http://", "https://"))
            and "main" in self.components
            and not DEBIAN_SUITES.isdisjoint(self.suites)
        )


def one_line(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        if match := _ONE_LINE.match(line.split("#")[0].strip()):
            yield Source(match["uri"], (match["suite"],), tuple(match["components"].split()))


def deb822(text: str) -> Iterator[Source]:
    for paragraph in re.split(r"\n[ \t]*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t"):
                fields[name] = fields.get(name, "") + line
            elif ":" in line:
                name, value = line.split(":", 1)
                name = name.strip().lower()
                fields[name] = value
        enabled = fields.get("enabled", "yes").strip().lower() not in ("no", "false", "0")
        if not enabled or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            yield Source(
                uri,
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
            )


def sources(apt: Path) -> Iterator[Source]:
    """Every source in apt's directory, in the order in which apt reads them."""
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        yield from deb822(text) if path.suffix == ".sources" else one_line(text)


def find(environment: Mapping[str, str], apt: Path = Path("/etc/apt")) -> str:
    """The mirror's address, without a slash at its end."""
    if chosen := environment.get("GPUFLEET_DEBIAN_MIRROR"):
        return chosen.rstrip("/")
    for source in sources(apt):
        if source.has_debian:
            return source.uri.rstrip("/")
    raise LabError(
        f"{apt} lists no Debian mirror to build a host from",
        "Set GPUFLEET_DEBIAN_MIRROR to the address of one, as in a line of sources.list.",
    )
