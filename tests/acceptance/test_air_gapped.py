"""A site with no way out: the host's network reaches the mirror alone, with the same result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab_fleet import RUNFILE, Fleet
from tests.support.lab_mirror import cut_off

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# Whether a page can be had from a host, by the addresses that its own settings name.
PAGES = """
import re, urllib.request
from pathlib import Path
def first(pattern, *files):
    texts = (path.read_text() for path in map(Path, files) if path.is_file())
    return next((found[1] for found in (re.search(pattern, text) for text in texts) if found), None)
sources = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
index = first(r'url = "(\\S+)"', "/etc/uv/uv.toml") or "https://pypi.org/simple"
debian = first(r"(https?://\\S+)", *sources)
suite = first(r"VERSION_CODENAME=(\\S+)", "/etc/os-release")
for page in (index.rstrip("/") + "/six/", debian.rstrip("/") + "/dists/" + suite + "/Release"):
    try:
        urllib.request.urlopen(page, timeout=20).read(1)
        print("reached")
    except OSError:
        print("not reached")
"""
ASKED = f"set -a; [ ! -e /etc/environment ] || . /etc/environment; python3 - <<'END'{PAGES}END"


@pytest.fixture(scope="module")
def directory(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A mirror of the lab's inventory; hundreds of MB, so nothing of it is kept."""
    made = tmp_path_factory.mktemp("mirror")
    document = json.loads(fleet.gpufleet("artifacts", "fetch", str(made), "--json").stdout)
    assert document["complete"]
    assert RUNFILE in {row["path"] for row in document["files"]}
    yield made
    shutil.rmtree(made)


def receipts(fleet: Fleet, host: str) -> dict[str, dict[str, Any]]:
    """Every receipt of a host, without what differs between any two runs: its times."""
    names = fleet.on(host, "cd /var/lib/gpufleet/receipts && ls").split()
    found = {}
    for name in names:
        receipt = json.loads(fleet.on(host, f"cat /var/lib/gpufleet/receipts/{name}"))
        del receipt["installed"]
        receipt["manifest"] = {
            row["path"]: (row["type"], row.get("sha256"), row.get("target"), row.get("mode"))
            for row in receipt["manifest"]
        }
        found[name] = receipt
    return found


def test_a_host_that_reaches_only_the_mirror_becomes_what_any_other_becomes(
    fleet: Fleet, mirror: dict[str, str], directory: Path
) -> None:
    # Packages of the distribution are the site's own business; the guide says which.
    fleet.on("lab1", "apt-get update && apt-get install -y --no-install-recommends libxml2")
    assert fleet.on("lab1", ASKED).split("\n")[:2] == ["reached", "reached"]
    cut_off(fleet, "lab1", mirror)
    assert fleet.on("lab1", ASKED).split("\n")[:2] == ["not reached", "not reached"]

    words = [word for name, value in mirror.items() for word in ("-e", f"{name}={value}")]
    fleet.gpufleet("provision", "--limit", "lab1", *words)
    fleet.verdicts(0, "--limit", "lab1", *words)
    again = fleet.gpufleet("provision", "--force", "--limit", "lab1", *words).stdout
    assert "changed=0 " in again

    served = (directory / ".log").read_text()
    assert f'"GET /{RUNFILE} HTTP/1.1" 200' in served
    assert '"GET /wheels/tensorflow-2.13.1-' in served

    fleet.gpufleet("provision", "--limit", "lab2")
    assert receipts(fleet, "lab1") == receipts(fleet, "lab2")
