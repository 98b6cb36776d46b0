"""Two GPUs: nvidia-smi, identity, memory errors, throttling, settings."""

from __future__ import annotations

from gpufleet.on_host.smi_document import parse_smi
from lab.gpus.smi_text import HEALTHY, OLD, smi_text
from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import GT_710, WORKING, card, compute_run, display_card, printed

fault, harmless = faults_on(with_cards)
FIRST = "GPU 0 (0000:00:00.0)"
NEEDS_A_CARD = (
    "gpu.identity",
    "gpu.visible",
    "gpu.memory-errors",
    "gpu.pcie",
    "gpu.nvlink",
    "gpu.peer-access",
    "gpu.throttle",
    "gpu.settings",
    "gpu.recovery",
    "gpu.fabric",
)


@fault("gpu.smi", cause="couldn't communicate with the NVIDIA driver", remedy="dkms status")
@fault(*NEEDS_A_CARD, verdict="INCONCLUSIVE", cause="nvidia-smi lists no GPU", remedy="gpu.smi")
def nvidia_smi_finds_no_driver(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi").update(
        status=9,
        devices=[],
        driver_version=None,
        cuda_version=None,
        nvml=dict.fromkeys(("status", "version", "count")),
        error="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    )


@fault("gpu.smi", cause="different versions (status 18)", remedy="driver.loaded")
@fault(*NEEDS_A_CARD, verdict="INCONCLUSIVE", cause="nvidia-smi lists no GPU", remedy="gpu.smi")
def nvml_of_another_version(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi").update(
        status=18,
        devices=[],
        nvml={"status": 18, "version": None, "count": None},
        error="Failed to initialize NVML: Driver/library version mismatch",
        driver_version=None,
    )


@fault("gpu.smi", cause="reports driver 550.1, loaded is 535.261.03", remedy="reboot gpu01")
def nvidia_smi_of_another_driver(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["driver_version"] = "550.1"


@fault(
    "gpu.smi", verdict="INCONCLUSIVE", cause="not installed", remedy="apt-get install nvidia-smi"
)
@fault(*NEEDS_A_CARD, verdict="INCONCLUSIVE", cause="nvidia-smi lists no GPU", remedy="gpu.smi")
def no_nvidia_smi(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi").update(program=None, status=None, devices=[], driver_version=None)


@fault("gpu.smi", cause="NVML could not be queried", remedy="ldconfig", verdict="INCONCLUSIVE")
def no_nvml(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvml"] = {"status": None, "version": None, "count": None}


@fault("gpu.smi", cause="does not answer: temperature_c: Unknown Error", remedy="replace the GPU")
@fault(
    "gpu.throttle",
    verdict="INCONCLUSIVE",
    cause="does not report its temperature c (temperature_c: Unknown",
    remedy="nvidia-smi -q",
)
def a_card_that_answers_unknown_error(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"temperature/gpu_temp": "Unknown Error"}, {})


@fault(
    "gpu.memory-errors",
    verdict="INCONCLUSIVE",
    cause="does not report its remap.pending (remap.pending: GPU is lost)",
    remedy="nvidia-smi -q",
)
@fault(
    "gpu.smi",
    cause=f"{FIRST} fell off the bus or cannot be reached (remapped_rows: GPU is lost)",
    remedy="kernel.log for Xid 79",
)
def a_block_that_is_an_error(plan: Document, snapshot: Document) -> None:
    printed(
        snapshot,
        {
            **{name: None for name in HEALTHY if name.startswith("remapped_rows/")},
            "remapped_rows": "GPU is lost",
        },
        {},
    )


@fault("gpu.smi", cause="infoROM is corrupted", remedy="kernel.log")
def a_damaged_inforom(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi").update(status=14, error="WARNING: infoROM is corrupted at gpu 0000:01")


@fault("gpu.smi", cause="breaks off at GPU 0 (0000:00:00.0)", remedy="kernel.log")
@fault(
    "gpu.visible",
    verdict="INCONCLUSIVE",
    cause="broke off before the GPU at 0000:01:00.0",
    remedy="see gpu.smi",
)
@fault(
    "gpu.memory-errors",
    "gpu.throttle",
    verdict="INCONCLUSIVE",
    cause="GPU 0 (0000:00:00.0)",
    remedy="nvidia-smi -q",
)
@fault(
    "gpu.settings",
    verdict="INCONCLUSIVE",
    cause="GPU 0 (0000:00:00.0) does not report its compute mode",
    remedy="see gpu.smi",
)
@fault(
    "gpu.identity",
    verdict="INCONCLUSIVE",
    cause="does not report its memory total mib",
    remedy="see gpu.smi",
)
def a_document_that_breaks_off_with_status_0(plan: Document, snapshot: Document) -> None:
    """Nothing failed, and what was missing was to be reseated."""
    text = smi_text([{"pci/pci_bus_id": f"00000000:0{at}:00.0"} for at in (0, 1)])
    data(snapshot, "smi").update(parse_smi(text[: text.index("<performance_state>")]))


@fault("gpu.smi", cause="breaks off at its head: Unable to determine", remedy="kernel.log")
@fault(*NEEDS_A_CARD, verdict="INCONCLUSIVE", cause="nvidia-smi lists no GPU", remedy="gpu.smi")
def a_document_with_an_error_instead_of_gpus(plan: Document, snapshot: Document) -> None:
    text = smi_text([])
    data(snapshot, "smi").update(
        parse_smi(
            text.replace(
                "</nvidia_smi_log>",
                "<error_string>Unable to determine the device handle</error_string>"
                "</nvidia_smi_log>",
            )
        )
    )


@fault("gpu.smi", cause="reports 3 attached GPUs, and lists 2", remedy="see gpu.visible")
def a_card_attached_and_not_listed(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["attached"] = 3


@fault(
    "gpu.smi",
    verdict="INCONCLUSIVE",
    cause="printed of GPU 1 (0000:01:00.0) cannot be read",
    remedy="nvidia-smi -q -x",
)
def a_card_s_part_of_the_document_is_damaged(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {}, {"fan_speed": "<a>"})


@fault(
    "gpu.visible",
    cause="The GPU at 0000:01:00.0 is on the PCI bus, but nvidia-smi does not",
    remedy="Xid 79",
)
def one_card_of_two_is_missing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["devices"].pop()
    data(snapshot, "smi")["nvml"]["count"] = 1
    data(snapshot, "smi")["attached"] = 1


@fault("gpu.visible", cause="NVML lists 1 GPU, nvidia-smi lists 2", remedy="kernel.log")
def nvml_counts_another_number(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvml"]["count"] = 1


@harmless
def a_third_card_is_given_to_a_virtual_machine(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["pci"].append(
        {
            "address": "0000:09:00.0",
            "vendor": "0x10de",
            "device": "0x2330",
            "class": "0x030200",
            "driver": "vfio-pci",
        }
    )


@harmless
def a_container_whose_cards_have_the_machine_s_numbers(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["nodes"] = [
        "/dev/nvidia3",
        "/dev/nvidia7",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]


@fault(
    "gpu.identity",
    cause="GPU 0 (0000:00:00.0) has the model NVIDIA H100 80GB HBM3, declared is NVIDIA A100-SXM4-40GB",
    remedy="correct gpu_expect",
)
def another_model(plan: Document, snapshot: Document) -> None:
    plan["expect"]["model"] = "NVIDIA A100-SXM4-40GB"


@fault(
    "gpu.identity",
    cause=f"{FIRST} has 40960 MiB of memory, declared are 81559",
    remedy="install the declared GPU",
)
def half_of_the_memory(plan: Document, snapshot: Document) -> None:
    for at in range(2):
        card(snapshot, at)["memory_total_mib"] = 40960
        compute_run(snapshot)["devices"][at]["memory_mib"] = 40400


@fault("gpu.identity", cause="Declared GPUs are missing: GPU-ffffffff", remedy="correct gpu_expect")
def another_card_of_the_model(plan: Document, snapshot: Document) -> None:
    plan["expect"]["uuids"] = [card(snapshot)["uuid"], "GPU-ffffffff-0000-0000-0000-000000000000"]


@fault(
    "gpu.identity",
    verdict="INCONCLUSIVE",
    cause="does not report its memory total mib",
    remedy="gpu.smi",
)
def memory_not_told(plan: Document, snapshot: Document) -> None:
    card(snapshot)["memory_total_mib"] = None


@harmless
def the_declared_cards_in_other_letters(plan: Document, snapshot: Document) -> None:
    plan["expect"].update(
        model="h100 80gb hbm3",
        memory_mib=81920,
        uuids=[card(snapshot, at)["uuid"].replace("GPU", "gpu").upper() for at in (1, 0)],
    )


@fault(
    "gpu.memory-errors", cause=f"{FIRST} will remap a faulty memory row", remedy="--gpu-reset -i 0"
)
def a_row_waits_to_be_replaced(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"remapped_rows/remapped_row_pending": "Yes"}, {})


@fault("gpu.memory-errors", cause="could not remap a faulty memory row", remedy="replace the GPU")
def a_row_could_not_be_replaced(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"remapped_rows/remapped_row_failure": "Yes"}, {})


@fault("gpu.memory-errors", cause="will retire a faulty memory page", remedy="--gpu-reset")
@fault("gpu.identity", cause="declared is", remedy="correct")
def a_page_waits_to_be_retired(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {**OLD, "retired_pages/pending_blacklist": "Yes"}, {})


@fault("gpu.memory-errors", cause="had 10 uncorrected memory errors", remedy="reset")
def uncorrected_errors(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"ecc_errors/volatile/dram_uncorrectable": "10"}, {})


@fault(
    "gpu.memory-errors",
    verdict="INCONCLUSIVE",
    cause="ecc uncorrected volatile",
    remedy="nvidia-smi -q",
)
def counters_not_told(plan: Document, snapshot: Document) -> None:
    card(snapshot)["ecc_uncorrected_volatile"] = None


@harmless
def rows_and_pages_that_were_replaced_long_ago(plan: Document, snapshot: Document) -> None:
    printed(
        snapshot,
        {
            "remapped_rows/remapped_row_corr": "3",
            "remapped_rows/remapped_row_unc": "1",
            "ecc_errors/aggregate/dram_uncorrectable": "1",
            "ecc_errors/volatile/dram_correctable": "12",
            "retired_pages/double_bit_retirement/retired_count": "4",
        },
        {},
    )


@fault(
    "gpu.memory-errors",
    verdict="INCONCLUSIVE",
    remedy="nvidia-smi -q -x",
    cause="does not print of GPU 0 (0000:00:00.0) what it prints of such GPUs:"
    " ecc_mode/current_ecc",
)
def a_renamed_block(plan: Document, snapshot: Document) -> None:
    """Renamed blocks read as "has none", and every check passed."""
    printed(snapshot, {"ecc_mode/current_ecc": None, "ecc_mode/ecc_now": "Enabled"}, {})


@fault(
    "gpu.memory-errors",
    cause=f"{FIRST}, MIG instance 2/0, had 7 uncorrected memory errors",
    remedy="--gpu-reset -i 0",
)
def errors_of_a_mig_instance(plan: Document, snapshot: Document) -> None:
    """With MIG enabled errors stand at the instances, and were never read."""
    instances = "".join(
        f"<mig_device><index>{at}</index><gpu_instance_id>{at + 1}</gpu_instance_id>"
        f"<compute_instance_id>0</compute_instance_id><ecc_error_count><volatile_count>"
        f"<sram_uncorrectable>{errors}</sram_uncorrectable></volatile_count></ecc_error_count>"
        f"</mig_device>"
        for at, errors in enumerate((0, 7))
    )
    printed(
        snapshot,
        {
            "mig_mode/current_mig": "Enabled",
            "mig_devices": instances,
            **{name: None for name in HEALTHY if name.startswith("remapped_rows/")},
            "remapped_rows": "N/A",
            "utilization/gpu_util": "N/A",
        },
        {},
    )


@fault("gpu.recovery", cause=f"{FIRST} needs a reset", remedy="--gpu-reset -i 0")
def a_card_that_asks_for_a_reset(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"gpu_recovery_action": "Reset"}, {})


@fault("gpu.recovery", cause="GPU 1 (0000:01:00.0) needs a reboot of the host", remedy="reboot it")
def a_card_that_asks_for_a_reboot(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {}, {"gpu_recovery_action": "Reboot"})


@fault(
    "gpu.recovery", verdict="INCONCLUSIVE", cause="'Repaint', which this release", remedy="NVIDIA"
)
def an_action_that_is_not_known(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"gpu_recovery_action": "Repaint"}, {})


@fault("gpu.fabric", cause=f"{FIRST} is unhealthy in the NVLink fabric", remedy="fabric manager")
def a_card_unhealthy_in_its_fabric(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"fabric/health/summary": "Unhealthy"}, {})


@fault("gpu.fabric", verdict="INCONCLUSIVE", cause="still registering", remedy="fabric manager")
def a_card_that_registers_with_its_fabric(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"fabric/state": "In Progress", "fabric/status": "N/A"}, {})


@fault("gpu.throttle", cause="T.Limit is -4 °C, and at -2 it slows down", remedy="fans")
def a_card_too_hot_by_its_margin(plan: Document, snapshot: Document) -> None:
    printed(
        snapshot,
        {
            "temperature/gpu_temp_tlimit": "-4 C",
            "temperature/gpu_temp": "96 C",
            "temperature/gpu_temp_slow_threshold": None,
            "temperature/gpu_temp_slow_tlimit_threshold": "-2 C",
        },
        {},
    )


@fault("gpu.throttle", cause=f"{FIRST} is throttled by heat", remedy="fans")
def a_card_slowed_down_by_software_for_its_heat(plan: Document, snapshot: Document) -> None:
    name = "clocks_event_reasons/clocks_event_reason_sw_thermal_slowdown"
    printed(snapshot, {**WORKING, name: "Active"}, {})


@fault("gpu.throttle", cause=f"{FIRST} is throttled by heat", remedy="fans")
def a_hot_max_q_of_a_workstation(plan: Document, snapshot: Document) -> None:
    """It is called Max-Q, and is no laptop's."""
    plan["expect"]["model"] = None
    name = "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown"
    printed(
        snapshot,
        {
            **WORKING,
            name: "Active",
            "product_name": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        },
        {},
    )


@harmless
def cards_at_work_within_their_power(plan: Document, snapshot: Document) -> None:
    printed(snapshot, WORKING, {**WORKING, "temperature/gpu_temp_slow_threshold": "N/A"})


@harmless
def a_desktop_card_at_its_target_temperature(plan: Document, snapshot: Document) -> None:
    plan["expect"]["model"] = None
    name = "clocks_event_reasons/clocks_event_reason_sw_thermal_slowdown"
    model = "NVIDIA GeForce RTX 3090"
    printed(snapshot, {**WORKING, name: "Active", "product_name": model}, {})


@fault("gpu.throttle", cause="throttled by heat at 90 °C", remedy="fans")
def a_card_too_hot(plan: Document, snapshot: Document) -> None:
    card(snapshot)["temperature_c"] = 90


@fault(
    "gpu.throttle",
    verdict="INCONCLUSIVE",
    cause="does not report its throttle",
    remedy="nvidia-smi -q",
)
def reasons_not_told(plan: Document, snapshot: Document) -> None:
    card(snapshot)["throttle"] = None


@fault("gpu.settings", cause="power limit of 500 W, declared are 700", remedy="-i 0 -pl 700")
def a_lowered_power_limit(plan: Document, snapshot: Document) -> None:
    plan["expect"]["power_limit_w"] = 700
    printed(snapshot, {"gpu_power_readings/current_power_limit": "500.00 W"}, {})


@fault("gpu.settings", cause="ECC off, declared is on", remedy="nvidia-smi -i 0 -e 1")
def ecc_switched_off(plan: Document, snapshot: Document) -> None:
    plan["expect"]["ecc"] = "on"
    printed(snapshot, {"ecc_mode/current_ecc": "Disabled", "ecc_mode/pending_ecc": "Disabled"}, {})


@fault("gpu.settings", cause="which needs a reset", remedy="--gpu-reset -i 1")
def ecc_that_waits_for_a_reset(plan: Document, snapshot: Document) -> None:
    plan["expect"]["ecc"] = "on"
    printed(snapshot, {}, {"ecc_mode/current_ecc": "Disabled"})


@fault("gpu.settings", cause="compute mode prohibited, normal is default", remedy="-i 0 -c DEFAULT")
def nobody_may_compute(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"compute_mode": "Prohibited"}, {})


