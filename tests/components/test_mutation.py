"""Each field of a healthy snapshot is dropped, nulled, emptied, falsified: some check must notice.

What no plan notices stands in `HARMLESS`, with the reason; a row there that nothing needs is a
fault too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from copy import copy
from typing import Any

import pytest

from gpufleet.components.host.host import SECTIONS
from gpufleet.documents.verdict import Verdict
from gpufleet.judge import judge
from tests.components.faults.manifest import with_machine_manifest
from tests.support.healthy_host import Document, document, with_driver
from tests.support.host_parts import with_gpus

pytestmark = pytest.mark.exhaustive

Path = tuple[str | int, ...]

# The richest host first: what is noticed on it is not tried again on the others.
VARIANTS: dict[str, Callable[[Document, Document], None]] = {
    "gpus": with_gpus,
    "driver": with_driver,
    "no-gpu": lambda plan, snapshot: None,
    "manifest": with_machine_manifest,
}

# `place` or `place: how how`, `*` standing for anything: why no verdict changes by it.
HARMLESS: dict[str, str] = {
    # What the plan is made with before anything is judged, or what is only reported.
    "os/*": "the plan is made with it; what of it matters is judged where it stands",
    "kernel/frequency/*/cpu: other": "reported",
    "kernel/frequency/*/driver*": "reported",
    "kernel/boot_id": "reported; restarts are counted by it",
    "kernel/uptime_s": "reported",
    "kernel/container: other": "which kind of container it is matters nothing",
    "kernel/next_boot*": "every installed kernel is judged, not only the next one",
    "kernel/installed/0/image: other": "without an image a kernel does not boot: nothing to judge",
    "kernel/installed/0/initramfs*": "null: there is none, or nobody looked into it",
    "kernel/installed/0/modules/nvidia.ko/license*": "packed modules do not tell it",
    "kernel/installed/0/modules/nvidia.ko/path: other": "reported",
    "kernel/installed/0/modules/nvidia.ko/error: drop": "an earlier probe does not tell it",
    "driver/nouveau/loaded: other": "a nouveau without a card, beside cards that compute, does nothing",
    "packages/stopped: drop": "an earlier probe does not ask apt: the entries are compared",
    "kernel/secure_boot/enabled": "whether our key is known decides, where that is reported",
    "disks/filesystem*": "the plan adds up with it what is to be installed",
    "disks/free_*: other": "more room than before",
    "disks/free_*/local: drop null": "where toolkits go must have room when one is installed",
    "disks/free_*/stacks: drop null": "the same",
    "disks/free_files/*: null": "some file systems make inodes as they need them",
    "disks/memory_mib: other": "with more memory /dev/shm needs no more than a GiB",
    "disks/shared/shm/free_files: other null": "as above",
    "disks/shared/shm/*_mib: other": "more room than before",
    "disks/shared/tmp/free_*": "judged where the free space of /tmp stands",
    "disks/shared/tmp/mounted: other": "/tmp may be a file system of its own, or not",
    "disks/shared/tmp/readonly*": "judged among the directories that are read-only",
    "disks/shared/tmp/size_mib*": "reported; its free space is judged",
    "disks/common/*/path: other": "reported where it cannot be used; all that can be are the same",
    # Network ports: two that are declared, and judged as declared.
    "network/access_control/*:01.0: drop null other": "a GPU and its adapter share this port",
    "network/access_control/*: other": "the changed bits redirect nothing",
    "network/adapters*": "every adapter is an RDMA device; one that is none is judged",
    "network/devices/*/above*": "reported; without the slot the siblings say what is possible",
    "network/devices/*/address: other": "reported",
    "network/devices/*/board: other": "of two adapters none is in the majority",
    "network/devices/*/bridge: null other": "its ports were read all the same",
    "network/devices/*/device: null other": "reported",
    "network/devices/*/driver: null other": "reported",
    "network/devices/*/guid*": "the history knows a port by it",
    "network/devices/*/iommu: other": "another type that does not translate",
    "network/devices/*/link/current_*: other": "more than is possible",
    "network/devices/*/link/max_*": "the siblings say what is possible",
    "network/devices/*/name: other": "another name that the declaration matches",
    "network/devices/*/numa*": "reported",
    "network/devices/*/path*": "a declared port has its role by its name",
    "network/devices/*/ports/0/counters/port_xmit_*: drop": "data and congestion are no errors",
    "network/devices/*/ports/0/counters/port_xmit_data: other": "data are no errors",
    "network/devices/*/ports/0/counters/port_xmit_wait: other": "congestion is no error",
    "network/devices/*/ports/0/gids*": "the GIDs of an InfiniBand port are its own",
    "network/devices/*/ports/0/hw_counters*": "only those that cannot be read are judged",
    "network/devices/*/ports/0/link_layer: other": "none is declared",
    "network/devices/*/ports/0/phys_state: null other": "an active port has a link",
    "network/devices/*/ports/0/pkeys*": "of two ports none is in the majority",
    "network/devices/*/ports/0/rate: other": "the lanes are in its number",
    "network/devices/*/traffic_gb_s*": "it says what a slow PCIe link means, and none is slow",
    "network/devices/*/type: null other": "reported",
    "network/devices/*/vendor: null other": "reported",
    "network/gpus*": "a declared port has its role by its name",
    "network/interfaces*": "none is declared",
    "network/modules*": "the device files are judged, and named with their module",
    "network/nodes/*/path: other": "another number of a device file",
    # The machine: most of it is compared with a manifest, in one variant.
    "machine/clock/max_error_us: null other": "the kernel's flag says that it is synchronised",
    "machine/clock/unsynchronised: other": "its greatest error is low",
    "machine/cpus/microcode/*: other": "how many threads have the one version",
    "machine/drives/*/address: null other": "reported",
    "machine/drives/*/error: other": "a word on a drive that was read",
    "machine/drives/*/name: other": "what the kernel calls a drive differs by the boot",
    "machine/drives/*/state: null other": "the drive has answered; `dead` is judged",
    "machine/drives/*/health/spare_percent: other": "more than before",
    "machine/drives/*/health/power_*: other": "a drive may be old",
    "machine/drives/*/health/reads: other": "a drive may be busy",
    "machine/drives/*/health/writes: other": "the same",
    "machine/drives/*/health/units_*: other": "the same",
    "machine/memory/*/bank: null other": "reported",
    "machine/memory/*/slot: null other": "reported",
    "machine/memory/2/*: other": "the slot is empty",
    "machine/pci/links/*/address: other": "reported",
    # The driver: of several words for the same thing one is judged.
    "driver/cuda_version": "reported; the driver's own version is compared with the plan",
    "driver/on_disk: null": "each kernel's module is judged where it stands",
    "driver/blocked: drop": "an earlier probe does not tell it",
    "driver/dkms*": "what was built stands with the kernels, and is judged there",
    "driver/modules*": "reported; what is loaded says its version itself",
    "driver/persistence/unit: empty other": "reported",
    "driver/fabric/*: other": "there is no NVSwitch",
    "driver/mig_boot*": "no MIG instances are declared, and none are created at boot",
    "driver/holders: null": "only root sees who holds a card",
    "packages/manager": "reported",
    "packages/driver/*/status": "what is not cleanly installed stands in `broken`",
    "packages/pins/*/priority: other": "an even higher one",
    "packages/unattended/installed: other": "then nothing is upgraded at night",
    "gpus/hypervisor*": "it says who can repair a link, and that ports are not the machine's",
    "smi/nvlink/*/errors*": "only their growth is judged",
    "smi/nvlink/*/effective_ber*": "cards before NVLink 5 have no such rate",
    "smi/nvlink/0000:00:00.0/index: other": "GPUs are found by their addresses",
    "smi/nvlink/0000:01:00.0/peers*": "the first GPU's row has the pair of both",
    "smi/nvlink/*/mig: null other": "it excuses inactive links, and these are active",
    "smi/nvlink/*/links/*/link: other": "reported",
    "smi/nvlink/*/links/*/remote*": "reported",
    "smi/nvlink/*/links/*/status: other": "reported where the state is null",
    "smi/nvlink/*/links/*/version*": "reported",
    "compute/runs/*/devices/*/copies: drop": "one run of a host measures them",
    "compute/runs/*/devices/*/link: drop": "one run of a host reads it",
    "gpus/pci/*": "reported: as many as are declared, and the products are made on each",
    "gpus/mig/*/mode: null": "a card that knows no MIG is not split",
    "gpus/nodes/nvidia-uvm": "the driver makes it when it is first asked",
    "gpus/nodes/nvidia*: other": "in a container a card keeps the machine's number",
    "gpus/node_access/*": "reported, but for `error` and a missing `major`",
    # What nvidia-smi says of the cards and nobody declared.
    "smi/program: other": "reported",
    "smi/dtd*": "it only excuses what a later nvidia-smi no longer prints",
    "smi/attached: drop null": "an earlier probe does not tell it; NVML counts as well",
    "smi/error_string: drop": "an earlier probe does not tell it",
    "smi/remarks: drop": "an earlier probe does not tell it",
    "smi/complete: drop": "an earlier probe does not tell it",
    "smi/devices/*/broken: drop": "an earlier probe does not tell it",
    "smi/cuda_version": "reported; libcuda's own word is judged",
    "smi/nvml/version": "of another version than the driver it would not start",
    "smi/devices/*/index: other": "cards are known by their address",
    "smi/devices/*/uuid: null other": "judged where it is declared",
    "smi/devices/*/compute_*: other": "judged where declared, or where a build meets it",
    "smi/devices/*/ecc*: null other": "errors since boot are judged, and what is declared",
    "smi/devices/*/memory_*d_mib": "reported",
    "smi/devices/*/memory_free_mib": "reported; what has no room to compute says so",
    "smi/devices/*/pcie/*: null": "the link is judged as it was read under load",
    "smi/devices/*/power_*": "judged where it is declared",
    "smi/devices/*/clock_*": "reported; why they are low is judged",
    "smi/devices/*/temperature_slowdown_c": "reported",
    "smi/devices/*/throttle*": "reported, but for what the hardware does to save itself",
    "smi/devices/*/utilization_percent: null other": "reported",
    "smi/devices/*/pcie/*: other": "as good as it can be, or better",
    "smi/devices/*/remap/*correctable": "history, while nothing is pending",
    "kernel_log/source: other": "reported",
    "kernel_log/error: other": "a word on what was read all the same",
    "kernel_log/since_boot: other": "as `complete`: a note where the driver's counters are clean",
    "kernel_log/complete: other": "a note where the driver's own counters are clean",
    # What a toolkit computes.
    "compute/deep: other": "then less is claimed, and said so",
    "compute/runs/*/error: other": "a word on a run that came to its end",
    "compute/runs/*/driver/version": "reported; the driver's section is judged",
    "compute/runs/*/devices/*: null other": "figures: told; cards are known by their address",
    "compute/runs/*/formats/*/checked: other": "reported, but for 0",
    "compute/runs/*/cublas/*: null other": "time and size: told",
    "compute/runs/*/gib_s: null other": "how fast cards are connected is no promise",
    "compute/runs/*/cudnn/*/version: null": "cudnn.present asks for it",
    "compute/runs/*/nvrtc/*arch": "reported",
    "compute/runs/*/mapped*": "its libraries are opened by their path",
    "compute/runs/*/seconds": "reported",
    "compute/runs/*/peer/*: null other": "what was copied is judged, by whatever way",
    "compute/runs/*/sustained/*: null other": "time and size: told",
    "compute/runs/*/samples/*": "reported, but for how fast it was",
    # Receipts: what they list is compared on the host, and arrives as `changed`.
    "receipts/receipts/*/schema: other": "the probe refuses other schemas",
    "receipts/receipts/*/version": "reported; what is installed says its version itself",
    "receipts/receipts/*/installed": "reported",
    "receipts/receipts/*/source*": "reported",
    "receipts/receipts/*/files: other": "a count",
    "receipts/receipts/environment/folders*": "what is taken away with it",
    "receipts/receipts/stack/packages/*: drop": "what people add beside the lock is theirs",
    "receipts/receipts/stack/python": "the environment says its Python itself",
    "receipts/receipts/stack/binding*": "what is mapped in the end is judged",
    "receipts/receipts/containers/*": "engine and toolkit are judged as they describe themselves",
    "receipts/receipts/driver/*": "the package manager's own word is judged",
    "receipts/receipts/*/libraries/*: other": "what is not mapped in the end",
    "receipts/scrub: drop": "a verification that reads no contents claims none: NOT-DECLARED",
    "receipts/scrub/days: other": "the nightly's own setting, which the host is given",
    "receipts/scrub/seconds: other": "the same",
    "receipts/scrub/error: other": "what one night did not read, the next reads; told",
    "receipts/scrub/components/*/begun: other": "the next night's share follows from it",
    "receipts/scrub/components/*/bytes: other": "reported",
    "receipts/scrub/components/*/files: other": "reported",
    "receipts/scrub/components/*/complete: other": "the next whole reading follows from it",
    "receipts/scrub/components/*/cursor: empty other": "the next night begins there",
    "receipts/scrub/components/*/first: other": "it matters as long as none was read whole",
    "receipts/scrub/components/*/component: other": "one without libraries may have no checksums",
    "receipts/scrub/components/*/installed: other": "the same",
    "receipts/texts*": "what differs from a receipt stands in its `changed`",
    # Toolkits and cuDNN.
    "toolkits/trees/*/short": "reported; the path is what is compared",
    "toolkits/trees/*/version: other": "below 12.2.1 the last number is a date",
    "toolkits/trees/*/version_source": "reported",
    "toolkits/trees/*/headers*": "a toolkit may be of libraries alone",
    "toolkits/trees/*/nvcc": "a toolkit may be of libraries alone; parts count their patches",
    "toolkits/trees/*/cudart/*: other": "each part counts its own patches",
    "toolkits/trees/*/receipt": "the receipts are judged themselves",
    "toolkits/trees/*/realpath": "a tree may stand behind a link",
    "toolkits/default/path": "reported",
    "toolkits/default/target": "where it leads in the end is judged",
    "toolkits/default/realpath: other": "a tree may stand behind a link",
    "toolkits/occupied*": "the plan looks there before it installs",
    "cudnn/trees/*/mode": "reported; `closed` is judged",
    "cudnn/trees/*/path": "reported",
    "cudnn/trees/*/size_bytes: other": "receipts know the size",
    "cudnn/trees/*/links/*.so/target: other": "compilers ask for libcudnn.so alone",
    # The linker.
    "linker/files/ld.so.conf/*": "reported",
    "linker/files/libc.conf/*": "of other directories what they offer is judged",
    "linker/providers*": "a second provider is judged; that there is one, the cache says",
    "linker/cache/*.so/*": "asked for by compilers, by no program",
    "linker/cache/*/path": "where it leads in the end is judged",
    "linker/cache/*/realpath: other": "a file of the toolkit all the same",
    # The environment.
    "environment/*/LD_LIBRARY_PATH: other": "a directory without CUDA's libraries disturbs nobody",
    "environment/*/LD_PRELOAD: other": "a library that is none of CUDA's disturbs nobody",
    "environment/*/CUDA_HOME: other": "programs are compiled with it, none is run",
    "environment/others/*/where": "reported",
    "environment/others/*/variables*: drop": "not each place can set each variable",
    # What TensorFlow says.
    "stacks/stacks/*/name": "reported; the path is what is compared",
    "stacks/stacks/*/python: other": "planned is a release, not its patch",
    "stacks/stacks/*/receipt": "the receipts are judged themselves",
    "stacks/stacks/*/realpath": "an environment may stand behind a link",
    "stacks/stacks/*/bound_to": "what is mapped in the end is judged",
    "stacks/stacks/*/binding/ordinary: drop": "an earlier release's probe did not try it; each file's permissions are judged",
    "stacks/stacks/*/start/sets: drop": "an earlier release's probe did not report it; what logins set is judged",
    "stacks/stacks/*/start/customized*": "reported where something is set; what is set is judged",
    "stacks/occupied*": "the plan looks there before it installs",
    "*/framework/error: other": "a word on a run that came to its end",
    "*/framework/build/cuda: null empty": "before 2.3 a build does not say it",
    "*/framework/build/cudnn: null empty": "before 2.3 a build does not say it",
    "*/framework/build/compute_capabilities*": "reported",
    "*/framework/loader/ran: other": "what it opened is judged",
    "*/framework/loader/opened/*: other": "a library of another release; the right one is mapped",
    "*/framework/devices*": "a device that is listed proves nothing; products are made on each",
    "*/framework/matmul/*: null other": "time and size: told",
    "*/framework/tower_sum/devices*": "reported; its numbers are judged",
    "*/framework/mapped/*: other": "of its own toolkit all the same",
    "*/framework/seconds*": "reported",
    "*/framework/capabilities*": "the driver's own word stands in for it",
    "*/small/built_with_cuda": "stack.build judges it",
    "*/small/hello/device": "it needs no device; where products are made is judged",
    "*/small/local_devices/*": "reported, but for which there are",
    "*/small/placement/*: other": "another declared GPU; each computes",
    "containers/run/framework/*": "in a container the products are judged; the rest is the stack's",
    "containers/run/stack": "reported",
    "containers/run/error: other": "a word on a run that came to its end",
    "containers/run/*/node": "that each opens, and how many",
    "containers/run/*/code": "it selects the remedy of a GPU that is denied",
    "containers/run/starts/*/by": "reported",
    "containers/run/starts/*/error: other": "a word on a run that came to its end",
    "containers/configuration*": "it selects the remedy of a GPU that is denied",
    "containers/toolkit/candidate*": "the plan offers it",
    "containers/run/unit/unit": "reported",
    "containers/run/unit/name": "reported",
    "containers/run/unit/policy": "without a list nothing is allowed, whatever the policy",
    "containers/run/unit/allow/char-*": "the GPUs' nodes are listed one by one",
    "containers/run/unit/nodes/nvidia0/numbers: other": "the other GPU's, which is listed, too",
    "containers/majors*": "the same: no driver's whole group is listed",
    "containers/running: drop null": "reported: how other people start their containers is theirs",
    "containers/engine/*": "reported; that it runs and knows the runtime is judged",
    "containers/daemon/*": "reported, but for what keeps containers alive",
    "containers/toolkit/version: other": "a package of the same release; none is declared",
    "containers/wrapper: other": "reported",
    "containers/cdi/*": "what a container opens in the end is judged",
}

# By what an item of a list is known, where it says it.
NAMES = ("kind", "soname", "path", "name", "toolkit", "requested", "node", "address", "where")

# How many rows from either end of a longer list are changed.
LONG = 3


def places(value: Any, name: str = "", here: Path = ()) -> Iterator[tuple[str, Path]]:
    """Name and place of each value in a document."""
    if here:
        yield name, here
    if isinstance(value, dict):
        for key, inner in value.items():
            # tests/components/gpu/test_smi_elements.py has each of `elements` in each state.
            yield from places(
                None if key == "elements" else inner, f"{name}/{_short(key)}", (*here, key)
            )
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            # What is true of some rows of a long list is true of the others.
            if LONG <= number < len(value) - LONG:
                continue
            known = (
                [inner[key] for key in NAMES if key in inner]
                if isinstance(inner, dict)
                else [inner]
            )
            yield from places(inner, f"{name}/{_short(str([*known, number][0]))}", (*here, number))


def _short(name: str) -> str:
    return name.rpartition("/")[2] or name.replace("/", "root")


def falsified(value: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of each way to falsify a value."""
    if value is not None:
        yield "null", None
    if isinstance(value, bool):
        yield "other", not value
        yield "type", "yes"
    elif isinstance(value, int | float):
        yield "other", value + 1000003
        yield "type", str(value)
    elif isinstance(value, str):
        yield "empty", ""
        # Another version, another index: the last number of it; else another word.
        yield (
            "other",
            re.sub(r"\d+(?=\D*$)", lambda found: str(int(found[0]) + 1), value)
            if re.search(r"\d", value)
            else f"{value}-other",
        )
        yield "type", 7
    elif value is None:
        yield "type", []
        yield "other", "something"
    else:
        if value:
            yield "empty", type(value)()
        yield "type", "text"


