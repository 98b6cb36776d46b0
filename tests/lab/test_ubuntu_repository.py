"""The stand-in of Ubuntu's archive has the real packages' names, versions and relations."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from gpufleet.catalog import facts
from lab import ubuntu_repository
from lab.driver_repository import Package, index, key, make
from lab.images import Recipe

FACTS = yaml.safe_load(ubuntu_repository.FACTS.read_text(encoding="utf-8"))


@pytest.fixture
def packages(tmp_path: Path) -> dict[str, Package]:
    row = {"flavour": "580-server", "version": "580.126.20"}
    made = ubuntu_repository.driver(FACTS, row, "-0ubuntu0.22.04.1", tmp_path)
    return {each.name: each for each in made}


def test_a_dkms_package_needs_the_source_and_common_files_of_its_own_version(
    packages: dict[str, Package],
) -> None:
    text = packages["nvidia-dkms-580-server"].control()
    assert "Version: 580.126.20-0ubuntu0.22.04.1\n" in text
    assert "nvidia-kernel-source-580-server (<= 580.126.20-1)" in text
    assert "nvidia-firmware-580-server-580.126.20" in text
    assert "Conflicts: nvidia-dkms-kernel\n" in text
    library = packages["libnvidia-compute-580-server"]
    assert "libcuda1 (= 580.126.20-0ubuntu0.22.04.1)" in library.provides


def test_the_proprietary_server_module_has_a_name_of_its_own_in_dkms(
    packages: dict[str, Package],
) -> None:
    def names(package: str) -> set[str]:
        return {path.split("/")[3] for path in packages[package].files}

    assert names("nvidia-dkms-580-server") == {"nvidia-srv-580.126.20"}
    assert names("nvidia-dkms-580-server-open") == {"nvidia-580.126.20"}


def test_ubuntus_own_modules_stand_in_for_dkms(tmp_path: Path) -> None:
    made = ubuntu_repository.prebuilt(FACTS, FACTS["releases"]["22.04"], tmp_path)
    meta = next(each for each in made if each.name == "linux-modules-nvidia-580-server-generic")
    assert meta.provides == (
        "nvidia-dkms-580-server (= 580.126.20-0ubuntu0.22.04.1), nvidia-prebuilt-kernel"
    )
    assert meta.version == "5.15.0-134.145"


def test_every_release_has_an_archive_and_branches_that_the_catalogue_offers() -> None:
    offered = {
        row["version"]: {each["branch"] for each in row["distro"]}
        for row in facts.document("driver_offers.yml")["systems"]
        if row["ids"] == ["ubuntu"]
    }
    for release, of in FACTS["releases"].items():
        assert Recipe(f"ubuntu-{release}").archive["kind"] == "ubuntu"
        branches = {row["flavour"].split("-")[0] for row in of["drivers"]["updates"]}
        assert branches & offered[release]


def test_a_suite_says_where_it_is_from_and_is_signed(tmp_path: Path) -> None:
    gpg, _ = key(tmp_path, "Ubuntu", tmp_path)
    pool, suite = tmp_path / "pool", tmp_path / "dists/jammy-updates"
    pool.mkdir()
    file = make(Package("linux-generic", "5.15.0.134.145", revision=""), pool, tmp_path)
    listed = suite / "main/binary-amd64/Packages"
    listed.parent.mkdir(parents=True)
    listed.write_text(index([file], "pool/"))
    ubuntu_repository.sign(suite, "22.04", "jammy", gpg)
    text = (suite / "InRelease").read_text()
    assert "Origin: Ubuntu\nLabel: Ubuntu\nSuite: jammy-updates\n" in text
    assert "main/binary-amd64/Packages" in text
    assert (
        subprocess.run(
            [*gpg, "--verify", suite / "InRelease"], capture_output=True, check=False
        ).returncode
        == 0
    )
