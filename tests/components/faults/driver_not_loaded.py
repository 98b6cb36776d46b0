"""NVIDIA's kernel module is not loaded, and the kernel or the configuration says why.

Beside it: other modules around GPUs and adapters that the kernel refuses.
"""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import GT_710, PROVISION, display_card, event

fault, harmless = faults_on(with_cards)


def not_loaded(snapshot: Document) -> None:
    data(snapshot, "driver").update(loaded=None, modules=[])


def refused(snapshot: Document, module: str, text: str, *, loaded: bool = False) -> None:
    event(snapshot, "module-refused", process=module, text=f"{module}: {text}", loaded=loaded)


@fault(
    "driver.loaded",
    cause="the kernel refuses it, as it lacks a symbol of the module ipmi_msghandler (nvidia:"
    " Unknown symbol ipmi_create_user (err -2))",
    remedy=f"{PROVISION} (on the host: modprobe ipmi_msghandler and modprobe nvidia",
)
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
@fault("kernel.log", cause="refused the module nvidia", remedy="modprobe ipmi_msghandler")
def a_module_that_the_driver_needs_is_not_loaded(plan: Document, snapshot: Document) -> None:
    not_loaded(snapshot)
    refused(snapshot, "nvidia", "Unknown symbol ipmi_create_user (err -2)")


@fault(
    "driver.loaded",
    cause="as it was built for another build of the module drm (nvidia: disagrees about",
    remedy="build and install nvidia again for the kernel that runs",
)
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
@fault("kernel.log", cause="refused the module nvidia", remedy="dkms autoinstall")
def a_driver_that_was_built_beside_another_drm(plan: Document, snapshot: Document) -> None:
    not_loaded(snapshot)
    refused(snapshot, "nvidia", "disagrees about version of symbol drm_open")


@fault(
    "driver.loaded",
    cause="it ignores a card whose last branch is 470 (NVRM: The NVIDIA GeForce GT 710 GPU",
    remedy="install driver branch 470 in its place",
)
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
@fault("kernel.log", cause="branch 470 is the last", remedy="install driver branch 470")
def a_card_that_the_kernel_calls_a_legacy_one(plan: Document, snapshot: Document) -> None:
    not_loaded(snapshot)
    event(
        snapshot,
        "needs-older-branch",
        code=470,
        text="NVRM: The NVIDIA GeForce GT 710 GPU installed in this system is  supported through"
        " the NVIDIA 470.xx Legacy drivers. Please",
    )


@fault(
    "driver.loaded",
    cause="/etc/modprobe.d/off.conf keeps the module nvidia from being loaded",
    remedy="take out of /etc/modprobe.d/off.conf",
)
@fault("driver.modules", cause="/etc/modprobe.d/off.conf keeps the module", remedy="take out of")
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
def a_line_of_modprobe_that_keeps_the_driver_out(plan: Document, snapshot: Document) -> None:
    not_loaded(snapshot)
    data(snapshot, "driver")["blocked"] = [{"module": "nvidia", "by": "/etc/modprobe.d/off.conf"}]


@fault(
    "driver.loaded",
    cause=": the open kernel modules did not find the GSP of 0000:00:00.0",
    remedy="update the card's firmware (VBIOS)",
)
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
@fault("kernel.log", cause="did not find the GSP of 0000:00:00.0, which has", remedy="VBIOS")
def an_early_firmware_of_a_card_that_has_a_gsp(plan: Document, snapshot: Document) -> None:
    not_loaded(snapshot)
    event(
        snapshot,
        "needs-proprietary-module",
        address="0000:00:00.0",
        text="NVRM: The NVIDIA GPU 0000:00:00.0 (PCI ID: 10de:2331) installed in this system is"
        " not supported by open nvidia.ko because it does not include the required GPU",
    )


@fault(
    "driver.loaded",
    cause=": 0000:00:00.0 is not supported by the driver",
    remedy="install the guest driver (GRID)",
)
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
@fault("kernel.log", cause="0000:00:00.0 is not supported", remedy="if it is a vGPU")
def a_vgpu_and_the_public_driver(plan: Document, snapshot: Document) -> None:
    not_loaded(snapshot)
    data(snapshot, "gpus")["hypervisor"] = True
    event(snapshot, "unsupported-card", address="0000:00:00.0")


