"""GPUDirect: its modules, access control and IOMMU between GPUs and adapters."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.rdma_host import derived

fault, harmless = faults_on(with_cards)


@fault("network.gpudirect", cause="is of driver 535.54.03, loaded is 535.261.03", remedy="reboot")
def peermem_of_another_driver(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    data(snapshot, "network").update(peermem="535.54.03")


@harmless
def peermem_of_the_driver(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    data(snapshot, "network").update(peermem=data(snapshot, "driver")["loaded"])


@fault(
    "network.gpudirect",
    cause="0000:03:02.0 (request redirect, completion redirect, upstream forwarding)",
    remedy="setpci -s 0000:03:02.0 ECAP_ACS+6.w=0000",
)
def access_control_on(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    data(snapshot, "network")["access_control"]["0000:03:02.0"] = 0x001D


@harmless
def access_control_that_redirects_nothing_or_is_above_the_switch(
    plan: Document, snapshot: Document
) -> None:
    derived(plan, snapshot)
    data(snapshot, "network")["access_control"].update({"0000:03:02.0": 1, "0000:03:01.0": 0x1D})


@harmless
def access_control_of_a_virtual_machine(plan: Document, snapshot: Document) -> None:
    for row in derived(plan, snapshot):
        row["iommu"] = "DMA"
    data(snapshot, "network")["access_control"]["0000:03:02.0"] = 0x001D
    data(snapshot, "gpus")["hypervisor"] = True


@fault(
    "network.gpudirect",
    verdict="NOT-DECLARED",
    cause="whether this is a virtual machine is unknown",
    remedy="lspci",
)
def access_control_of_nobody_knows_what(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    data(snapshot, "network")["access_control"]["0000:03:02.0"] = 0x001D
    data(snapshot, "gpus")["hypervisor"] = None


@fault(
    "network.gpudirect",
    verdict="INCONCLUSIVE",
    cause="ACS) of 0000:03:02.0 cannot be read",
    remedy="as root",
)
def access_control_not_readable(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    data(snapshot, "network")["access_control"]["0000:03:02.0"] = None


@fault("network.gpudirect", cause="translates addresses of mlx5_3 (DMA-FQ)", remedy="iommu=pt")
def iommu_that_translates(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["iommu"] = "DMA-FQ"


@fault("network.gpudirect", verdict="INCONCLUSIVE", cause="treats mlx5_3 cannot", remedy="cmdline")
def iommu_not_readable(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["iommu"] = None


@fault(
    "network.gpudirect",
    cause="The module gdrdrv is not loaded, gpu_expect.modules declares it",
    remedy="modprobe gdrdrv",
)
def declared_module_of_gdrcopy_not_loaded(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    plan["expect"]["modules"] = ["gdrdrv"]


@fault("network.gpudirect", cause="loaded, and /dev/gdrdrv is not there", remedy="restart gdrcopy")
def module_of_gdrcopy_without_its_device_file(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    plan["expect"]["modules"] = ["gdrdrv"]
    data(snapshot, "network")["modules"]["gdrdrv"] = True


@fault("network.gpudirect", cause="module nvidia_peermem is not loaded", remedy="driver's modules")
def declared_module_of_the_driver_not_loaded(plan: Document, snapshot: Document) -> None:
    plan["expect"]["modules"] = ["nvidia_peermem"]


@fault("network.settings", verdict="INCONCLUSIVE", cause="was not read", remedy="ls /sys/module")
@fault(
    "network.gpudirect",
    verdict="INCONCLUSIVE",
    cause="Whether gdrdrv is loaded was not read",
    remedy="ls /sys/module",
)
def declared_module_not_observed(plan: Document, snapshot: Document) -> None:
    plan["expect"]["modules"] = ["gdrdrv"]
    data(snapshot, "network")["modules"] = None


@harmless
def declared_modules_are_loaded(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    plan["expect"]["modules"] = ["nvidia_peermem", "gdrdrv"]
    found = data(snapshot, "network")
    found["modules"].update(nvidia_peermem=True, gdrdrv=True)
    found["peermem"] = data(snapshot, "driver")["loaded"]
    found["nodes"].append({"path": "/dev/gdrdrv", "device": None, "port": None, "exists": True})
