"""Faults of gpu_network: driver, modules at boot, PCI settings, and the unit that applies them."""

from __future__ import annotations

from typing import Any

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import PROVISION
from tests.support.rdma_host import planned_setup, set_up

DOCAS = "updates/dkms/mlx5_core.ko.zst"


def with_setup(plan: Document, snapshot: Document) -> None:
    """Two adapters as gpu_network declares them."""
    with_cards(plan, snapshot)
    adapters = [row["address"] for row in data(snapshot, "network")["devices"]]
    plan["network"] = planned_setup(adapters)
    data(snapshot, "network")["setup"] = set_up([*adapters])
    data(snapshot, "packages")["network"] = dict.fromkeys(plan["network"]["packages"], "50.0-1")


fault, harmless = faults_on(with_setup)


def setup(snapshot: Document) -> Document:
    """The probe's reading of the role's work."""
    found: Document = data(snapshot, "network")["setup"]
    return found


def doca(plan: Document, snapshot: Document, **changes: Any) -> None:
    """Declare DOCA, which is installed, built and loaded, from a repository."""
    plan["network"].update(driver="doca", packages=["doca-ofed"], repository={"uri": "https://x"})
    data(snapshot, "packages")["network"] = {"doca-ofed": "3.2.1"}
    disk = {**setup(snapshot)["on_disk"], "mlx5_core": DOCAS}
    files = [*setup(snapshot)["files"], "/etc/apt/sources.list.d/gpufleet-doca.sources"]
    setup(snapshot).update(
        {"on_disk": disk, "files": files, "loaded_driver": "D", "installed_driver": "D", **changes}
    )


@harmless
def doca_that_is_built_and_loaded(plan: Document, snapshot: Document) -> None:
    doca(plan, snapshot)


@harmless
def nvidia_peermem_that_is_declared_and_loaded(plan: Document, snapshot: Document) -> None:
    plan["network"]["modules"].append("nvidia_peermem")
    setup(snapshot)["modules"].append("nvidia_peermem")
    data(snapshot, "network")["modules"]["nvidia_peermem"] = True


@harmless
def an_adapter_that_is_broken_and_still_in_the_unit(plan: Document, snapshot: Document) -> None:
    setup(snapshot)["settings"]["adapters"].append("0000:99:00.0")


@harmless
def a_module_that_the_kernel_has_built_in(plan: Document, snapshot: Document) -> None:
    setup(snapshot)["on_disk"]["ib_uverbs"] = "kernel/drivers/infiniband/core/ib_uverbs.ko"


@fault("network.setup", cause="inbox network driver are not installed: rdma-core", remedy=PROVISION)
def packages_that_somebody_removed(plan: Document, snapshot: Document) -> None:
    del data(snapshot, "packages")["network"]["rdma-core"]


@fault("network.setup", cause="DOCA's modules are not built for it", remedy="dkms status shows why")
def doca_that_was_not_built_for_a_new_kernel(plan: Document, snapshot: Document) -> None:
    own = "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko.zst"
    doca(plan, snapshot, on_disk={**setup(snapshot)["on_disk"], "mlx5_core": own})


@fault("network.setup", cause="is not the one of DOCA that is installed", remedy="reboot ")
def doca_that_is_not_loaded_yet(plan: Document, snapshot: Document) -> None:
    doca(plan, snapshot, loaded_driver="KERNELS")


@fault("network.setup", cause="has no module ib_umad", remedy="linux-modules-extra")
def a_kernel_without_a_module(plan: Document, snapshot: Document) -> None:
    del setup(snapshot)["on_disk"]["ib_umad"]


@fault("network.setup", cause="Kernel modules are not loaded: nvidia_peermem", remedy=PROVISION)
def nvidia_peermem_that_is_declared_and_not_loaded(plan: Document, snapshot: Document) -> None:
    nvidia_peermem_that_is_declared_and_loaded(plan, snapshot)
    data(snapshot, "network")["modules"]["nvidia_peermem"] = False


@fault("network.setup", cause="gpufleet-network.conf does not load mlx5_ib", remedy=PROVISION)
def modules_in_another_order(plan: Document, snapshot: Document) -> None:
    setup(snapshot)["modules"].reverse()


