"""NVMe drives that warn or are worn out."""

from __future__ import annotations

from tests.support.check_faults import faults_on, no_gpus
from tests.support.healthy_host import Document, data

fault, harmless = faults_on(no_gpus)


def health(snapshot: Document, **values: int) -> None:
    """The first drive's health log has these values."""
    data(snapshot, "machine")["drives"][0]["health"].update(values)


@fault("host.nvme", cause="not reliable any more, after media or internal", remedy="replace")
def a_drive_is_not_reliable(plan: Document, snapshot: Document) -> None:
    health(snapshot, critical_warning=0b100)


@fault("host.nvme", cause="bit 7 of its critical warning is set", remedy="replace the drive")
def a_warning_of_a_later_standard(plan: Document, snapshot: Document) -> None:
    health(snapshot, critical_warning=0b1000_0000)


@fault("host.nvme", cause="warns: its temperature is beyond a threshold", remedy="its cooling")
def a_drive_is_hot(plan: Document, snapshot: Document) -> None:
    health(snapshot, critical_warning=0b10)


@fault("host.nvme", cause="has 9 % of its spare capacity, below its threshold of 10", remedy="back")
def a_drive_lacks_spare_capacity(plan: Document, snapshot: Document) -> None:
    health(snapshot, spare_percent=9)


@fault("host.nvme", cause="is worn out: 104 % of the endurance", remedy="replace the drive")
def a_drive_is_worn_out(plan: Document, snapshot: Document) -> None:
    health(snapshot, used_percent=104)


@fault("host.nvme", cause="nvme1 (EXAMPLE PM9 3.84TB) is dead", remedy="see dmesg")
def the_kernel_has_given_a_drive_up(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["drives"][1].update(state="dead", health=None, error="no answer")


@fault(
    "host.nvme", verdict="INCONCLUSIVE", cause="neither a power cycle nor any data", remedy="update"
)
def a_log_that_contradicts_itself(plan: Document, snapshot: Document) -> None:
    health(snapshot, power_cycles=0, units_read=0, units_written=0)


@fault(
    "host.nvme",
    verdict="INCONCLUSIVE",
    cause="of nvme0 (EXAMPLE PM9 3.84TB) cannot be read: it refuses its health log",
    remedy="smartctl -x",
)
def a_drive_that_refuses_its_log(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["drives"][0].update(
        health=None, error="it refuses its health log (status 0x4002)", refused=0x4002
    )


@harmless
def an_emulated_drive_that_knows_no_log(plan: Document, snapshot: Document) -> None:
    a_drive_that_refuses_its_log(plan, snapshot)
    data(snapshot, "gpus")["hypervisor"] = True


@fault("host.nvme", verdict="INCONCLUSIVE", cause="(status 0x4006)", remedy="smartctl -x")
def an_emulated_drive_with_an_internal_error(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["hypervisor"] = True
    data(snapshot, "machine")["drives"][0].update(
        health=None, error="it refuses its health log (status 0x4006)", refused=0x4006
    )


@harmless
def a_cloud_s_drive_that_counts_nothing(plan: Document, snapshot: Document) -> None:
    drive = data(snapshot, "machine")["drives"][0]["health"]
    drive.update(dict.fromkeys(drive, 0))


@harmless
def an_emulated_drive_that_counts_no_power_cycle(plan: Document, snapshot: Document) -> None:
    health(snapshot, power_cycles=0, power_on_hours=30)


@harmless
def old_errors_of_a_drive_without_a_manifest(plan: Document, snapshot: Document) -> None:
    health(snapshot, media_errors=2)


@harmless
def no_drive(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["drives"] = []


@fault(
    "host.nvme",
    verdict="NOT-DECLARED",
    cause="the drives are the machine's, not this container's",
    remedy="verify the machine itself",
)
def drives_of_the_machine_below_a_container(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["container"] = "podman"
    data(snapshot, "machine")["drives"][0].update(health=None, error="No such file or directory")


def eight_drives(snapshot: Document) -> list[Document]:
    """Drives of one model, with a link each; the drives."""
    machine = data(snapshot, "machine")
    first = machine["drives"][0]
    machine["drives"] = [
        {**first, "name": f"nvme{number}", "address": f"0000:0{number}:00.0"} for number in range(8)
    ]
    machine["pci"]["links"] = [
        {
            "address": drive["address"],
            "class": "0x010802",
            "speed": "16.0 GT/s PCIe",
            "width": "4",
        }
        for drive in machine["drives"]
    ]
    drives: list[Document] = machine["drives"]
    return drives


@harmless
def eight_drives_of_a_model(plan: Document, snapshot: Document) -> None:
    eight_drives(snapshot)


@fault(
    "host.nvme",
    verdict="INCONCLUSIVE",
    cause="link of nvme3 is generation 1 with 1 lane, that of 7 others of its model generation 4",
    remedy="seat the drive",
)
def a_drive_with_a_slow_link(plan: Document, snapshot: Document) -> None:
    eight_drives(snapshot)
    data(snapshot, "machine")["pci"]["links"][3].update(speed="2.5 GT/s PCIe", width="1")


@fault(
    "host.nvme",
    verdict="INCONCLUSIVE",
    cause="nvme5 has no namespace, 7 others of its model have one",
    remedy="nvme list-ns --all /dev/nvme5",
)
def a_drive_without_a_namespace(plan: Document, snapshot: Document) -> None:
    eight_drives(snapshot)[5]["gb"] = 0


@harmless
def a_drive_of_another_model_in_a_slower_slot(plan: Document, snapshot: Document) -> None:
    eight_drives(snapshot)[0]["model"] = "EXAMPLE boot drive"
    data(snapshot, "machine")["pci"]["links"][0].update(speed="8.0 GT/s PCIe", width="2")


@harmless
def a_faster_slot_and_half_of_the_drives_without_a_namespace(
    plan: Document, snapshot: Document
) -> None:
    for drive in eight_drives(snapshot)[:4]:
        drive["gb"] = 0
    data(snapshot, "machine")["pci"]["links"][0]["speed"] = "32.0 GT/s PCIe"


@harmless
def links_that_were_not_read(plan: Document, snapshot: Document) -> None:
    eight_drives(snapshot)
    data(snapshot, "machine")["pci"]["links"] = []


@harmless
def a_workstation_with_a_slower_slot(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["drives"] = eight_drives(snapshot)[:4]
    data(snapshot, "machine")["pci"]["links"][3].update(speed="8.0 GT/s PCIe", width="2")
