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


@fault("containers.gpus", cause="has 1 GPUs, declared are 2", remedy="gpu.count")
def one_gpu_in_the_container(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["gpus"].pop()


@fault("containers.gpus", cause="not open /dev/nvidia1", remedy=PROVISION)
def forbidden_from_the_start(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["gpus"][1]["error"] = "Operation not permitted"


@fault("containers.cdi", cause="/run/cdi/nvidia.yaml describes no GPU", remedy=PROVISION)
def no_device_described(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["cdi"][0]["devices"] = []


@fault("containers.reload", cause="A container loses /dev/nvidia0, /dev/nvidia1, /dev/nvidiactl",
       remedy=PROVISION)
def systemd_knows_no_device_of_the_container(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["unit"]["allow"] = ["char-pts rwm", "char-* m"]


@fault("containers.reload", cause="systemd has no unit for it", remedy="list-units",
       verdict="INCONCLUSIVE")
def no_unit_to_read(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["unit"] = None


@fault("containers.reload", cause="After a daemon-reload a container cannot", remedy=PROVISION)
def lost_by_the_reload_of_an_earlier_release(plan: Document, snapshot: Document) -> None:
    run = data(snapshot, "containers")["run"]
    del run["unit"]
    run["reload"] = {"error": None, "gpus": [
        {"node": card["node"], "error": "Operation not permitted"} for card in run["gpus"]]}


@harmless
def containers_that_systemd_does_not_manage(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["engine"]["cgroup_driver"] = "cgroupfs"
    data(snapshot, "containers")["run"]["unit"] = None


@harmless
def somebody_started_a_container_by_gpus_alone(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["running"] = [
        {"unit": "docker-22bb.scope", "name": "train", "policy": "strict",
         "allow": ["char-* m"], "nodes": [{"node": "/dev/nvidia0", "numbers": "195:0"}]}]


@fault("containers.matmul", cause="computed on /device:CPU:0", remedy="stack.libraries")
def computed_on_the_cpu(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"]["matmul"][1]["device"] = "/device:CPU:0"


@fault("containers.matmul", cause="computed on 1 GPUs", remedy="containers.gpus")
def computed_on_one(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"]["matmul"].pop()


@fault("containers.matmul", cause="does not run in a container", remedy="stack.matmul")
def does_not_import(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"].update(
        state="failed", error="libcuda.so.1: cannot open")
