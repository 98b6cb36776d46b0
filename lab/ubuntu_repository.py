"""Makes a signed stand-in of Ubuntu's archive: the real packages' names, versions and relations.

What there is stands in the catalogue (data/distributions/ubuntu.yml), with its sources. Inside the
packages is nothing of Ubuntu's or NVIDIA's: a kernel that nothing can boot, headers against which
DKMS compiles the stand-in module in a moment, a library that finds no card, and the unit of the
persistence daemon as Ubuntu has it.

    python -m lab.ubuntu_repository 22.04 DIRECTORY
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import yaml

from gpufleet.catalog.facts import DATA
from lab import driver_repository
from lab.command import run
from lab.driver_repository import Package, index, key, library_of, make
from lab.files import write
from lab.ubuntu_contents import contents

FACTS = DATA / "distributions/ubuntu.yml"
LABEL = "Ubuntu"
POCKETS = ("", "-updates", "-security")
# The numbers that cuDriverGetVersion returns, by branch.
CUDA = {"535": 12020, "570": 12080, "580": 13000, "595": 13020}


def filled(template: Any, marks: dict[str, str]) -> Any:
    """A name or field with its marks replaced (see the catalogue's file)."""
    return re.sub("[@%$#&~]", lambda found: marks.get(found[0], found[0]), template)


def package(name: str, fields: dict[str, Any], marks: dict[str, str], work: Path) -> Package:
    """One package of a template."""
    relations = {
        each: filled(fields.get(each, ""), marks) for each in ("depends", "provides", "conflicts")
    }
    inside = contents(fields.get("contents"), marks, work)
    return Package(
        filled(name, marks), marks["$"], revision="", replaces=relations["conflicts"],
        **relations, **inside,
    )  # fmt: skip


def driver(
    facts: dict[str, Any], row: dict[str, Any], revision: str, work: Path
) -> Iterator[Package]:
    """Every package of one version of a flavour."""
    flavour, version = row["flavour"], row["version"]
    marks = {"@": flavour, "%": version, "$": version + revision}
    marks["library"] = str(library_of(version, CUDA[flavour[:3]], work))
    for name, fields in facts["driver"].items():
        yield package(name, fields, marks, work)


def transitional(facts: dict[str, Any], row: dict[str, Any], revision: str) -> Iterator[Package]:
    """The empty packages of a flavour that lead to another one's."""
    for name in facts["transitional"]:
        yield Package(
            filled(name, {"@": row["flavour"]}), row["version"] + revision, revision="",
            depends=filled(name, {"@": row["to"]}))  # fmt: skip


def kernels(facts: dict[str, Any], row: dict[str, Any], work: Path) -> Iterator[Package]:
    """The packages of one kernel, for each of its flavours."""
    common = True
    for flavour in row["flavours"]:
        meta = row.get("meta", flavour)
        marks = {"#": f"{row['abi']}-{flavour}", "&": row["abi"], "~": meta}
        for name, fields in facts["kernel"].items():
            marks["$"] = f"{row['abi']}.{row['upload']}"
            if fields.get("meta"):
                marks["$"] = marks["$"].replace("-", ".", 1)
            if name != "linux-headers-&" or common:
                yield package(name, fields, marks, work)
        common = False


def prebuilt(facts: dict[str, Any], release: dict[str, Any], work: Path) -> Iterator[Package]:
    """Ubuntu's own builds of the server flavours' modules for its newest generic kernels."""
    for row in release["drivers"]["updates"]:
        for built in release["kernels"]["updates"]:
            if "generic" not in built["flavours"]:
                continue
            version = f"{built['abi']}.{built['upload']}"
            marks = {"@": row["flavour"], "%": row["version"], "#": f"{built['abi']}-generic",
                     "~": built.get("meta", "generic"),
                     "$": row["version"] + release["revision"]}  # fmt: skip
            for name, fields in facts["prebuilt"].items():
                made = package(name, fields, marks, work)
                made.version = version
                yield made


def packages(release: str, work: Path) -> dict[str, dict[str, list[Package]]]:
    """The packages of a release, by pocket and component."""
    facts = yaml.safe_load(FACTS.read_text(encoding="utf-8"))
    of = facts["releases"][release]
    found: dict[str, dict[str, list[Package]]] = {
        pocket: {name: [] for name in ("main", "restricted", "universe", "multiverse")}
        for pocket in POCKETS
    }
    for pocket in POCKETS:
        place, name = found[pocket], pocket.removeprefix("-") or "release"
        for row in of["kernels"][name]:
            place["main"] += kernels(facts, row, work)
        for row in of["drivers"][name]:
            place["restricted"] += driver(facts, row, of["revision"], work)
            if row["flavour"].endswith("-server"):
                branch = row["flavour"].removesuffix("-server")
                place["multiverse"].append(
                    Package(f"nvidia-fabricmanager-{branch}", row["version"] + of["revision"],
                            revision=""))  # fmt: skip
    for row in of["transitional"]:
        found["-updates"]["restricted"] += transitional(facts, row, of["revision"])
    found["-updates"]["restricted"] += prebuilt(facts, of, work)
    return found


def build(release: str, folder: Path) -> str:
    """Make the archive of a release; returns the fingerprint of its key."""
    codename = yaml.safe_load(FACTS.read_text(encoding="utf-8"))["releases"][release]["codename"]
    (folder / "pool").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        gpg, fingerprint = key(folder, LABEL, work)
        run(*gpg, "--output", folder / "ubuntu-archive-keyring.gpg", "--export")
        for pocket, components in packages(release, work).items():
            suite = folder / "dists" / f"{codename}{pocket}"
            for component, listed in components.items():
                files = []
                for each in listed:  # an update for security is in two suites
                    file = folder / "pool" / each.file
                    files.append(file if file.exists() else make(each, folder / "pool", work))
                write(suite / component / "binary-amd64/Packages", index(files, "pool/"))
            sign(suite, release, codename, gpg)
    return fingerprint


def sign(suite: Path, release: str, codename: str, gpg: list[str]) -> None:
    """Write a suite's Release as Ubuntu's says it, and sign it."""
    text = f"Origin: {LABEL}\nLabel: {LABEL}\nSuite: {suite.name}\nVersion: {release}\n"
    text += f"Codename: {codename}\nDate: {formatdate(usegmt=True)}\nArchitectures: amd64\n"
    text += "Components: main restricted universe multiverse\nSHA256:\n"
    for path in sorted(suite.glob("*/binary-amd64/Packages")):
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        text += f" {digest} {len(content)} {path.relative_to(suite)}\n"
    write(suite / "Release", text)
    run(*gpg, "--clearsign", "--output", suite / "InRelease", suite / "Release")


def nvidia(release: str, folder: Path) -> str:
    """Make a stand-in of NVIDIA's own repository for a release; returns its key's fingerprint."""
    facts = yaml.safe_load(FACTS.read_text(encoding="utf-8"))
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        files = [
            make(each, folder, work)
            for row in facts["releases"][release]["nvidia_repo"]
            for each in driver(facts, row, "-0ubuntu1", work)
        ]
        write(folder / "Packages", index(files))
        return driver_repository.sign(folder, "NVIDIA", work)


if __name__ == "__main__":
    print(build(sys.argv[1], Path(sys.argv[2])))
