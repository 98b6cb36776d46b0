"""`gpufleet build`: the wheel and the collection of this checkout, with their bill of materials.

It builds the files that git tracks, as they are here. The bill of materials is a CycloneDX
document: it lists the packages that the wheel depends on, directly or not, with the versions that
requirements.txt pins. Two builds of one commit write the same wheel, the same document and the same
file names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpufleet.campaign.provision.playbook import log
from gpufleet.campaign.provision.playbook import run as run_command
from gpufleet.cli.developer import BIN
from gpufleet.cli.pack import files, pack
from gpufleet.cli.parser import Parser
from gpufleet.errors import ConfigurationError
from gpufleet.paths import ROOT

# uv's "via" for what pyproject.toml names itself, without its groups for developers.
PROJECT = "gpufleet (pyproject.toml)"
# The keys of [project.urls] in pyproject.toml that galaxy.yml can have too.
ADDRESSES = {"repository", "documentation", "homepage", "issues"}
# The time of builds outside of a git checkout: hatchling's own default.
UNKNOWN_TIME = "1580601600"


def pins(requirements: str) -> Iterator[tuple[str, str, list[str]]]:
    """Each package that the file pins: name, version, and the packages that depend on it."""
    for block in re.split(r"\n(?=[a-z0-9])", requirements):
        if found := re.match(r"([a-z0-9._-]+)==(\S+)", block):
            needed_by = re.findall(r"^ +#(?: via|  ) +([^\n]+)$", block, re.MULTILINE)
            yield found[1], found[2], needed_by


def bill_of_materials(requirements: str, version: str, built: datetime) -> dict[str, Any]:
    """The CycloneDX document of the wheel."""
    rows = {name: (found, parents) for name, found, parents in pins(requirements)}
    needed: dict[str, set[str]] = {PROJECT: set()}
    pending = [PROJECT]
    while pending:
        parent = pending.pop()
        for name in sorted(name for name, (_, parents) in rows.items() if parent in parents):
            needed[parent].add(name)
            if name not in needed:
                needed[name] = set()
                pending.append(name)
    address = {name: f"pkg:pypi/{name}@{rows[name][0]}" for name in needed if name != PROJECT}
    address[PROJECT] = f"pkg:pypi/gpufleet@{version}"
    content = json.dumps(sorted(address.values()))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "timestamp": built.isoformat(),
            "component": {
                "type": "application",
                "bom-ref": address[PROJECT],
                "name": "gpufleet",
                "version": version,
                "purl": address[PROJECT],
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [
            {
                "type": "library",
                "bom-ref": address[name],
                "name": name,
                "version": rows[name][0],
                "purl": address[name],
            }
            for name in sorted(needed.keys() - {PROJECT})
        ],
        "dependencies": [
            {"ref": address[name], "dependsOn": sorted(address[each] for each in needed[name])}
            for name in sorted(needed)
        ],
    }


def commit_time() -> str:
    """The time of the current commit, in seconds, as SOURCE_DATE_EPOCH has it."""
    if set_outside := os.environ.get("SOURCE_DATE_EPOCH"):
        return set_outside
    done = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or UNKNOWN_TIME


def copy_source(directory: Path) -> None:
    """Copy the checkout's own files there; the collection gets the addresses of the package."""
    archive = directory.with_suffix(".tar")
    pack(files(ROOT), archive)
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    archive.unlink()
    urls = tomllib.loads((directory / "pyproject.toml").read_text())["project"].get("urls", {})
    with (directory / "galaxy.yml").open("a", encoding="utf-8") as galaxy:
        galaxy.writelines(f"{name}: {json.dumps(urls[name])}\n" for name in ADDRESSES & urls.keys())


def build(source: Path, directory: Path, built: str) -> list[Path]:
    """Build wheel and collection there; raises `ConfigurationError` where a builder fails."""
    wheel = ("uv", "build", "--quiet", "--wheel", "--no-build-isolation", "--offline", "--python")
    for program, *args in (
        (*wheel, str(BIN / "python"), "--out-dir", str(directory), str(source)),
        ("ansible-galaxy", "collection", "build", str(source), "--output-path", str(directory)),
    ):
        command = [str(BIN / program), *args]
        settings = {"SOURCE_DATE_EPOCH": built}
        if status := run_command(command, sys.stderr, environment=settings):
            raise ConfigurationError(
                f"{program} failed with status {status}.", str(ROOT), "Its reason is printed above."
            )
    return [*directory.glob("gpufleet-*.whl"), *directory.glob("gpufleet-gpu-*.tar.gz")]


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "build",
        ("build", "build --output /srv/releases"),
        exit_status="Exit status: 0 built, 4 a builder failed.",
    )
    verb.add_argument_group("Output").add_argument(
        "--output",
        type=Path,
        default=ROOT / "dist",
        metavar="DIR",
        help="Write the files into this directory (default: dist in the checkout)",
    )
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Build everything beside the directory, then move it there; the exit status."""
    output: Path = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    built = commit_time()
    with tempfile.TemporaryDirectory(dir=output, prefix=".build-") as name:
        source = Path(name, "source")
        copy_source(source)
        files = build(source, Path(name), built)
        version = files[0].name.split("-")[1]
        document = Path(name, f"gpufleet-{version}.cdx.json")
        time = datetime.fromtimestamp(int(built), UTC)
        text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
        document.write_text(json.dumps(bill_of_materials(text, version, time), indent=1) + "\n")
        sums = Path(name, "SHA256SUMS")
        files = sorted([*files, document])
        sums.write_text(
            "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files)
        )
        for file in (*files, sums):
            print(file.replace(output / file.name))
    log("Install the wheel with uv tool install, the collection with ansible-galaxy.")
    return 0
