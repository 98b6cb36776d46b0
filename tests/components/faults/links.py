"""Two GPUs: their PCIe links and NVLinks."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, nvlinks, peers, with_cards
from tests.support.host_parts import LINK, WORKING, as_listed, card, compute_run, printed

fault, harmless = faults_on(with_cards)
FIRST = "GPU 0 (0000:00:00.0)"
NARROW: dict[str, str | None] = {LINK + "link_widths/current_link_width": "8x"}
SLOW: dict[str, str | None] = {LINK + "pcie_gen/current_link_gen": "1"}


def under_load(snapshot: Document, at: int = 0, **link: int) -> None:
    """Set the values that NVML reports of a GPU's link while it computes."""
    compute_run(snapshot)["devices"][at]["link"] = {
        "generation": 5,
        "generation_max": 5,
        "width": 16,
        "width_max": 16,
        **link,
    }


def only_idle(snapshot: Document) -> None:
    """No link was read under load."""
    for device in compute_run(snapshot)["devices"]:
        device["link"] = None


def copies(snapshot: Document, to: float, back: float) -> None:
    """How fast copies between the host and the first GPU are."""
    compute_run(snapshot)["devices"][0]["copies"] = {
        "to_device_gib_s": to,
        "from_device_gib_s": back,
    }


def in_a_cloud(snapshot: Document) -> None:
    """The GPUs are passed through to a virtual machine: no port of the machine is visible."""
    data(snapshot, "gpus")["hypervisor"] = True
    for device in data(snapshot, "gpus")["pci"]:
        device["port"] = None


# -- PCIe -----------------------------------------------------------------------------------------


@fault("gpu.pcie", cause=f"{FIRST} uses 8 of 16 PCIe lanes", remedy="reseat the GPU")
def half_of_the_lanes_of_the_slot_under_load(plan: Document, snapshot: Document) -> None:
    printed(snapshot, NARROW, {})
    under_load(snapshot, width=8)


@fault(
    "gpu.pcie",
    verdict="INCONCLUSIVE",
    cause="uses 8 of 16 PCIe lanes while it is idle: its link under load was not read",
    remedy="loads the GPU",
)
def half_of_the_lanes_of_an_idle_gpu(plan: Document, snapshot: Document) -> None:
    only_idle(snapshot)
    printed(snapshot, NARROW, {})


@fault("gpu.pcie", cause="uses 8 of 16 PCIe lanes", remedy="stop the instance and start it on")
def half_of_the_lanes_of_a_board_in_a_cloud(plan: Document, snapshot: Document) -> None:
    in_a_cloud(snapshot)
    under_load(snapshot, width=8)


@fault("gpu.pcie", cause="uses 4 of 8 PCIe lanes", remedy="stop the instance and start it on")
def a_cloud_instance_with_fewer_lanes_than_declared(plan: Document, snapshot: Document) -> None:
    in_a_cloud(snapshot)
    plan["expect"]["pcie"] = {"generation": None, "width": 8}
    under_load(snapshot, width=4)


@fault("gpu.pcie", cause="generation 1 under load, it can be 5", remedy="riser")
def a_slow_link_under_another_load(plan: Document, snapshot: Document) -> None:
    only_idle(snapshot)
    printed(snapshot, {**WORKING, **SLOW}, {})


@fault("gpu.pcie", cause="generation 1 under load, it can be 5", remedy="reseat the GPU")
def a_link_stuck_at_generation_1_under_load(plan: Document, snapshot: Document) -> None:
    under_load(snapshot, generation=1)


@fault("gpu.pcie", cause="generation 3 under load, it can be 4", remedy="generation: 3")
def a_link_under_load_slower_than_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"]["pcie"] = {"generation": 4, "width": None}
    under_load(snapshot, generation=3)
    under_load(snapshot, 1)


@fault(
    "gpu.pcie",
    verdict="INCONCLUSIVE",
    cause="generation 1 while it is idle, declared is 5",
    remedy="loads the GPU",
)
def a_declared_generation_that_was_not_read_under_load(plan: Document, snapshot: Document) -> None:
    only_idle(snapshot)
    plan["expect"]["pcie"] = {"generation": 5, "width": None}
    printed(snapshot, SLOW, {})


@fault("gpu.pcie", cause="generation 4 at most, declared is 5", remedy="correct gpu_expect.pcie")
def a_slot_slower_than_declared(plan: Document, snapshot: Document) -> None:
    only_idle(snapshot)
    plan["expect"]["pcie"] = {"generation": 5, "width": None}
    printed(snapshot, {LINK + "pcie_gen/max_link_gen": "4"}, {})


