"""Containers on a host without GPUs."""

from __future__ import annotations

from tests.support.check_faults import faults_on, no_gpus
from tests.support.healthy_host import Document, data
from tests.support.host_parts import PROVISION

fault, harmless = faults_on(no_gpus)


@fault(
    "containers.runtime",
    cause="daemon.json cannot be read: Expecting value",
    remedy="correct /etc/docker",
)
def daemon_json_is_damaged(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["daemon"]["error"] = "Expecting value: line 3 column 5"


@fault("containers.runtime", cause="does not register the runtime nvidia", remedy=PROVISION)
def runtime_is_not_registered(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["daemon"]["runtimes"] = {}


@fault(
    "containers.runtime",
    cause="he running Docker does not know the runtime nvidia",
    remedy=PROVISION,
)
def docker_was_not_told(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["engine"]["runtimes"] = ["runc"]


@fault("containers.runtime", cause="1.20.0-1 is not held", remedy=PROVISION)
def toolkit_is_not_held(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["toolkit"]["held"] = False


@fault(
    "containers.runtime",
    cause="could not be run: docker run: no space left",
    remedy="journalctl -u docker",
)
@fault(
    "containers.matmul",
    cause="could not be run: docker run: no space left",
    remedy="journalctl -u docker",
)
def no_container_starts(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"].update(
        state="failed", error="docker run: no space left", framework=None
    )


# Seen with Docker 20.10 on Debian 12 without the package apparmor.
NO_PARSER = (
    "docker run: docker: Error response from daemon: AppArmor enabled on system but the"
    " docker-default profile could not be loaded: running `apparmor_parser apparmor_parser"
    ' --version` failed with output:  error: exec: "apparmor_parser": executable file not found'
    " in $PATH."
)


@fault("containers.runtime", cause="cannot load its AppArmor profile", remedy="package apparmor")
@fault("containers.matmul", cause="cannot load its AppArmor profile", remedy="package apparmor")
def an_engine_without_the_parser_of_its_profile(plan: Document, snapshot: Document) -> None:
    there = data(snapshot, "containers")
    # What closes a trial's directories at most explains nothing here.
    there["engine"]["security"] = ["seccomp", "userns"]
    there["run"].update(state="failed", error=NO_PARSER, framework=None)


# Seen with Docker 20.10 on Debian 12 with userns-remap, and a file mounted over /proc/devices.
NO_PROC = (
    "docker run: docker: Error response from daemon: failed to create shim task: OCI runtime create"
    " failed: runc create failed: unable to start container process: error during container init:"
    ' error mounting "proc" to rootfs at "/proc": mount proc:/proc (via /proc/self/fd/16), flags:'
    " 0xe: operation not permitted: unknown."
)


@fault("containers.runtime", cause="over a part of the host's /proc", remedy="findmnt --submounts")
@fault("containers.matmul", cause="over a part of the host's /proc", remedy="findmnt --submounts")
def mapped_accounts_beside_a_mount_below_proc(plan: Document, snapshot: Document) -> None:
    there = data(snapshot, "containers")
    there["engine"]["security"] = ["seccomp", "userns"]
    there["run"].update(state="failed", error=NO_PROC, framework=None)


@fault(
    "containers.matmul", cause="in a container on /CPU:0 gave 3 wrong rows", remedy="out of service"
)
def wrong_numbers_in_a_container(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"]["matmul"][0]["wrong"] = 3


@fault(
    "containers.matmul",
    verdict="INCONCLUSIVE",
    cause="The image theirs:1 is not on the host",
    remedy="docker pull theirs:1",
)
def image_is_not_there(plan: Document, snapshot: Document) -> None:
    plan["containers"]["image"] = "theirs:1"
    data(snapshot, "containers")["run"]["image"] = {
        "name": "theirs:1",
        "present": False,
        "framework": None,
    }


@fault(
    "containers.vulnerable",
    cause="1.17.8 has known vulnerabilities: CVE-2026-24260",
    remedy='declare gpu_containers.toolkit: "1.19.1" or newer; then ./gpufleet provision',
)
def installed_toolkit_is_vulnerable(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["toolkit"]["version"] = "1.17.8-1"


@harmless
def vulnerability_is_accepted(plan: Document, snapshot: Document) -> None:
    plan["containers"]["accept_cves"] = ["CVE-2026-24260"]
    data(snapshot, "containers")["toolkit"]["version"] = "1.17.8-1"


@fault(
    "containers.vulnerable",
    cause="release is not known: 'unknown'",
    remedy="containers.runtime",
    verdict="INCONCLUSIVE",
)
def release_is_not_known(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["toolkit"]["version"] = "unknown"


@fault("containers.runtime", cause="toolkit is not installed", remedy=PROVISION)
@fault(
    "containers.vulnerable",
    cause="No container toolkit was found",
    remedy="containers.runtime",
    verdict="INCONCLUSIVE",
)
def toolkit_is_gone(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["toolkit"] = None
