"""A fault while a driver is installed ends in one message and a host that works.

A run that was killed is finished by the next one. The packages are stand-ins from a repository on
the host (lab/driver_repository.py), whose kernel module DKMS builds in seconds; the real ones are
installed in molecule's scenarios.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab import driver_repository
from tests.support.lab_fleet import ROOT, Done, Fleet

pytestmark = pytest.mark.lab

UP, ARTIFACTS = ("--hosts", "lab1"), ("--cuda", "8.0")
OLD, NEW = driver_repository.VERSIONS
PLACE = "/srv/stand-in"
STATE = "/var/lib/gpufleet"
RECEIPT = f"{STATE}/receipts/driver-driver.json"


class Host:
    """The lab's host, with a kernel, and a repository of stand-ins that its role installs from."""

    def __init__(self, fleet: Fleet, work: Path) -> None:
        self.fleet, self.work = fleet, work
        self.fingerprint = self.deliver(PLACE)

    def deliver(self, place: str, **options: Any) -> str:
        """Make a repository and put it on the host; returns its key's fingerprint."""
        folder = self.work / Path(place).name
        fingerprint = driver_repository.build(folder, **options)
        packed = subprocess.run(["tar", "c", "-C", folder, "."], capture_output=True, check=True)
        unpack = f"rm -rf {place}; mkdir -p {place}; tar x -C {place}"
        words = [ROOT / ".venv/bin/python", "-m", "lab", "exec", "lab1", "--", "sh", "-c", unpack]
        subprocess.run(words, cwd=ROOT, env=self.fleet.environment, input=packed.stdout, check=True)
        return fingerprint

    def declared(self, version: str, **more: Any) -> str:
        """The inventory's variables for a version of the stand-ins' driver."""
        repository = {
            "uri": f"copy:{PLACE}",
            "suite": "./",
            "key": f"file://{PLACE}/{driver_repository.KEY_FILE}",
            "fingerprints": [self.fingerprint],
            "pin": f"release o={driver_repository.LABEL}",
            "label": driver_repository.LABEL,
        }
        return json.dumps(
            {
                "gpu_stacks": [],
                "gpu_driver": {"branch": version.partition(".")[0], "source": "nvidia_repo"},
                "nvidia_driver_repository": repository,
                "nvidia_driver_space": {"/usr": 50},
                "nvidia_driver_patience": 5,
                **more,
            }
        )

    def command(self, version: str, **more: Any) -> list[str | Path]:
        """The playbook, as the launcher calls it."""
        declared = self.declared(version, **more)
        return [ROOT / ".venv/bin/ansible-playbook", "playbooks/site.yml", "-e", declared]

    def install(self, version: str, status: int = 0, **more: Any) -> Done:
        """Run the playbook."""
        return self.fleet.run(*self.command(version, **more), status=status)

    def refused(self, version: str, *reported: str, **more: Any) -> None:
        """Run the playbook, which is to fail with one message that says all this."""
        done = self.install(version, status=2, **more)
        output = " ".join(done.stdout.split())
        assert output.count("FAILED!") == 1, output
        for text in reported:
            assert text in output, f"{text!r} is not said in:\n{done.stdout}"

    def verdicts(self, version: str, status: int = 0) -> dict[str, dict[str, Any]]:
        """The verdicts of verify on the host, by check."""
        return self.fleet.verdicts(status, "-e", self.declared(version))["lab1"]

    def works(self, version: str) -> None:
        """A version is installed, whole, held, with its module, and nothing is left half-done."""
        row = self.verdicts(version)
        assert {check["verdict"] for check in row.values()} == {"PASS", "NOT-DECLARED"}, row
        assert row["driver.modules"]["verdict"] == row["driver.held"]["verdict"] == "PASS"
        assert json.loads(self.on(f"cat {RECEIPT}"))["version"] == version
        assert self.on(f"ls {STATE}/journal; dpkg --audit") == ""
        assert "changed=0 " in self.install(version).stdout

    def on(self, command: str, status: int | None = 0) -> str:
        """Run a shell command on the host, as root."""
        return self.fleet.on("lab1", command, status)