@fault(
    "gpu.settings",
    cause="compute mode default, declared is exclusive_process",
    remedy="EXCLUSIVE_PROCESS",
)
def another_compute_mode(plan: Document, snapshot: Document) -> None:
    plan["expect"]["compute_mode"] = "exclusive_process"


@fault("gpu.settings", cause="persistence off", remedy="nvidia-smi -i 1 -pm 1")
def persistence_off(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {}, {"persistence_mode": "Disabled"})


@fault(
    "gpu.settings", verdict="INCONCLUSIVE", cause="does not report its ECC mode", remedy="gpu.smi"
)
@fault(
    "gpu.memory-errors",
    verdict="INCONCLUSIVE",
    cause="does not report its ecc (ecc: [Unknown Error])",
    remedy="smi",
)
def ecc_not_told(plan: Document, snapshot: Document) -> None:
    plan["expect"]["ecc"] = "on"
    printed(snapshot, {"ecc_mode/current_ecc": "[Unknown Error]"}, {})


@harmless
def a_lowered_limit_that_nobody_declared_otherwise(plan: Document, snapshot: Document) -> None:
    limit: dict[str, str | None] = {"gpu_power_readings/current_power_limit": "450.00 W"}
    printed(snapshot, {**limit, "compute_mode": "Exclusive_Process"}, limit)


@harmless
def a_display_card_that_the_driver_no_longer_supports(plan: Document, snapshot: Document) -> None:
    display_card(snapshot, GT_710)