@fault(
    "gpu.pcie", verdict="INCONCLUSIVE", cause="does not report its PCIe width", remedy="virtual GPU"
)
def a_virtual_card_with_a_declared_width(plan: Document, snapshot: Document) -> None:
    only_idle(snapshot)
    plan["expect"]["pcie"] = {"generation": None, "width": 16}
    printed(snapshot, {LINK + "link_widths/current_link_width": "N/A"}, {})


@fault(
    "gpu.pcie",
    cause=f"Copies from {FIRST} reach 3.1 GiB/s, the minimum is 14.7 (25% of a link",
    remedy="IOMMU",
)
def copies_far_below_what_the_link_carries(plan: Document, snapshot: Document) -> None:
    under_load(snapshot)
    copies(snapshot, 47.5, 3.1)


@fault(
    "gpu.pcie",
    verdict="INCONCLUSIVE",
    cause="beside processes of others on it: pid 4711 (python3)",
    remedy="when it is unused",
)
def slow_copies_beside_a_job(plan: Document, snapshot: Document) -> None:
    under_load(snapshot)
    copies(snapshot, 47.5, 3.1)
    card(snapshot)["processes"] = [{"pid": 4711, "name": "python3", "memory_mib": 60000}]


@fault(
    "gpu.pcie",
    verdict="INCONCLUSIVE",
    cause=f"{FIRST} has a link of PCIe generation 1 while it is idle, it can be 5: its link under",
    remedy="loads the GPU",
)
def a_slow_link_that_was_not_read_while_copies_ran(plan: Document, snapshot: Document) -> None:
    only_idle(snapshot)
    printed(snapshot, SLOW, {})


@fault(
    "gpu.pcie",
    verdict="INCONCLUSIVE",
    cause=f"{FIRST} uses 4 of 16 PCIe lanes while it is idle: its link under load was not read",
    remedy="loads the GPU",
)
def a_width_that_was_not_read_under_load(plan: Document, snapshot: Document) -> None:
    under_load(snapshot)
    compute_run(snapshot)["devices"][0]["link"]["width"] = None
    printed(snapshot, {LINK + "link_widths/current_link_width": "4x"}, {})


@fault(
    "gpu.pcie",
    cause=f"{FIRST} has a link of PCIe generation 1 under load, it can be 5",
    remedy="reseat the GPU",
)
def a_slow_link_whose_best_was_not_read_under_load(plan: Document, snapshot: Document) -> None:
    under_load(snapshot, generation=1)
    compute_run(snapshot)["devices"][0]["link"]["generation_max"] = None


@harmless
def links_that_are_full_under_load_and_idle_before(plan: Document, snapshot: Document) -> None:
    plan["expect"]["pcie"] = {"generation": 5, "width": 16}
    printed(snapshot, {**NARROW, **SLOW}, SLOW)
    for at in (0, 1):
        under_load(snapshot, at)
    copies(snapshot, 47.5, 48.4)