def mutations(sections: Document) -> Iterator[tuple[str, Path, str, Any]]:
    """Name, place, kind and value of every mutation that is tried."""
    for section in SECTIONS:
        data = sections[section]["data"]
        for inner, place in places(data):
            value = data
            for step in place:
                value = value[step]
            name = f"{section}{inner}"
            if isinstance(place[-1], str):
                yield name, (section, "data", *place), "drop", None
            for how, what in falsified(value):
                yield name, (section, "data", *place), how, what


def applied(snapshot: Document, place: Path, how: str, what: Any) -> Document:
    """The document, falsified: a copy along the path, and the same objects beside it."""
    sections: Any = dict(snapshot["sections"])
    inner = sections
    for step in place[:-1]:
        inner[step] = copy(inner[step])
        inner = inner[step]
    if how == "drop":
        del inner[place[-1]]
    else:
        inner[place[-1]] = what
    return {**snapshot, "sections": sections}


def reason(name: str, how: str) -> str | None:
    """The row of `HARMLESS` that a mutation falls under."""
    for row in HARMLESS:
        pattern, _, kinds = row.partition(": ")
        if (not kinds or how in kinds.split()) and re.fullmatch(
            re.escape(pattern).replace(r"\*", ".*"), name
        ):
            return row
    return None


