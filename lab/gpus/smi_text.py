"""The output of `nvidia-smi -q -x`, as its generations of drivers print it: written by hand.

A card is a mapping from an element's path to its text; `XML(...)` says what differs from a healthy
one, None takes an element out. Only elements that the probe reads, and some that could mislead it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Texts = Mapping[str, str | None]

DRIVER, CUDA = "535.261.03", "12.2"
MODEL, MEMORY_MIB = "NVIDIA H100 80GB HBM3", 81559

HEALTHY: dict[str, str | None] = {
    "product_name": MODEL,
    "product_brand": "NVIDIA",
    "persistence_mode": "Enabled",
    "mig_mode/current_mig": "Disabled",
    "mig_devices": "None",
    "uuid": "GPU-00000000-1111-2222-3333-444444444400",
    "minor_number": "0",
    "product_architecture": "Hopper",
    "pci/pci_device_id": "233010DE",
    "gpu_virtualization_mode/virtualization_mode": "None",
    "pci/pci_bus_id": "00000000:01:00.0",
    "pci/replay_counter": "106",
    "fabric/state": "Completed",
    "fabric/status": "Success",
    "gpu_reset_status/reset_required": "No",
    "gpu_reset_status/drain_and_reset_recommended": "No",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "5",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "5",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "16x",
    "pci/pci_gpu_link_info/link_widths/current_link_width": "16x",
    "fan_speed": "N/A",
    "performance_state": "P0",
    "clocks_event_reasons/clocks_event_reason_gpu_idle": "Active",
    "clocks_event_reasons/clocks_event_reason_applications_clocks_setting": "Not Active",
    "clocks_event_reasons/clocks_event_reason_sw_power_cap": "Not Active",
    "clocks_event_reasons/clocks_event_reason_hw_slowdown": "Not Active",
    "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown": "Not Active",
    "clocks_event_reasons/clocks_event_reason_hw_power_brake_slowdown": "Not Active",
    "clocks_event_reasons/clocks_event_reason_sw_thermal_slowdown": "Not Active",
    "fb_memory_usage/total": f"{MEMORY_MIB} MiB",
    "fb_memory_usage/reserved": "551 MiB",
    "fb_memory_usage/used": "4 MiB",
    "fb_memory_usage/free": "81004 MiB",
    "bar1_memory_usage/total": "131072 MiB",
    "bar1_memory_usage/used": "1 MiB",
    "compute_mode": "Default",
    "utilization/gpu_util": "0 %",
    "utilization/memory_util": "0 %",
    "ecc_mode/current_ecc": "Enabled",
    "ecc_mode/pending_ecc": "Enabled",
    "ecc_errors/volatile/sram_correctable": "0",
    "ecc_errors/volatile/sram_uncorrectable": "0",
    "ecc_errors/volatile/dram_correctable": "0",
    "ecc_errors/volatile/dram_uncorrectable": "0",
    "ecc_errors/aggregate/sram_correctable": "0",
    "ecc_errors/aggregate/sram_uncorrectable": "0",
    "ecc_errors/aggregate/dram_correctable": "0",
    "ecc_errors/aggregate/dram_uncorrectable": "0",
    "retired_pages/multiple_single_bit_retirement/retired_count": "N/A",
    "retired_pages/double_bit_retirement/retired_count": "N/A",
    "retired_pages/pending_retirement": "N/A",
    "remapped_rows/remapped_row_corr": "0",
    "remapped_rows/remapped_row_unc": "0",
    **{
        f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{name}": f"{banks} bank(s)"
        for name, banks in {"max": 2560, "high": 0, "partial": 0, "low": 0, "none": 0}.items()
    },
    "remapped_rows/remapped_row_pending": "No",
    "remapped_rows/remapped_row_failure": "No",
    "temperature/gpu_temp": "31 C",
    "temperature/gpu_temp_max_threshold": "92 C",
    "temperature/gpu_temp_slow_threshold": "89 C",
    "temperature/gpu_temp_tlimit": "56 C",
    "gpu_power_readings/power_draw": "69.52 W",
    "gpu_power_readings/current_power_limit": "700.00 W",
    "gpu_power_readings/default_power_limit": "700.00 W",
    "gpu_power_readings/max_power_limit": "700.00 W",
    "clocks/sm_clock": "345 MHz",
    "max_clocks/sm_clock": "1980 MHz",
    "processes": "",
}
# A card without MIG that retires pages instead of rows, as an older driver (418 to 470) prints it.
OLD: dict[str, str | None] = {
    **{
        name: None
        for name in HEALTHY
        if name.startswith(
            ("clocks_event_reasons", "gpu_power_readings", "remapped_rows", "ecc_errors", "mig")
        )
    },
    "mig_mode/current_mig": "N/A",
    "product_name": "Tesla V100-SXM2-32GB",
    "product_architecture": "Volta",
    "pci/pci_device_id": "1DB510DE",
    "temperature/gpu_temp_tlimit": "N/A",
    "fabric/state": "N/A",
    "fabric/status": "N/A",
    "fb_memory_usage/total": "32480 MiB",
    "fb_memory_usage/reserved": None,
    "fb_memory_usage/free": "32480 MiB",
    "fb_memory_usage/used": "0 MiB",
    "accounting_mode": "Disabled",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "3",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "3",
    **{
        f"clocks_throttle_reasons/clocks_throttle_reason_{name}": "Not Active"
        for name in (
            "applications_clocks_setting",
            "sw_power_cap",
            "hw_slowdown",
            "hw_thermal_slowdown",
            "hw_power_brake_slowdown",
            "sync_boost",
            "sw_thermal_slowdown",
        )
    },
    "clocks_throttle_reasons/clocks_throttle_reason_gpu_idle": "Active",
    "ecc_errors/volatile/single_bit/total": "10",
    "ecc_errors/volatile/double_bit/total": "0",
    "ecc_errors/volatile/double_bit/device_memory": "0",
    "ecc_errors/aggregate/single_bit/total": "10",
    "ecc_errors/aggregate/double_bit/total": "2",
    "retired_pages/multiple_single_bit_retirement/retired_count": "0",
    "retired_pages/double_bit_retirement/retired_count": "2",
    "retired_pages/pending_retirement": None,
    "retired_pages/pending_blacklist": "No",
    "power_readings/power_draw": "41.30 W",
    "power_readings/power_limit": "300.00 W",
    "power_readings/default_power_limit": "300.00 W",
    "power_readings/max_power_limit": "300.00 W",
}
# A card for games: it knows neither ECC nor what goes with it.
CONSUMER: dict[str, str | None] = {
    "product_name": "NVIDIA GeForce RTX 3080",
    "product_architecture": "Ampere",
    "pci/pci_device_id": "220610DE",
    "temperature/gpu_temp_tlimit": "N/A",
    "fabric/state": "N/A",
    "fabric/status": "N/A",
    "fb_memory_usage/total": "10240 MiB",
    "ecc_mode/current_ecc": "N/A",
    "ecc_mode/pending_ecc": "N/A",
    **{name: "N/A" for name in HEALTHY if name.startswith("ecc_errors/")},
    **{name: None for name in HEALTHY if name.startswith("remapped_rows/")},
    "remapped_rows": "N/A",
    "mig_mode/current_mig": "N/A",
    "gpu_power_readings/current_power_limit": "320.00 W",
    "gpu_power_readings/default_power_limit": "320.00 W",
}


def smi_text(
    cards: Sequence[Texts] = ({}, {}),
    driver: str = DRIVER,
    cuda: str = CUDA,
    processes: Mapping[int, Sequence[tuple[int, str, str]]] | None = None,
    healthy: Texts = HEALTHY,
) -> str:
    """The document for such cards, at 0000:01:00.0, 0000:02:00.0, ... where they do not say.

    What a card does not say is that of the healthy one.
    """
    head = (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        f"<nvidia_smi_log>\n\t<timestamp>Fri Nov 20 12:00:00 2026</timestamp>\n"
        f"\t<driver_version>{driver}</driver_version>\n\t<cuda_version>{cuda}</cuda_version>\n"
        f"\t<attached_gpus>{len(cards)}</attached_gpus>\n"
    )
    body = ""
    for at, texts in enumerate(cards):
        own = {
            "pci/pci_bus_id": f"00000000:{at + 1:02X}:00.0",
            "minor_number": str(at),
            "uuid": f"GPU-00000000-1111-2222-3333-4444444444{at:02x}",
        }
        card = {**healthy, **own, **texts}
        tree: dict[str, Any] = {}
        for path, text in card.items():
            if text is not None:
                *places, name = path.split("/")
                here = tree
                for place in places:
                    here = here.setdefault(place, {})
                here[name] = text
        using = (processes or {}).get(at, ())
        if using:
            tree["processes"] = "".join(
                "<process_info><gpu_instance_id>N/A</gpu_instance_id>"
                f"<pid>{pid}</pid><type>C</type><process_name>{name}</process_name>"
                f"<used_memory>{memory}</used_memory></process_info>"
                for pid, name, memory in using
            )
        address = card["pci/pci_bus_id"] or own["pci/pci_bus_id"]
        body += f'\t<gpu id="{address}">\n{_elements(tree)}\t</gpu>\n'
    return f"{head}{body}</nvidia_smi_log>\n"


def _elements(tree: Mapping[str, Any]) -> str:
    return "".join(
        f"\t\t<{name}>{_elements(part) if isinstance(part, dict) else part}</{name}>\n"
        for name, part in tree.items()
    )
