"""Containers on a host with two GPUs."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data
from tests.support.host_parts import PROVISION, with_gpus

fault, harmless = faults_on(with_gpus)


@fault("containers.cdi", cause="is for driver 525.147.05, and 535", remedy=PROVISION)
def older_driver_described(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["cdi"][0]["driver_version"] = "525.147.05"


@fault("containers.cdi", cause="no CDI specification", remedy=PROVISION)
def nothing_described(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["cdi"] = []


@fault("containers.cdi", cause="names 1 MIG instance of GPU 0, which has 0", remedy=PROVISION)
def instances_described_that_are_gone(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["cdi"][0]["devices"] = ["0:0", "1", "all"]


@fault("containers.cdi", cause="names /dev/nvidia-caps/nvidia-cap12, which", remedy=PROVISION)
def node_described_of_an_instance_that_is_gone(plan: Document, snapshot: Document) -> None:
    there = data(snapshot, "containers")
    there["cdi"][0]["mig_nodes"] = [12]
    there["mig_capabilities"] = {"mig/config": 1, "mig/monitor": 2}


@fault("containers.gpus", cause="has 1 GPU, declared are 2", remedy="gpu.count")
def one_gpu_in_the_container(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["gpus"].pop()


def deny(snapshot: Document, *ways: str, code: str = "EPERM") -> None:
    """Let containers that were started in these ways open no GPU."""
    for start in data(snapshot, "containers")["run"]["starts"]:
        for card in start["gpus"] if start["by"] in ways else ():
            card.update(error="Operation not permitted", code=code)


@fault("containers.gpus", cause="not open /dev/nvidia1", remedy=PROVISION)
def forbidden_from_the_start(plan: Document, snapshot: Document) -> None:
    run = data(snapshot, "containers")["run"]
    for gpus in (run["gpus"], *(start["gpus"] for start in run["starts"])):
        gpus[1].update(error="Operation not permitted", code="EPERM")


@fault(
    "containers.gpus",
    cause="Started by docker run --gpus all or docker run --runtime=nvidia, a container cannot open",
    remedy="set no-cgroups = false below [nvidia-container-cli]",
)
def no_cgroups_as_guides_to_rootless_engines_set_it(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["configuration"]["no_cgroups"] = True
    deny(snapshot, "docker run --gpus all", "docker run --runtime=nvidia")


@fault(
    "containers.gpus",
    cause="Started by docker run --gpus all or docker run --runtime=nvidia, a container cannot open",
    remedy="rootless engines need no such setting where they start containers with --device",
)
def no_cgroups_for_a_rootless_engine_that_is_there(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["rootless"] = [{"engine": "docker", "account": "ann"}]
    no_cgroups_as_guides_to_rootless_engines_set_it(plan, snapshot)


@fault(
    "containers.gpus",
    cause="Started by docker run --gpus all, a container cannot open /dev/nvidia0",
    remedy="set NVreg_DeviceFileMode=0666",
)
def mapped_accounts_are_in_no_group_of_the_device_files(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["engine"]["security"] = ["seccomp", "userns"]
    deny(snapshot, "docker run --gpus all", code="EACCES")


@fault(
    "containers.gpus",
    cause="Started by docker run --gpus all, a container cannot open /dev/nvidia0",
    remedy=PROVISION,
)
def denied_without_a_setting_that_explains_it(plan: Document, snapshot: Document) -> None:
    deny(snapshot, "docker run --gpus all")


@fault(
    "containers.gpus",
    cause="Started by docker run --gpus all, a container cannot open /dev/nvidia0",
    remedy="setsebool -P container_use_devices on",
)
def selinux_denies_labelled_containers(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["engine"]["security"] = ["seccomp", "selinux"]
    deny(snapshot, "docker run --gpus all", code="EACCES")


@fault(
    "containers.gpus",
    cause="A container started by docker run --gpus all could not be run",
    remedy='set mode = "auto" below [nvidia-container-runtime]: with cdi docker run --gpus',
)
def mode_cdi_starts_no_container_by_gpus(plan: Document, snapshot: Document) -> None:
    there = data(snapshot, "containers")
    there["configuration"]["mode"] = "cdi"
    there["run"]["starts"][1].update(state="failed", error="not supported", gpus=[])


@fault(
    "containers.gpus",
    cause="started by docker run --runtime=nvidia hung",
    remedy="journalctl -u docker",
    verdict="HUNG",
)
def one_way_hangs(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["starts"][2].update(
        state="hung", error="no answer within 20 s", gpus=[]
    )


@fault(
    "containers.gpus",
    cause="The engine confines containers (userns)",
    remedy="start an image of yours by hand",
    verdict="INCONCLUSIVE",
)
def mapped_accounts_cannot_run_the_trial(plan: Document, snapshot: Document) -> None:
    there = data(snapshot, "containers")
    there["engine"]["security"] = ["seccomp", "userns"]
    there["run"]["starts"][0].update(state="failed", error="permission denied", gpus=[])


@fault(
    "containers.gpus",
    cause="started by docker run --gpus all could not be run: cannot execute. The engine confines"
    " containers (selinux)",
    remedy="start an image of yours by hand",
    verdict="INCONCLUSIVE",
)
def labelled_containers_cannot_run_the_trial(plan: Document, snapshot: Document) -> None:
    there = data(snapshot, "containers")
    there["engine"]["security"] = ["seccomp", "selinux"]
    there["run"]["starts"][1].update(state="failed", error="cannot execute", gpus=[])


@fault(
    "containers.gpus",
    cause="No container was started by --gpus or a CDI device alone",
    remedy="./gpufleet verify",
    verdict="INCONCLUSIVE",
)
def nobody_tried_the_other_ways(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["starts"] = []


@harmless
def a_reload_takes_what_computing_does_not_need(plan: Document, snapshot: Document) -> None:
    unit = data(snapshot, "containers")["run"]["unit"]
    unit["nodes"].append({"node": "/dev/nvidia-modeset", "numbers": "195:254"})


@fault("containers.cdi", cause="/run/cdi/nvidia.yaml describes no GPU", remedy=PROVISION)
def no_device_described(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["cdi"][0]["devices"] = []


@fault(
    "containers.reload",
    cause="A container loses /dev/nvidia0, /dev/nvidia1, /dev/nvidiactl",
    remedy=PROVISION,
)
def systemd_knows_no_device_of_the_container(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["unit"]["allow"] = ["char-pts rwm", "char-* m"]


@fault(
    "containers.reload",
    cause="systemd has no unit for it",
    remedy="list-units",
    verdict="INCONCLUSIVE",
)
def no_unit_to_read(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["unit"] = None


@fault("containers.reload", cause="After a daemon-reload a container cannot", remedy=PROVISION)
def lost_by_the_reload_of_an_earlier_release(plan: Document, snapshot: Document) -> None:
    run = data(snapshot, "containers")["run"]
    del run["unit"]
    run["reload"] = {
        "error": None,
        "gpus": [
            {"node": card["node"], "error": "Operation not permitted"} for card in run["gpus"]
        ],
    }


@harmless
def containers_that_systemd_does_not_manage(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["engine"]["cgroup_driver"] = "cgroupfs"
    data(snapshot, "containers")["run"]["unit"] = None


@harmless
def somebody_started_a_container_by_gpus_alone(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["running"] = [
        {
            "unit": "docker-22bb.scope",
            "name": "train",
            "policy": "strict",
            "allow": ["char-* m"],
            "nodes": [{"node": "/dev/nvidia0", "numbers": "195:0"}],
        }
    ]


@fault("containers.matmul", cause="computed on /device:CPU:0", remedy="stack.libraries")
def computed_on_the_cpu(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"]["matmul"][1]["device"] = "/device:CPU:0"


@fault("containers.matmul", cause="computed on 1 GPU", remedy="containers.gpus")
def computed_on_one(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"]["matmul"].pop()


@fault("containers.matmul", cause="does not run in a container", remedy="stack.matmul")
def does_not_import(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"].update(
        state="failed", error="libcuda.so.1: cannot open"
    )
