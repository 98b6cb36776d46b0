"""`gpufleet build`: the wheel and the collection of this checkout, with their bill of materials."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from gpufleet.errors import ConfigurationError
from tools.cli import build

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]


def installed(names: list[str]) -> dict[str, str]:
    """The versions of these packages and all that they need here, as their metadata tells."""
    found: dict[str, str] = {}
    pending = [Requirement(name) for name in names]
    while pending:
        needed = pending.pop()
        name = canonicalize_name(needed.name)
        if name in found or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        found[name] = importlib.metadata.version(name)
        pending += map(Requirement, importlib.metadata.requires(name) or ())
    return found


def test_a_build_writes_wheel_collection_bill_of_materials_and_checksums(built: Path) -> None:
    collection = yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]
    wheel = f"gpufleet-{VERSION}-py3-none-any.whl"
    names = [wheel, f"gpufleet-{VERSION}.cdx.json", f"gpufleet-gpu-{collection}.tar.gz"]
    assert sorted(path.name for path in built.iterdir()) == sorted([*names, "SHA256SUMS"])
    sums = dict(
        reversed(line.split("  ")) for line in (built / "SHA256SUMS").read_text().splitlines()
    )
    assert sums == {
        name: hashlib.sha256((built / name).read_bytes()).hexdigest() for name in sorted(names)
    }


@pytest.mark.costly
def test_a_second_build_writes_the_same_wheel_and_bill_of_materials(
    built: Path, tmp_path: Path
) -> None:
    build.run(build.parser().parse(["--output", str(tmp_path)])[0], [])
    same = {path.name for path in built.iterdir() if path.suffix in {".whl", ".json"}}
    assert len(same) == 2
    for name in same:
        assert (tmp_path / name).read_bytes() == (built / name).read_bytes(), name


def test_the_bill_of_materials_lists_what_the_wheel_depends_on_and_no_developer_tool(
    built: Path,
) -> None:
    document = json.loads((built / f"gpufleet-{VERSION}.cdx.json").read_text())
    assert (document["bomFormat"], document["metadata"]["component"]["version"]) == (
        "CycloneDX",
        VERSION,
    )
    listed = {row["name"]: row["version"] for row in document["components"]}
    assert listed == installed(PROJECT["dependencies"])
    references = {row["bom-ref"] for row in document["components"]}
    needed = {each for row in document["dependencies"] for each in row["dependsOn"]}
    assert needed == references


def test_package_and_collection_have_one_version() -> None:
    collection = yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]
    assert Version(collection) == Version(VERSION)


def test_the_collection_gets_the_addresses_of_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "galaxy.yml").write_text("namespace: gpufleet\n")
    urls = {"repository": "https://git.example.org/us", "funding": "https://example.org"}
    lines = [f'{name} = "{address}"\n' for name, address in urls.items()]
    (checkout / "pyproject.toml").write_text(f"[project]\n[project.urls]\n{''.join(lines)}")
    monkeypatch.setattr(build, "ROOT", checkout)
    build.copy_source(tmp_path / "copy")
    assert yaml.safe_load((tmp_path / "copy" / "galaxy.yml").read_text()) == {
        "namespace": "gpufleet",
        "repository": urls["repository"],
    }


@pytest.mark.costly
def test_a_builder_that_fails_is_named_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "run_command", lambda *_, **__: 2)
    with pytest.raises(ConfigurationError, match="uv failed with status 2"):
        build.run(build.parser().parse(["--output", str(tmp_path)])[0], [])
    assert list(tmp_path.iterdir()) == []