@pytest.fixture(scope="module")
def bare(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A server with a kernel and no driver."""
    quiet = "apt-get install -qq --no-install-recommends"
    fleet.on("lab1", f"apt-get update -qq; {quiet} linux-image-cloud-amd64 >/dev/null")
    return Host(fleet, tmp_path_factory.mktemp("repositories"))


@pytest.fixture
def host(bare: Host) -> Host:
    """A host with the older driver, undamaged."""
    bare.on("rm -rf /run/stand-in /etc/apt/sources.list.d/test-*; apt-mark unhold dkms")
    bare.install(OLD)
    return bare


def test_a_driver_is_installed_upgraded_rolled_back_and_removed(bare: Host) -> None:
    bare.install(OLD)
    bare.works(OLD)
    bare.install(NEW)
    bare.works(NEW)
    # Without any repository: from the packages that are kept.
    bare.on(f"mv {PLACE} {PLACE}.away")
    back = [ROOT / ".venv/bin/ansible-playbook", "playbooks/rollback.yml"]
    bare.fleet.run(*back)
    bare.on(f"mv {PLACE}.away {PLACE}")
    bare.works(OLD)
    bare.fleet.gpufleet("remove", "--driver")
    assert bare.on("dpkg-query -W -f '${Package}\\n' | grep nvidia; apt-mark showhold", None) == ""


@pytest.mark.slow
def test_a_half_configured_package_of_ours_is_finished(host: Host) -> None:
    host.on("dpkg --unpack --force-confold /var/lib/gpufleet/driver/*/libcuda1_*.deb >/dev/null")
    assert "libcuda1" in host.on("dpkg --audit")
    assert host.verdicts(OLD, status=1)["driver.packages"]["verdict"] == "FAIL"
    host.install(OLD)
    host.works(OLD)


@pytest.mark.slow
def test_a_broken_package_of_others_is_named(host: Host) -> None:
    host.on(
        "mkdir -p /tmp/theirs/DEBIAN; cd /tmp/theirs;"
        " printf 'Package: theirs\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@x>\\n"
        "Description: x\\n' >DEBIAN/control; printf '#!/bin/sh\\nexit 1\\n' >DEBIAN/postinst;"
        " chmod 755 DEBIAN/postinst; dpkg-deb -b . /tmp/theirs.deb; dpkg -i /tmp/theirs.deb || :"
    )
    host.refused(NEW, "The package theirs is half-configured", "dpkg --configure -a")
    host.on("rm /var/lib/dpkg/info/theirs.postinst; dpkg --configure theirs; dpkg -P theirs")
    host.works(OLD)


@pytest.mark.slow
def test_packages_that_others_hold_are_no_obstacle(host: Host) -> None:
    host.on("apt-mark hold dkms libcuda1")
    host.install(NEW)
    host.works(NEW)
    assert "dkms" in host.on("apt-mark showhold").splitlines()


@pytest.mark.slow
def test_missing_headers_are_brought_back(host: Host) -> None:
    host.on("dpkg -P --force-depends $(dpkg-query -W -f '${Package}\\n' 'linux-headers-*')")
    reported = host.verdicts(OLD, status=1)["driver.modules"]
    assert reported["verdict"] == "FAIL"
    assert "no headers (linux-headers-" in reported["cause"]
    host.install(OLD)
    host.works(OLD)


@pytest.mark.slow
def test_headers_that_nobody_offers_are_named(host: Host) -> None:
    host.on("cp -a /boot/vmlinuz-* /boot/vmlinuz-5.0.0-gone; mkdir -p /lib/modules/5.0.0-gone")
    output = "kernel 5.0.0-gone: its headers are not installed"
    host.refused(OLD, output, "linux-headers-5.0.0-gone")
    host.on("rm -r /boot/vmlinuz-5.0.0-gone /lib/modules/5.0.0-gone")
    host.works(OLD)


@pytest.mark.slow
def test_a_rotated_key_is_reported(host: Host) -> None:
    other = host.deliver(PLACE)
    host.refused(NEW, "is not signed by the key in", "Nothing was installed from it")
    # Whoever vouches for the new key declares it, and it is fetched.
    host.fingerprint = other
    host.install(NEW)
    host.works(NEW)


@pytest.mark.slow
def test_a_key_of_another_fingerprint_is_refused(host: Host) -> None:
    host.on("rm /etc/apt/keyrings/gpufleet-nvidia.asc")
    known, host.fingerprint = host.fingerprint, "0" * 40
    host.refused(NEW, f"is {known}, accepted is {'0' * 40}")
    host.fingerprint = known
    host.install(OLD)
    host.works(OLD)


@pytest.mark.slow
def test_two_repositories_that_would_be_mixed_are_refused(host: Host) -> None:
    """The declared one lacks a package, another one has it."""
    whole = host.fingerprint
    host.deliver("/srv/other", label="Other")
    host.on("echo 'deb [trusted=yes] copy:/srv/other ./' >/etc/apt/sources.list.d/test-other.list")
    host.fingerprint = host.deliver(PLACE, without=["libcuda1"])
    host.refused(NEW, "Two repositories are in conflict", "libcuda1", "would come from Other")
    host.on("rm /etc/apt/sources.list.d/test-other.list")
    assert whole != host.fingerprint
    host.fingerprint = host.deliver(PLACE)
    host.install(OLD)
    host.works(OLD)


@pytest.mark.slow
def test_of_two_repositories_the_declared_one_wins(host: Host) -> None:
    host.deliver("/srv/other", label="Other")
    host.on("echo 'deb [trusted=yes] copy:/srv/other ./' >/etc/apt/sources.list.d/test-other.list")
    host.install(NEW)
    kept = host.on("apt-cache policy libcuda1")
    assert f"{NEW}-1" in kept
    host.on("rm /etc/apt/sources.list.d/test-other.list; apt-get update -qq")
    host.works(NEW)


def test_a_lock_that_is_held_is_reported_with_its_holder(host: Host) -> None:
    hold = (
        "import fcntl,time; f=open('/var/lib/dpkg/lock-frontend','w');"
        " fcntl.lockf(f,fcntl.LOCK_EX); time.sleep(600)"
    )
    host.on(f'systemd-run --unit=holder --quiet python3 -c "{hold}"')
    host.on("until ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q lock-frontend; do :; done")
    host.refused(NEW, "/var/lib/dpkg/lock-frontend has been held for more than 5 s by python3 (pid")
    host.on("systemctl stop holder")
    host.works(OLD)


@pytest.mark.slow
def test_too_little_space_is_reported_before_anything_changes(host: Host) -> None:
    before = host.on("dpkg-query -W; cat /etc/apt/preferences.d/gpufleet-driver")
    host.refused(
        NEW, "MiB are free at /usr", "Nothing was changed", nvidia_driver_space={"/usr": 99_000_000}
    )
    assert host.on("dpkg-query -W; cat /etc/apt/preferences.d/gpufleet-driver") == before
    host.works(OLD)


@pytest.mark.slow
def test_a_disk_that_fills_up_in_the_build_brings_the_old_driver_back(host: Host) -> None:
    host.on(
        f"cd /var/lib; mkdir -p /run/stand-in; touch /run/stand-in/fill-{NEW}; cp -a dkms dkms.old;"
        " mount -t tmpfs -o size=16m none dkms; cp -a dkms.old/. dkms"
    )
    host.refused(
        NEW, f"The driver {NEW} could not be installed", "No space left", f"{OLD} was restored"
    )
    kept = "rm -r dkms.old; cp -a dkms dkms.old; umount dkms; rm -r dkms; mv dkms.old dkms"
    host.on(f"cd /var/lib; {kept}")
    host.works(OLD)
    host.on("rm -r /run/stand-in")
    host.install(NEW)
    host.works(NEW)


@pytest.mark.slow
def test_a_reboot_is_noted_before_the_driver_changes_and_done_once(host: Host) -> None:
    """With a GPU declared that is not there a driver is installed, and never comes to run."""
    marker, gpu = f"{STATE}/reboot-pending.json", {"gpu_expect": {"count": 1}}

    def boot() -> str:
        return host.on("cat /proc/sys/kernel/random/boot_id")

    first = boot()
    host.fleet.killed(f"test -e {marker}", *host.command(NEW, **gpu))
    assert json.loads(host.on(f"cat {RECEIPT}"))["version"] == OLD
    assert f"driver {NEW} is being installed" in host.on(f"cat {marker}")
    assert boot() == first

    host.refused(
        NEW, "The driver does not run", "after the reboot that should have fixed it", **gpu
    )
    second = boot()
    assert second != first
    assert json.loads(host.on(f"cat {RECEIPT}"))["version"] == NEW
    assert json.loads(host.on(f"cat {marker}"))["tried"]

    host.refused(NEW, "after the reboot that should have fixed it", **gpu)
    assert boot() == second
    checks = host.fleet.verdicts(1, "-e", host.declared(NEW, **gpu))["lab1"]
    assert "after the reboot that should have fixed it" in checks["driver.pending"]["cause"]

    host.install(NEW)
    assert host.on(f"ls {marker} 2>/dev/null || :") == ""
    assert boot() == second
    host.works(NEW)


# What is on the host at the moment of the kill, in the order of an upgrade.
MOMENTS = {
    "the lists are being refreshed": "pgrep -f '[a]pt-get.* update'",
    "packages are being copied": f"ls {STATE}/driver/{NEW}/*.deb",
    "a package is being unpacked": "pgrep -f '[p]reinst (install|upgrade)'",
    "the module is being built": f"test -d /var/lib/dkms/nvidia/{NEW}/build",
    "all stands but the receipt": f"dkms status nvidia/{NEW} | grep -q installed",
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_upgrade_is_finished_by_the_next_run(host: Host, moment: str) -> None:
    host.on("mkdir -p /run/stand-in; echo 3 >/run/stand-in/unpack; echo 3 >/run/stand-in/build")
    host.fleet.killed(MOMENTS[moment], *host.command(NEW))
    host.on("rm -r /run/stand-in")
    assert json.loads(host.on(f"cat {RECEIPT}"))["version"] == OLD, "the kill came too late"
    host.install(NEW)
    host.works(NEW)


@pytest.mark.slow
def test_a_driver_comes_from_a_runfile_and_goes_again(host: Host) -> None:
    name = f"NVIDIA-Linux-x86_64-{NEW}.run"
    file = driver_repository.runfile(host.work / name, NEW)
    declared = {
        "gpu_driver": {"branch": NEW, "source": "runfile", "module": "open"},
        "gpu_accept_nvidia_eula": True,
        "gpu_artifacts_source": str(host.work),
    }
    # Beside packages it is refused, and nobody's word on the file is none.
    assert "NVIDIA-Linux" not in host.install(NEW, status=2, **declared).stdout
    host.fleet.gpufleet("remove", "--driver")
    host.refused(NEW, f"Nobody has published a checksum of {name}", **declared)
    declared["gpu_artifacts"] = {name: {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}}
    host.install(NEW, **declared)
    assert "--dkms" in host.on("cat /var/log/stand-in-runfile")
    assert "changed=0 " in host.install(NEW, **declared).stdout
    output = host.fleet.verdicts(0, "-e", host.declared(NEW, **declared))["lab1"]
    assert output["driver.modules"]["verdict"] == output["driver.packages"]["verdict"] == "PASS"
    host.fleet.gpufleet("remove", "--driver")
    assert (
        host.on("ls /usr/src | grep nvidia; dkms status; ls /var/lib/gpufleet/receipts", None) == ""
    )
