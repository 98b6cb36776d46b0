"""The host itself: the probe, its disks, the plan, an installation, GPUs that are not declared."""

from __future__ import annotations

from gpufleet.on_host.constants import REFUSED
from tests.support.check_faults import faults_on, no_gpus
from tests.support.healthy_host import Document, data
from tests.support.host_parts import PROVISION, receipt

fault, harmless = faults_on(no_gpus)


@fault("host.probe", cause="Probing 'driver' hung", remedy="state D", verdict="HUNG")
def driver_section_hung(plan: Document, snapshot: Document) -> None:
    snapshot["sections"]["driver"] = {
        "state": "hung",
        "seconds": 20,
        "error": "no answer within 20 s",
        "data": None,
    }


@fault("host.probe", cause="The snapshot is of gpu02, the plan is for gpu01", remedy="same host")
def snapshot_of_another_host(plan: Document, snapshot: Document) -> None:
    snapshot["host"] = "gpu02"


# What an image cannot show; its files pass as they do on a host.
LEFT_TO_BOOT = (
    "host.booted",
    "host.nvme",
    "host.temporary",
    "gpu.count",
    "toolkit.nvrtc",
    "stack.build",
    "stack.libraries",
    "stack.mapped",
    "stack.matmul",
    "stack.hello",
    "stack.local-devices",
    "stack.gpu-device-name",
    "stack.device-placement",
    "containers.runtime",
    "containers.matmul",
    "containers.vulnerable",
)


