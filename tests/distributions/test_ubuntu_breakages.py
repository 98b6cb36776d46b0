"""Faults of Ubuntu's GPU servers in public reports, on one Ubuntu 22.04 host after another.

`ubuntu_breakages.yml` has the reports, the situations and what is right. After each the host is as
before: a kernel of Ubuntu's, and nothing of a driver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.distribution_host import DistributionHost

ROWS: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("ubuntu_breakages.yml").read_text(encoding="utf-8")
)
KERNEL = "linux-image-5.15.0-130-generic"
# What situations are written in.
FUNCTIONS = r"""
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -qq -y --no-install-recommends --allow-downgrades \
  --allow-change-held-packages "$@" >/tmp/installed 2>&1 || { cat /tmp/installed; exit 1; }; }
deb() {  # NAME VERSION DEPENDS: a package of others, in /tmp/NAME.deb
  rm -rf /tmp/deb; mkdir -p /tmp/deb/DEBIAN
  printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: x <x@x>\nDepends: %s\n' \
    "$1" "$2" "$3" >/tmp/deb/DEBIAN/control
  echo 'Description: stand-in of others' >>/tmp/deb/DEBIAN/control
  dpkg-deb -b /tmp/deb "/tmp/$1.deb" >/dev/null
}
phase() {  # VERSION: its packages are phased, and for no host yet
  rm -rf /srv/phased; mkdir /srv/phased; cp -a /srv/archive/pool /srv/phased/
  cat /srv/archive/dists/jammy-updates/*/binary-amd64/Packages |
    sed "s/^Version: $1-.*/&\nPhased-Update-Percentage: 0/" >/srv/phased/Packages
  printf 'Origin: Ubuntu\nLabel: Ubuntu\nSuite: jammy-updates\nCodename: jammy\n' \
    >/srv/phased/Release
  printf 'Date: %s\nSHA256:\n' "$(date -uR)" >>/srv/phased/Release
  (cd /srv/phased; printf ' %s %s Packages\n' $(sha256sum Packages | cut -d ' ' -f 1) \
    $(stat -c %s Packages)) >>/srv/phased/Release
  sed -e 's/copy:.srv.archive jammy-updates .*/[trusted=yes] copy:\/srv\/phased .\//' \
    -e /jammy-security/d -i /etc/apt/sources.list
  apt-get update -qq
}
"""
# As it was: nothing of a driver, of others' tools and of other kernels.
RESET = r"""
rm -rf /run/stand-in; cp /srv/sources.list /etc/apt/sources.list; apt-get update -qq
apt-mark unhold $(apt-mark showhold) >/dev/null
names=$(dpkg-query -W -f '${Package} ${db:Status-Abbrev}\n' '*nvidia*' 'nvtop' 'libcudnn8' \
  'cuda-toolkit*' 'linux-*' 2>/dev/null | grep -v ' un' |
  grep -vE '^linux-(base|libc-dev|(image|modules|modules-extra)-5.15.0-130-generic) ' |
  cut -d ' ' -f 1)
[ -z "$names" ] || apt-get purge -qq -y --allow-change-held-packages $names >/dev/null 2>&1
rm -rf /var/lib/gpufleet /etc/apt/preferences.d/gpufleet-driver /etc/modprobe.d/gpufleet-* \
  /etc/apt/apt.conf.d/52gpufleet-driver
find /lib/modules -mindepth 1 -maxdepth 1 ! -name '5.15.0-130-generic' -exec rm -r {} +
"""


@pytest.fixture(scope="module")
def bare(host: DistributionHost) -> DistributionHost:
    """A kernel of Ubuntu's and no driver."""
    host.on("cp /etc/apt/sources.list /srv/; apt-get update -qq")
    host.apt("install", "--no-install-recommends", KERNEL, "linux-modules-extra-5.15.0-130-generic")
    return host


def test_every_row_has_a_source_and_an_end() -> None:
    for row in ROWS:
        assert row["source"].startswith("https://"), row
        assert ("works" in row) != ("refused" in row), row


DECLARATION = {"branch": "580", "source": "distro"}
VERSION = "580.126.20"
GROUPS: dict[str, list[dict[str, Any]]] = {}
for each in ROWS:
    GROUPS.setdefault(each.get("group", each["name"]), []).append(each)


@pytest.fixture(scope="module")
def prepared(bare: DistributionHost) -> Callable[[str], DistributionHost]:
    """The host in the situations of a group, provisioned; once for each group."""

    @cache
    def prepare(group: str) -> DistributionHost:
        bare.on(RESET)
        for row in GROUPS[group]:
            bare.on(FUNCTIONS + row.get("situation", "true"))
        if not any("refused" in row for row in GROUPS[group]):
            bare.provision(DECLARATION)
            bare.healthy(DECLARATION)
            assert bare.receipt()["version"] == VERSION
            assert set(bare.modules().values()) == {VERSION}
        return bare

    return prepare


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("host", ["ubuntu-22.04"], indirect=True)
@pytest.mark.parametrize("row", [row for rows in GROUPS.values() for row in rows],
                         ids=lambda row: row["name"])  # fmt: skip
def test_a_reported_breakage(
    prepared: Callable[[str], DistributionHost], row: dict[str, Any]
) -> None:
    host = prepared(row.get("group", row["name"]))
    try:
        if "refused" in row:
            declared, before = row.get("declared", {}), host.driver_packages()
            host.refused(None if declared else DECLARATION, *row["refused"], **declared)
            assert host.driver_packages() == before
        if "then" in row:
            output = host.on(FUNCTIONS + row["then"])
            text = row["says"].removeprefix("!")
            assert (text in output) != row["says"].startswith("!"), output
    finally:
        host.on(row.get("cleanup", "true"))