def noticed(variant: str, known: Collection[str]) -> dict[str, bool]:
    """The effect of each mutation (True: the host is no longer healthy), without `known` ones."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    VARIANTS[variant](plan, snapshot)
    text = json.dumps(snapshot)
    assert judge.judge(plan, snapshot)["verdict"] == "PASS"
    found = {}
    for name, place, how, what in mutations(snapshot["sections"]):
        mutation = f"{name}: {how}"
        if mutation in known:
            continue
        result = judge.judge(plan, applied(snapshot, place, how, what))
        found[mutation] = Verdict(result["verdict"]) is not Verdict.PASS
    # The mutations share what they leave alone: no check may have changed it.
    assert json.dumps(snapshot) == text
    return found


@pytest.fixture(scope="module")
def unnoticed() -> dict[str, str | None]:
    """The row of `HARMLESS` of each mutation that can be noticed and that no plan notices."""
    tried: set[str] = set()
    seen: set[str] = set()
    for variant in VARIANTS:
        found = noticed(variant, seen)
        tried |= set(found)
        seen |= {name for name, changed in found.items() if changed}
    assert len(seen) > 1000
    return {name: reason(*name.rsplit(": ", 1)) for name in sorted(tried - seen)}


def test_whatever_is_falsified_is_noticed_or_harmless_for_a_reason(
    unnoticed: dict[str, str | None],
) -> None:
    assert [name for name, row in unnoticed.items() if row is None] == []


def test_each_reason_is_needed(unnoticed: dict[str, str | None]) -> None:
    assert set(HARMLESS) - set(unnoticed.values()) == set()