@fault(
    *LEFT_TO_BOOT,
    verdict="INCONCLUSIVE",
    cause="an image that has not booted",
    remedy="boot a host from the image; then ./gpufleet verify --limit gpu01",
)
def an_image_before_its_first_boot(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["container"] = "image"


@fault("host.disk", cause="No space is left in /tmp (3 MiB, 4718592 files)", remedy="df -h")
def disk_full(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["free_mib"]["/tmp"] = 3


@fault("host.disk", cause="No space is left in /opt/gpufleet/stacks (2 MiB", remedy="df -h")
def file_system_of_the_stacks_full(plan: Document, snapshot: Document) -> None:
    disks = data(snapshot, "disks")
    disks["free_mib"]["/opt/gpufleet/stacks"] = 2
    disks["filesystem"]["/opt/gpufleet/stacks"] = "2049"


@fault("host.disk", cause="No space is left in / (74132 MiB, 0 files)", remedy="df -i")
def disk_without_inodes(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["free_files"]["/"] = 0


@fault("host.disk", cause="/var/lib/gpufleet cannot be written", remedy="kernel log")
def disk_mounted_read_only_after_an_error(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["readonly"] = ["/var/lib/gpufleet"]


def shared(snapshot: Document, path: str) -> Document:
    return next(row for row in data(snapshot, "disks")["shared"] if row["path"] == path)


@fault("host.temporary", cause="/dev/shm has 0.1 MiB, at least 1024 MiB", remedy="remount,size=50%")
def shared_memory_too_small(plan: Document, snapshot: Document) -> None:
    shared(snapshot, "/dev/shm").update(size_mib=0.1, free_mib=0.1)


@fault("host.temporary", cause="/dev/shm has 0.1 MiB, at least 60 MiB", remedy="--shm-size=1g")
def shared_memory_of_a_container_too_small(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["container"] = "podman"
    shared(snapshot, "/dev/shm").update(size_mib=0.1, free_mib=0.1)


@fault("host.temporary", cause="/dev/shm is full", remedy="fuser -v")
def shared_memory_full(plan: Document, snapshot: Document) -> None:
    shared(snapshot, "/dev/shm")["free_mib"] = 0.0


@fault("host.temporary", cause="/dev/shm is mounted read-only", remedy="remount,rw")
def shared_memory_read_only(plan: Document, snapshot: Document) -> None:
    shared(snapshot, "/dev/shm")["readonly"] = True


@fault("host.temporary", cause="/dev/shm is not mounted as tmpfs", remedy="mount -t tmpfs")
def shared_memory_not_mounted(plan: Document, snapshot: Document) -> None:
    shared(snapshot, "/dev/shm")["mounted"] = None


@fault("host.temporary", cause="/dev/shm is not there", remedy="mount -t tmpfs")
def shared_memory_gone(plan: Document, snapshot: Document) -> None:
    shared(snapshot, "/dev/shm")["exists"] = False


@fault("host.temporary", cause="/tmp has mode 0755", remedy="chmod 1777 /tmp")
def tmp_for_root_alone(plan: Document, snapshot: Document) -> None:
    shared(snapshot, "/tmp")["mode"] = "0755"


@fault("host.temporary", verdict="INCONCLUSIVE", cause="It was not observed", remedy="verify")
def shared_memory_not_observed(plan: Document, snapshot: Document) -> None:
    del data(snapshot, "disks")["shared"]


def common(snapshot: Document, path: str, kind: str, error: str) -> None:
    for row in data(snapshot, "disks")["common"]:
        if row["path"] == path:
            row.update(kind=kind, error=error)


@fault(
    "host.temporary",
    cause="root cannot use /etc/ld.so.cache: it has mode 0600",
    remedy="on the host: chmod a+r /etc/ld.so.cache",
)
def linker_cache_closed_to_users(plan: Document, snapshot: Document) -> None:
    common(snapshot, "/etc/ld.so.cache", "mode", "it has mode 0600")


@fault("host.temporary", cause="root cannot use /dev/null", remedy="chmod 666 /dev/null")
def null_device_closed_to_users(plan: Document, snapshot: Document) -> None:
    common(snapshot, "/dev/null", "mode", "it has mode 0600")


@fault("host.temporary", cause="it is no device", remedy="mknod -m 666 /dev/null c 1 3")
def null_device_replaced_by_a_file(plan: Document, snapshot: Document) -> None:
    common(snapshot, "/dev/null", "no-device", "it is no device")


@fault("host.temporary", cause="root cannot use /etc/passwd", remedy="namei -l /etc/passwd")
def etc_closed_to_users(plan: Document, snapshot: Document) -> None:
    common(snapshot, "/etc/passwd", "missing", "it does not exist, or lies where they may not go")


@fault("host.temporary", verdict="INCONCLUSIVE", cause="It was not tried", remedy="as root")
def files_of_every_program_not_tried(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["common"] = None


@harmless
def container_with_the_shared_memory_that_engines_give(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["container"] = "podman"
    shared(snapshot, "/dev/shm").update(size_mib=62.5, free_mib=62.5)


@harmless
def container_without_shared_memory(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["container"] = "docker"
    shared(snapshot, "/dev/shm")["exists"] = False


@harmless
def shared_memory_of_a_small_machine(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["memory_mib"] = 1900
    shared(snapshot, "/dev/shm").update(size_mib=950.0, free_mib=950.0)


@fault(
    "host.plan", cause="gpu_stacks[0].tensorflow: There is no TensorFlow 9.9", remedy="the newest"
)
def declaration_refused(plan: Document, snapshot: Document) -> None:
    plan["problems"] = [
        {
            "code": "unknown-release",
            "message": "There is no TensorFlow 9.9.",
            "where": "gpu_stacks[0].tensorflow",
            "remedy": "Declare the newest.",
        }
    ]


@fault(
    "install.complete",
    cause="installation of toolkit 11.8 in /usr/local/cuda-11.8 was started",
    remedy=PROVISION,
)
def killed_while_installing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["journal"] = [
        {
            "schema": 1,
            "kind": "toolkit",
            "id": "11.8",
            "path": "/usr/local/cuda-11.8",
            "version": "11.8.0",
            "state": "installing",
            "fresh": True,
            "started": "now",
        }
    ]


@fault(
    "install.complete",
    cause="stack old in /opt/old",
    remedy="./gpufleet remove --stack old --limit gpu01",
)
def killed_while_installing_what_nobody_declares_any_more(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "receipts")["journal"] = [
        {
            "schema": 1,
            "kind": "stack",
            "id": "old",
            "path": "/opt/old",
            "version": "1",
            "state": "installing",
            "fresh": True,
            "started": "now",
        }
    ]


@fault("install.complete", cause="removal of stack old in /opt/old was started", remedy=PROVISION)
def killed_while_removing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["journal"] = [
        {
            "schema": 1,
            "kind": "stack",
            "id": "old",
            "path": "/opt/old",
            "version": "1",
            "state": "removing",
            "fresh": False,
            "started": "now",
        }
    ]


@fault(
    "install.complete",
    cause="installation of cudnn 8.0-5",
    remedy=f"gpu_prune: true; then {PROVISION}",
)
def killed_while_installing_a_cudnn_that_nobody_declares_any_more(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "receipts")["journal"] = [
        {
            "schema": 1,
            "kind": "cudnn",
            "id": "8.0-5",
            "path": "/usr/local/cuda-8.0",
            "version": "5.1",
            "state": "installing",
            "fresh": True,
            "started": "now",
        }
    ]


def scrubbed(snapshot: Document, *components: Document, error: str | None = None) -> None:
    """The night that read a share of the contents; all of the toolkit was read 13 days ago."""
    now = 1_800_000_000
    data(snapshot, "receipts")["scrub"] = {
        "days": 14,
        "seconds": 60,
        "at": now,
        "error": error,
        "components": [
            {
                "component": "toolkit-11.8",
                "installed": "2026-11-20T12:00:00Z",
                "files": 40,
                "bytes": 3 << 30,
                "first": now - 99 * 86400,
                "begun": now - 13 * 86400,
                "read": now - 13 * 86400,
                "cursor": "lib64/libcufft.so",
                "complete": True,
                "slow": [],
                "bad": [],
                **component,
            }
            for component in ({"component": "cudnn-11.8-8"}, *(components or ({},)))
        ],
    }


@fault(
    "install.contents",
    cause="toolkit-11.8 (last read whole 20 days ago)",
    remedy="raise scrub_seconds, now 60",
    verdict="INCONCLUSIVE",
)
def contents_not_read_in_time(plan: Document, snapshot: Document) -> None:
    scrubbed(snapshot, {"read": 1_800_000_000 - 20 * 86400})


@fault(
    "install.contents",
    cause="60 s are too short for lib/libtensorflow_cc.so.2",
    remedy="raise scrub_seconds",
    verdict="INCONCLUSIVE",
)
def file_too_large_for_a_night(plan: Document, snapshot: Document) -> None:
    scrubbed(snapshot, {"read": None, "slow": ["lib/libtensorflow_cc.so.2"]})


@fault(
    "install.contents",
    cause="toolkit-11.8 (not read at all)",
    remedy="raise scrub_seconds",
    verdict="INCONCLUSIVE",
)
def contents_of_a_component_not_read(plan: Document, snapshot: Document) -> None:
    scrubbed(snapshot, {"component": "stack-tensorflow-2.13.1"})


@fault(
    "install.contents",
    cause="nothing was read tonight: no answer within 60 s",
    remedy="iostat -x 5 3",
    verdict="INCONCLUSIVE",
)
def disk_too_busy_to_be_read_for_weeks(plan: Document, snapshot: Document) -> None:
    scrubbed(snapshot, {"read": 1_800_000_000 - 20 * 86400}, error="no answer within 60 s")


@fault(
    "toolkit.files",
    cause="lib64/libcufft.so.10.9.0.58 (Input/output error); their disk: /dev/sda1 at /",
    remedy=f"a disk that fails has to be replaced; then {PROVISION} --contents",
)
def file_that_the_disk_cannot_give(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["changed"] = [
        {
            "path": "lib64/libcufft.so.10.9.0.58",
            "what": "unreadable",
            "error": "Input/output error",
            "disk": "/dev/sda1 at /",
        }
    ]


@fault(
    "host.probe",
    verdict="INCONCLUSIVE",
    cause="schema 2, this release reads 1",
    remedy="new snapshot",
)
def snapshot_of_another_schema(plan: Document, snapshot: Document) -> None:
    snapshot["schema"] = 2


@fault("install.complete", cause="toolkit-11.8.json cannot be read", remedy=PROVISION)
def receipt_unreadable(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["unreadable"] = [
        {"path": "/var/lib/gpufleet/receipts/toolkit-11.8.json", "error": "Expecting value"}
    ]


@fault(
    "install.owned",
    cause="/usr/local/cuda-11.8/bin/nvcc (belongs to user 1000)",
    remedy="chown -h root:root",
)
def file_of_another_owner(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["exposed"] = [
        {"path": "/usr/local/cuda-11.8/bin/nvcc", "what": "belongs to user 1000"}
    ]


@fault(
    "install.owned",
    cause="/usr/local/cuda-11.8/bin/it is not run as root (belongs to user 1000)",
    remedy="chown -h root:root",
)
def file_of_another_owner_named_like_a_refusal(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["exposed"] = [
        {"path": f"/usr/local/cuda-11.8/bin/{REFUSED}", "what": "belongs to user 1000"}
    ]


@fault(
    "install.owned",
    cause="/usr/local/cuda-11.8 belongs to alice (1000)",
    remedy="chown -h root:root",
)
def tree_without_a_receipt_of_another_owner(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["exposed"] = [
        {"path": "/usr/local/cuda-11.8", "what": "/usr/local/cuda-11.8 belongs to alice (1000)"}
    ]


@fault(
    "install.owned",
    remedy="move away the links /opt/gpufleet/stacks/one, and change no owner",
    cause="/opt/gpufleet/stacks/one (a link to /home/alice/one: /home/alice belongs to user",
)
def stack_that_is_a_link_to_a_home(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "stack")["exposed"] = [
        {
            "path": "/opt/gpufleet/stacks/one",
            "link": "/home/alice/one",
            "what": "a link to /home/alice/one: /home/alice belongs to user 1000",
        }
    ]


@fault(
    "gpu.count",
    cause="1 NVIDIA GPU is in the host, declared is gpu_expect: {count: 0}",
    remedy="inventory",
)
def card_that_is_not_declared(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["pci"] = [
        {
            "address": "0000:01:00.0",
            "vendor": "0x10de",
            "device": "0x2330",
            "class": "0x030200",
            "driver": None,
        }
    ]


def governors(plan: Document, snapshot: Document, driver: str, *found: str | None) -> None:
    """Declare performance; the CPUs have these governors instead."""
    plan["expect"]["governor"] = "performance"
    data(snapshot, "kernel")["frequency"] = [
        {"cpu": cpu, "governor": governor, "driver": driver} for cpu, governor in enumerate(found)
    ]


@fault(
    "host.governor",
    cause="CPUs 1-2 have schedutil; CPU 4 has ond",
    remedy="until the next reboot",
)
def mixed_governors(plan: Document, snapshot: Document) -> None:
    names = ("performance", "schedutil", "schedutil", "performance", "ondemand")
    governors(plan, snapshot, "acpi-cpufreq", *names)


@fault(
    "host.governor",
    cause="CPUs 0-1 have powersave, which follows the load under intel_pstate",
    remedy="cpupower frequency-set -g performance",
)
def powersave_of_the_hardware(plan: Document, snapshot: Document) -> None:
    governors(plan, snapshot, "intel_pstate", "powersave", "powersave")


@fault("host.governor", cause="has the governor schedutil: CPU 0 has", remedy="has no schedutil")
def governor_that_the_driver_lacks(plan: Document, snapshot: Document) -> None:
    governors(plan, snapshot, "intel_pstate", "powersave")
    plan["expect"]["governor"] = "schedutil"


@fault("host.governor", verdict="INCONCLUSIVE", cause="CPU 1 cannot be read", remedy="as root")
def governor_not_readable(plan: Document, snapshot: Document) -> None:
    governors(plan, snapshot, "acpi-cpufreq", "performance", None)


@fault("host.governor", verdict="INCONCLUSIVE", cause="no cpufreq", remedy="virtual machine")
def no_governor_in_a_virtual_machine(plan: Document, snapshot: Document) -> None:
    governors(plan, snapshot, "acpi-cpufreq")


@fault("host.governor", verdict="INCONCLUSIVE", cause="not observed", remedy="new snapshot")
def governor_not_observed(plan: Document, snapshot: Document) -> None:
    plan["expect"]["governor"] = "performance"
    data(snapshot, "kernel").pop("frequency", None)


@fault(
    "host.repositories",
    cause="apt-get stops, whatever it is called for: it says: Malformed entry 1 in list file",
    remedy="correct or remove what it names",
)
def a_list_of_apt_that_is_garbled(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages").update(
        manager="dpkg",
        stopped=["Malformed entry 1 in list file /etc/apt/sources.list.d/a.list (Suite)"],
    )


@fault(
    "host.repositories",
    verdict="INCONCLUSIVE",
    cause="It is unknown whether apt can read its repositories",
    remedy="as root",
)
def a_list_of_apt_that_was_not_read(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages").update(manager="dpkg", stopped=None)