@harmless
def a_slot_with_fewer_lanes_and_an_older_generation(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["pci"][0]["port"].update(
        max_link_width="8", max_link_speed="16.0 GT/s PCIe"
    )
    printed(snapshot, {**NARROW, LINK + "pcie_gen/current_link_gen": "4"}, {})
    under_load(snapshot, width=8, generation=4)


@harmless
def a_declared_narrow_slot_and_an_idle_link(plan: Document, snapshot: Document) -> None:
    only_idle(snapshot)
    for device in compute_run(snapshot)["devices"]:
        del device["copies"]
    plan["expect"]["pcie"] = {"generation": None, "width": 8}
    printed(snapshot, {**NARROW, **SLOW}, {})


@harmless
def slow_copies_to_the_host_of_a_virtual_machine(plan: Document, snapshot: Document) -> None:
    in_a_cloud(snapshot)
    for at in range(2):
        under_load(snapshot, at, generation=4, generation_max=4)
    copies(snapshot, 24.4, 5.8)


# -- NVLink ---------------------------------------------------------------------------------------


def links_of(
    plan: Document, snapshot: Document, name: str, device: str, *active: int, links: int = 18
) -> None:
    """The GPUs are of this model, with so many of their NVLinks active."""
    plan["expect"].update(model=None, tflops=10)
    for entry in compute_run(snapshot)["bandwidth"]:
        entry["gib_s"] = 4000.0
    for entry in compute_run(snapshot)["peer"]:
        entry["gib_s"] = 200.0
    for section in ("smi", "smi_after"):
        data(snapshot, section)["nvlink"] = [
            nvlinks(at, links, number, peers=peers(at, len(active)))
            for at, number in enumerate(active)
        ]
        for each in data(snapshot, section)["devices"]:
            each["name"] = name
    for at in range(len(active)):
        data(snapshot, "gpus")["pci"][at]["device"] = device
    as_listed(snapshot)


@fault(
    "gpu.nvlink",
    cause=f"{FIRST} has 17 of 18 NVLinks active (inactive: 17)",
    remedy="driver.fabric",
)
def one_nvlink_of_18_is_down(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"][0] = nvlinks(0, active=17)


@fault(
    "gpu.nvlink",
    cause=f"{FIRST} has 9 of 18 NVLinks active (inactive: 9, 10, 11, 12, 13, 14, 15, 16, 17)",
    remedy="drain the host and reboot",
)
def half_of_the_nvlinks_are_down(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"][0] = nvlinks(0, active=9)


@fault("gpu.nvlink", cause="has 0 of 18 NVLinks active", remedy="drain the host and reboot")
def every_nvlink_is_down(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"] = [nvlinks(at, active=0) for at in (0, 1)]


@fault(
    "gpu.nvlink",
    verdict="INCONCLUSIVE",
    cause="does not report the state of NVLinks 3 (NVML status 15)",
    remedy="kernel.log",
)
def an_nvlink_that_is_lost(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"][1]["links"][3].update(active=None, status=15)


@fault(
    *("gpu.nvlink", "gpu.peer-access"),
    verdict="INCONCLUSIVE",
    cause="NVML did not report",
    remedy="see gpu.",
)
def nvlinks_of_a_probe_that_did_not_read_them(plan: Document, snapshot: Document) -> None:
    del data(snapshot, "smi")["nvlink"]


@fault(
    *("gpu.nvlink", "gpu.peer-access"),
    verdict="INCONCLUSIVE",
    cause="NVML did not report",
    remedy="see gpu.",
)
def nvlinks_of_bridges_that_were_not_read(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA A100 80GB PCIe", "0x20b5", 12, 12, links=12)
    data(snapshot, "smi")["nvlink"] = None


@harmless
def nvlinks_of_gpus_without_bridges_that_were_not_read(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA A100 80GB PCIe", "0x20b5", 0, 0, links=12)
    data(snapshot, "smi")["nvlink"] = None
    plan["expect"]["nvlinks"] = 0


@fault(
    "gpu.nvlink",
    verdict="INCONCLUSIVE",
    cause="NVML did not report its NVLinks, and it reported those of other GPUs",
    remedy="gpu.smi",
)
def nvlinks_of_one_gpu_of_a_future_model_that_were_not_read(
    plan: Document, snapshot: Document
) -> None:
    links_of(plan, snapshot, "NVIDIA X9000", "0xffff", 0, 0, links=0)
    del data(snapshot, "smi")["nvlink"][1]


@fault(
    "gpu.peer-access",
    verdict="INCONCLUSIVE",
    cause="did not report what the active NVLinks of GPUs 0 and 1 lead to",
    remedy="nvidia-smi nvlink -R",
)
def nvlinks_to_nobody_knows_what_without_peer_access(plan: Document, snapshot: Document) -> None:
    for row in data(snapshot, "smi")["nvlink"]:
        for link in row["links"]:
            link.update(remote=None, remote_address=None)
        for each in row["peers"]:
            each.update(nvlink=5)


@harmless
def nvlinks_to_nobody_knows_what_with_peer_access(plan: Document, snapshot: Document) -> None:
    for row in data(snapshot, "smi")["nvlink"]:
        for link in row["links"]:
            link.update(remote=None, remote_address=None)


@fault(
    "gpu.nvlink",
    verdict="INCONCLUSIVE",
    cause="reports no NVLink, its model has 18",
    remedy="NVreg_NvLinkDisable",
)
def a_board_without_its_nvlinks(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"][0]["links"] = []


@fault(
    "gpu.nvlink",
    verdict="INCONCLUSIVE",
    cause="reports no NVLink, its model has 18",
    remedy="(NVreg_NvLinkDisable); if 0 are right for this host, declare gpu_expect: {nvlinks: 0}",
)
def a_virtual_machine_that_reports_no_nvlink(plan: Document, snapshot: Document) -> None:
    in_a_cloud(snapshot)
    for row in data(snapshot, "smi")["nvlink"]:
        row["links"] = []


@fault(
    "gpu.nvlink",
    cause="has 0 of 18 NVLinks active",
    remedy="to its provider; if 0 are right for this host, declare gpu_expect: {nvlinks: 0}",
)
def every_nvlink_of_a_virtual_machine_is_down(plan: Document, snapshot: Document) -> None:
    in_a_cloud(snapshot)
    data(snapshot, "smi")["nvlink"] = [nvlinks(at, active=0) for at in (0, 1)]


@harmless
def a_virtual_machine_that_is_declared_without_nvlinks(plan: Document, snapshot: Document) -> None:
    plan["expect"]["nvlinks"] = 0
    every_nvlink_of_a_virtual_machine_is_down(plan, snapshot)


@fault(
    "gpu.nvlink",
    verdict="INCONCLUSIVE",
    cause="has 3 NVLinks active (inactive: 3); a bridge connects 4",
    remedy="bridge",
)
def one_link_of_a_bridge_is_down(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA RTX A6000", "0x2230", 3, 4, links=4)


@fault("gpu.nvlink", cause="has 0 of 18 NVLinks active", remedy="drain the host and reboot")
def every_nvlink_of_an_h20_is_down(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA H20", "0x2329", 0, 0)


@fault("gpu.nvlink", cause="has 17 of 18 NVLinks active", remedy="drain the host and reboot")
def a_board_whose_name_does_not_say_so(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA H100", "0x2330", 17, 18)


@fault(
    "gpu.nvlink",
    verdict="INCONCLUSIVE",
    cause="has 0 of 18 NVLinks active",
    remedy="nvidia-smi topo -m",
)
def nvlinks_of_a_name_without_a_board(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA H100", "0x23e0", 0, 0)


@fault(
    "gpu.nvlink",
    verdict="INCONCLUSIVE",
    cause="does not know its model's NVLinks",
    remedy="declare gpu_expect: {nvlinks: 0}",
)
def nvlinks_of_a_model_that_no_table_has(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA R100", "0x3fff", 0, 0, links=36)


@fault(
    "gpu.nvlink",
    verdict="INCONCLUSIVE",
    cause=f"{FIRST} has 30 of 36 NVLinks active",
    remedy="declare gpu_expect: {nvlinks: 30}",
)
def one_card_of_such_a_model_has_fewer(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA R100", "0x3fff", 30, 36, links=36)


@fault(
    "gpu.nvlink",
    verdict="INCONCLUSIVE",
    cause="has 8 NVLinks active (inactive: 8, 9, 10, 11, 12, 13, 14, 15, 16, 17); all of its",
    remedy="declare gpu_expect: {nvlinks: 8}",
)
def two_of_three_bridges(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA H100 NVL", "0x2321", 8, 8)


@fault(
    "gpu.nvlink",
    verdict="INCONCLUSIVE",
    cause="connect 12, and another GPU here has 12",
    remedy="declare gpu_expect: {nvlinks: 0}",
)
def a_card_without_the_bridge_of_its_siblings(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA H100 NVL", "0x2321", 0, 12)


@fault(
    "gpu.nvlink",
    cause="declared is gpu_expect: {nvlinks: 12}",
    remedy="reseat the NVLink bridges",
)
def a_declared_bridge_is_down(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA H100 NVL", "0x2321", 0, 0)
    plan["expect"]["nvlinks"] = 12


@fault(
    "gpu.nvlink",
    verdict="NOT-DECLARED",
    cause="has no NVLink active; gpu_expect.nvlinks: not set",
    remedy="declare gpu_expect: {nvlinks: 12}",
)
def cards_that_may_have_bridges(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA A100 80GB PCIe", "0x20b5", 0, 0, links=12)


@harmless
def a_pair_with_all_of_its_bridges(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA H100 NVL", "0x2321", 12, 12)


@harmless
def one_card_of_an_unknown_model_with_every_link(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA R100", "0x3fff", 36, 36, links=36)


@fault(
    "gpu.nvlink",
    cause=f"{FIRST} has an NVLink with a rate of wrong bits of 4e-09 after correction",
    remedy="Effective BER",
)
def more_wrong_bits_than_are_corrected(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"][0]["effective_ber"] = 4e-9


@harmless
def wrong_bits_that_are_corrected(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"][0]["effective_ber"] = 1.5e-254
    data(snapshot, "smi")["nvlink"][1]["effective_ber"] = 3e-13


@harmless
def error_counters_are_evidence(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"][0]["errors"] = {"replay": 3}


@harmless
def links_of_a_gpu_that_is_split(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"] = [nvlinks(at, active=0, mig=True) for at in (0, 1)]


@harmless
def cards_that_are_declared_without_a_bridge(plan: Document, snapshot: Document) -> None:
    links_of(plan, snapshot, "NVIDIA A100 80GB PCIe", "0x20b5", 0, 0, links=12)
    plan["expect"]["nvlinks"] = 0


def confidentially(snapshot: Document, **more: int) -> None:
    """A virtual machine of whose GPUs nothing crosses the bus unencrypted."""
    in_a_cloud(snapshot)
    data(snapshot, "smi")["nvml"].update(confidential=True, **more)


@harmless
def copies_that_are_encrypted(plan: Document, snapshot: Document) -> None:
    confidentially(snapshot)
    under_load(snapshot)
    copies(snapshot, 3.7, 3.5)


@fault("gpu.pcie", cause="reach 0 GiB/s, and no minimum is known", remedy="IOMMU")
def encrypted_copies_that_move_nothing(plan: Document, snapshot: Document) -> None:
    confidentially(snapshot)
    under_load(snapshot)
    copies(snapshot, 3.7, 0)


@harmless
def encrypted_copies_of_hosts_with_protected_pcie(plan: Document, snapshot: Document) -> None:
    confidentially(snapshot, multi_gpu_mode=1)
    under_load(snapshot)
    copies(snapshot, 3.7, 3.5)


# -- peer access ------------------------------------------------------------------------------------


@harmless
def links_without_peer_access_between_confidential_gpus(plan: Document, snapshot: Document) -> None:
    confidentially(snapshot)
    data(snapshot, "smi")["nvlink"][0]["peers"] = peers(0, 2, read=5, write=5, nvlink=5)


@harmless
def links_of_gpus_that_compute_confidentially_by_themselves(
    plan: Document, snapshot: Document
) -> None:
    confidentially(snapshot, multi_gpu_mode=0)
    data(snapshot, "smi")["nvlink"][0]["peers"] = peers(0, 2, read=5, write=5, nvlink=5)


@fault(
    "gpu.peer-access",
    cause="NVLink connects GPUs 0 and 1, and the driver offers them no peer access",
    remedy="driver.fabric",
)
def links_without_peer_access_with_protected_pcie(plan: Document, snapshot: Document) -> None:
    confidentially(snapshot, multi_gpu_mode=1)
    data(snapshot, "smi")["nvlink"][0]["peers"] = peers(0, 2, read=5, write=5, nvlink=5)


@fault(
    "gpu.peer-access",
    cause="NVLink connects GPUs 0 and 1, and the driver offers them no peer access",
    remedy="driver.fabric",
)
def links_without_peer_access_with_encrypted_nvlink(plan: Document, snapshot: Document) -> None:
    confidentially(snapshot, multi_gpu_mode=2)
    data(snapshot, "smi")["nvlink"][0]["peers"] = peers(0, 2, read=5, write=5, nvlink=5)


@fault(
    "gpu.peer-access",
    cause="NVLink connects GPUs 0 and 1, and the driver offers them no peer access: read not"
    " supported, write not supported, nvlink not supported",
    remedy="driver.fabric",
)
def links_that_are_up_and_no_peer_access(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"][0]["peers"] = peers(0, 2, read=5, write=5, nvlink=5)


@fault(
    "gpu.peer-access",
    cause="offers them no peer access: nvlink disabled by a registry key",
    remedy="NVreg_RegistryDwords",
)
def peer_access_that_a_setting_disables(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"][0]["peers"] = peers(0, 2, nvlink=4)


@fault(
    "gpu.peer-access",
    verdict="INCONCLUSIVE",
    cause="no peer access: nvlink unknown",
    remedy="nvidia-smi topo -p2p n",
)
def peer_access_that_the_driver_does_not_know(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvlink"][0]["peers"] = peers(0, 2, nvlink=6)


@fault(
    "gpu.peer-access",
    verdict="INCONCLUSIVE",
    cause="NVLink connects GPUs 0 and 1, and NVML did not report their peer access",
    remedy="nvidia-smi topo -p2p n",
)
def peer_access_that_was_not_read(plan: Document, snapshot: Document) -> None:
    del data(snapshot, "smi")["nvlink"][0]["peers"]