@fault(
    "driver.loaded",
    cause="the kernel refuses it, since the key of its signature is not enrolled (nvidia: Loading",
    remedy="mokutil --import",
)
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
@fault("kernel.log", cause="the key of its signature", remedy="mokutil --import")
def a_key_that_the_kernel_rejects(plan: Document, snapshot: Document) -> None:
    not_loaded(snapshot)
    for card in data(snapshot, "gpus")["pci"]:
        card["driver"] = None
    event(
        snapshot,
        "key-rejected",
        text="nvidia: Loading of module with unavailable key is rejected",
    )


@fault(
    "kernel.log",
    cause="The open kernel modules of this branch are ready for data center GPUs only",
    remedy="NVreg_OpenRmEnableUnsupportedGpus=1",
)
def open_modules_that_refuse_other_cards(plan: Document, snapshot: Document) -> None:
    event(snapshot, "open-module-unready", count=2)
    event(snapshot, "init-failed", address="0000:00:00.0", count=2)


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="refused the module nv_peer_mem: it was built for another build of the module ib_core",
    remedy="build and install nv_peer_mem again for the kernel that runs",
)
def a_module_that_was_built_for_other_adapters(plan: Document, snapshot: Document) -> None:
    refused(snapshot, "nv_peer_mem", "disagrees about version of symbol ib_register_peer_memory")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="the kernel's own RDMA core has no interface for peer memory",
    remedy="keep nv_peer_mem from being loaded where programs use DMA-BUF",
)
def an_rdma_core_without_peer_memory(plan: Document, snapshot: Document) -> None:
    text = "Unknown symbol ib_register_peer_memory_client (err 0)"
    refused(snapshot, "nv_peer_mem", text)


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="nothing that is loaded has a symbol that it needs",
    remedy="build and install lustre again, or a newer release of it",
)
def a_module_for_which_the_kernel_is_too_new(plan: Document, snapshot: Document) -> None:
    refused(snapshot, "lustre", "Unknown symbol kallsyms_lookup_name (err -2)")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="refused the module gdrdrv: it uses symbols that the kernel keeps",
    remedy="use the open kernel modules of NVIDIA's driver",
)
def a_module_beside_proprietary_ones(plan: Document, snapshot: Document) -> None:
    refused(snapshot, "gdrdrv", "module using GPL-only symbols uses symbols nvidia_p2p_get_pages")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="refused the module mlx5_ib: it was built for another kernel",
    remedy="modprobe mlx5_ib",
)
def a_module_of_another_kernel(plan: Document, snapshot: Document) -> None:
    refused(snapshot, "mlx5_ib", "version magic '6.1.0-26 SMP' should be '6.1.0-27 SMP'")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="efa_nv_peermem was built without the symbol versions of NVIDIA's driver",
    remedy="build and install that module again",
)
def a_module_that_nothing_compares_with_the_driver(plan: Document, snapshot: Document) -> None:
    event(snapshot, "module-unchecked", process="efa_nv_peermem", loaded=True)


@fault("driver.loaded", cause="the libraries are 535.261.03)", remedy="it reloads the driver")
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
def an_old_display_card_is_not_why_the_driver_is_not_loaded(
    plan: Document, snapshot: Document
) -> None:
    not_loaded(snapshot)
    display_card(snapshot, GT_710)
    event(
        snapshot,
        "needs-older-branch",
        code=470,
        text="NVRM: The NVIDIA GeForce GT 710 GPU installed in this system is  supported through"
        " the NVIDIA 470.xx Legacy drivers. Please",
    )


@harmless
def modules_that_were_refused_and_are_loaded_now(plan: Document, snapshot: Document) -> None:
    refused(snapshot, "nvidia", "Unknown symbol ipmi_create_user (err -2)", loaded=True)
    refused(snapshot, "nvidia-uvm", "disagrees about version of symbol x", loaded=True)
    refused(snapshot, "mlx5_ib", "disagrees about version of symbol x", loaded=True)
