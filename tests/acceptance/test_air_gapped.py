"""A site with no way out: the host's network reaches the mirror alone, with the same result."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.lab_fleet import ROOT, RUNFILE, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# What Ansible and a person need to get in, and the mirror; all else is refused at once.
ONLY = """
iptables -A OUTPUT -o lo -j ACCEPT
iptables -A OUTPUT -p tcp --sport 22 -j ACCEPT
iptables -A OUTPUT -p tcp -d {address} --dport {port} -j ACCEPT
iptables -A OUTPUT -j REJECT
ip6tables -A OUTPUT -o lo -j ACCEPT
ip6tables -A OUTPUT -j REJECT
"""
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


@pytest.fixture(scope="module")
def mirror(fleet: Fleet, directory: Path) -> Iterator[dict[str, str]]:
    """The mirror, served on this machine's side of the lab's network; what serve says of it."""
    route = fleet.run("ip", "-json", "route", "get", lab_hosts(fleet)["lab1"]["address"])
    here = json.loads(route.stdout)[0]["prefsrc"]
    words = ("artifacts", "serve", str(directory), "--bind", here, "--port", "0")
    with subprocess.Popen(
        [ROOT / "gpufleet", *words],
        env=fleet.environment,
        stdout=subprocess.PIPE,
        stderr=(directory / ".log").open("w"),
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdout is not None
        yield yaml.safe_load(server.stdout.readline() + server.stdout.readline())
        # The launcher and the server that it runs.
        # Not SIGINT, which whoever runs the tests in the background has it ignore.
        fleet.run("kill", "-TERM", "--", f"-{server.pid}")


def lab_hosts(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """What the lab says of its hosts, by name."""
    python = ROOT / ".venv" / "bin" / "python"
    listed = json.loads(fleet.run(python, "-m", "lab", "list", "--json").stdout)
    return {row["name"]: row for row in listed}


def cut_off(fleet: Fleet, host: str, mirror: dict[str, str]) -> None:
    """Leave a host nothing but ssh to it and the mirror."""
    container = lab_hosts(fleet)[host]["container"]
    pid = fleet.run("podman", "inspect", "--format", "{{.State.Pid}}", container).stdout.strip()
    address, _, port = mirror["gpu_artifacts_source"].removeprefix("http://").partition(":")
    for rule in ONLY.format(address=address, port=port).split("\n"):
        if rule:
            fleet.run("nsenter", f"--net=/proc/{pid}/ns/net", *rule.split())


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
