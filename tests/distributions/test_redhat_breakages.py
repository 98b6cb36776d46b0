"""Faults that break a driver on Red Hat's family in public threads, on one Rocky Linux 9 host.

`redhat_breakages.yml` has the reports, the situations and what is right. Before each the host has
EPEL and nothing of a driver. Not tried, since a container can have none of them: SELinux's labels,
fapolicyd and Secure Boot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.lab_fleet import Fleet
from tests.support.redhat_host import FACTS, LOCKS, NVIDIA, VERSIONS, RedHatHost

ROWS: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("redhat_breakages.yml").read_text(encoding="utf-8")
)
OLD, NEW = VERSIONS[:2]
UP, ARTIFACTS = ("--hosts", "lab1", "--suite", "rocky-9"), ("--cuda", "8.0")
# What situations are written in.
FUNCTIONS = (
    rf"""
set -e
OLD={OLD} NEW={NEW} NVIDIA={NVIDIA} LOCKS={LOCKS} REPOS=/etc/yum.repos.d
KERNEL={FACTS["releases"]["9"]["kernels"][0]} DNF="dnf --assumeyes --quiet"
"""
    + r"""
package() {  # NAME VERSION: an empty package of others, in /srv/others
  rm -rf /srv/work
  PYTHONPATH=/usr/lib/stand-in /usr/libexec/platform-python - "$1" "$2" <<'END'
import pathlib, sys, redhat
redhat.build([redhat.Rpm(*sys.argv[1:])], pathlib.Path("/srv/others"), pathlib.Path("/srv/work"))
END
}
"""
)
# As it was: nothing of a driver, of others' packages and of ours.
RESET = r"""
$DNF --disableplugin=versionlock --setopt=clean_requirements_on_remove=0 \
  remove '*nvidia*' dkms 'kernel-devel*' || :
[ ! -e $LOCKS ] || sed -i /nvidia/d $LOCKS
rm -rf /srv/others /var/lib/gpufleet $REPOS/gpufleet-nvidia.repo
"""


@pytest.fixture(scope="module")
def rocky(fleet: Fleet) -> RedHatHost:
    """Rocky Linux 9 with EPEL."""
    host = RedHatHost(fleet, "9")
    host.enable_epel()
    return host


def test_every_row_has_a_source_and_an_end() -> None:
    for row in ROWS:
        assert row["source"].startswith("https://"), row
        assert ("works" in row) != ("refused" in row), row


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_reported_breakage(rocky: RedHatHost, row: dict[str, Any]) -> None:
    rocky.on(FUNCTIONS + RESET)
    more: dict[str, Any] = {"place": row["place"]} if "place" in row else {}
    if "module" in row:
        more["driver"] = {"module": row["module"]}
    try:
        rocky.on(FUNCTIONS + row.get("situation", ":"))
        before = rocky.packages()
        if "refused" in row:
            rocky.refused(OLD, *row["refused"], **more)
            assert rocky.packages() == before
        else:
            rocky.install(OLD, **more)
            assert set(rocky.packages().values()) == {OLD}
            assert len(rocky.locked()) == len(rocky.packages())
        rocky.on(FUNCTIONS + row.get("then", ":"))
    finally:
        rocky.on(FUNCTIONS + row.get("cleanup", ":"))