@fault("network.setup", cause="which applies the PCI settings, is missing", remedy=PROVISION)
def a_unit_that_is_missing(plan: Document, snapshot: Document) -> None:
    setup(snapshot).update(unit=None, enabled=None, active=None, settings=None)


@fault("network.setup", cause="does not start at boot", remedy=PROVISION)
def a_unit_that_is_disabled(plan: Document, snapshot: Document) -> None:
    setup(snapshot)["enabled"] = False


@fault("network.setup", cause="did not apply the PCI settings", remedy="journalctl -u gpufleet-net")
def a_unit_that_failed(plan: Document, snapshot: Document) -> None:
    setup(snapshot)["active"] = False


@fault("network.setup", cause="applies other PCI settings than declared", remedy=PROVISION)
def a_unit_of_an_earlier_declaration(plan: Document, snapshot: Document) -> None:
    setup(snapshot)["settings"]["max_read_request"] = 512


@fault("network.setup", cause="applies other PCI settings than declared", remedy=PROVISION)
def a_unit_that_lacks_an_adapter(plan: Document, snapshot: Document) -> None:
    setup(snapshot)["settings"]["adapters"].pop()


@fault("network.setup", cause="applies other PCI settings than declared", remedy=PROVISION)
def a_unit_that_also_sets_an_adapter_of_storage(plan: Document, snapshot: Document) -> None:
    adapters = data(snapshot, "network")["adapters"]
    adapters.append({**adapters[0], "address": "0000:77:00.0", "driver": "vfio-pci"})
    setup(snapshot)["settings"]["adapters"].append("0000:77:00.0")


@fault("network.setup", cause="MaxReadReq is not 4096 bytes: mlx5_1 has 512", remedy=PROVISION)
@fault("network.settings", cause="MaxReadReq differs", remedy="gpu_network: {max_read_request_b")
def a_device_that_was_reset(plan: Document, snapshot: Document) -> None:
    data(snapshot, "network")["devices"][1]["max_read_request"] = 512


@fault(
    "network.setup", cause="(ACS) of PCI ports is on, declared is off: 0000:01", remedy=PROVISION
)
@fault("network.gpudirect", cause="Access control (ACS) of PCI ports", remedy="gpu_network")
def access_control_that_is_on_again(plan: Document, snapshot: Document) -> None:
    data(snapshot, "network")["access_control"]["0000:01:03.0"] = 0x1D


@fault("network.setup", cause="Kernel modules are not loaded: ib_umad", remedy=PROVISION)
@fault("network.settings", cause="no device file /dev/infiniband/umad*", remedy="modprobe ib_umad")
def a_module_that_is_not_loaded(plan: Document, snapshot: Document) -> None:
    network = data(snapshot, "network")
    network["modules"]["ib_umad"] = False
    network["nodes"] = [row for row in network["nodes"] if "umad" not in row["path"]]


@fault("network.setup", cause="no port of an adapter has role compute", remedy="gpu_expect.network")
def settings_without_an_adapter(plan: Document, snapshot: Document) -> None:
    plan["network"].update(adapters=[])
    setup(snapshot)["settings"]["adapters"] = []


@fault("network.setup", cause="gpufleet-doca.sources is no longer declared", remedy=PROVISION)
def a_repository_that_is_no_longer_declared(plan: Document, snapshot: Document) -> None:
    setup(snapshot)["files"].append("/etc/apt/sources.list.d/gpufleet-doca.sources")


@fault(
    "network.setup",
    cause="The PCI settings of 0000:00:01.0 cannot be read",
    remedy="as root",
    verdict="INCONCLUSIVE",
)
def a_port_that_cannot_be_read(plan: Document, snapshot: Document) -> None:
    data(snapshot, "network")["access_control"]["0000:00:01.0"] = None


@fault(
    "network.setup",
    cause="was not read",
    remedy="with this release",
    verdict="INCONCLUSIVE",
)
def a_snapshot_of_an_earlier_release(plan: Document, snapshot: Document) -> None:
    del data(snapshot, "network")["setup"]
