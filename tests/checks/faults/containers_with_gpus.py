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


@fault("containers.gpus", cause="not open /dev/nvidia1", remedy="/dev/char")
def forbidden_from_the_start(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["gpus"][1]["error"] = "Operation not permitted"


@fault("containers.reload", cause="After a daemon-reload a container cannot", remedy="/dev/char")
def lost_by_the_reload(plan: Document, snapshot: Document) -> None:
    for card in data(snapshot, "containers")["run"]["reload"]["gpus"]:
        card["error"] = "Operation not permitted"


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
