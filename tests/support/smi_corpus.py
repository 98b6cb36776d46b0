"""Documents of `nvidia-smi -q -x` for every gathered card and driver, made from the catalog.

`catalog/data/smi_samples.yml` says what each element was in a real document: a value, N/A, absent.
The values are the tests' own.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from gpufleet.catalog import facts
from lab.gpus.smi_text import Texts, smi_text

Row = dict[str, Any]
# PCI device ids by a word of the name, else by the generation.
DEVICES = {
    "A100-SXM4": "20B0",
    "A100-PCIE": "20F1",
    "GB200": "2941",
    "GB300": "31C2",
    "B200": "2901",
    "Kepler": "102D",
    "Pascal": "15F8",
    "Volta": "1DB6",
    "Turing": "1EB8",
    "Ampere": "2206",
    "Ada": "26B9",
    "Hopper": "2330",
    "Blackwell": "2BB4",
}
STATES = {
    "N/A": "N/A",
    "deprecated": "Requested functionality has been deprecated",
    "no permission": "Insufficient Permissions",
}
BLOCKS = ("remapped_rows", "processes")
INSTANCES = "mig_devices/mig_device/"
# Healthy values, by the end of a path; the first that fits.
VALUES = {
    "gpu_recovery_action": "None",
    "gpu_idle": "Active",
    "clocks_event_reason_": "Not Active",
    "clocks_throttle_reason_": "Not Active",
    "current_mig": "Disabled",
    "pending_mig": "Disabled",
    "persistence_mode": "Enabled",
    "addressing_mode": "None",
    "compute_mode": "Default",
    "virtualization_mode": "None",
    "fabric/state": "Completed",
    "fabric/status": "Success",
    "summary": "Healthy",
    "bandwidth": "Full",
    "incorrect_configuration": "None",
    "fabric/health/": "False",
    "row_remapper_histogram_max": "640 bank(s)",
    "row_remapper_histogram": "0 bank(s)",
    "_reset": "No",
    "recommended": "No",
    "reset_required": "No",
    "exceeded": "No",
    "pending_retirement": "No",
    "pending_blacklist": "No",
    "repair_pending": "No",
    "unrepairable_memory": "No",
    "remapped_row_pending": "No",
    "remapped_row_failure": "No",
    "slow_tlimit_threshold": "-2 C",
    "max_tlimit_threshold": "-5 C",
    "tlimit_threshold": "0 C",
    "gpu_temp_tlimit": "45 C",
    "threshold": "95 C",
    "temp": "40 C",
    "power_limit": "300.00 W",
    "power_draw": "60.00 W",
    "link_gen": "3",
    "link_width": "16x",
    "clock": "1000 MHz",
    "_counters_": "0 us",
    "performance_state": "P0",
    "power_state": "P0",
}


@cache
def samples() -> dict[str, Row]:
    """The gathered documents that are whole, by id."""
    return {
        row["id"]: row
        for row in facts.document("smi_samples.yml")["samples"]
        if not row.get("partial")
    }


@cache
def _elements() -> list[Row]:
    found: list[Row] = facts.document("smi_fields.yml")["elements"]
    return found


def value(path: str) -> str:
    """A healthy value of an element."""
    return next((text for end, text in VALUES.items() if end in path), "0")


def device(sample: str) -> str:
    """The `pci_device_id` of the sample's card."""
    row = samples()[sample]
    known = next((word for word in DEVICES if word in row["gpu"]), row["generation"])
    return f"{DEVICES[known]}10DE"


@cache
def card(sample: str) -> Texts:
    """The elements of one card of the sample: healthy, idle."""
    row, states = samples()[sample], facts.document("smi_samples.yml")["elements"]
    texts: dict[str, str | None] = {
        "product_name": row["gpu"],
        "fb_memory_usage/total": "24576 MiB",
        "fb_memory_usage/used": "4 MiB",
        "fb_memory_usage/free": "24572 MiB",
        "pci/pci_device_id": device(sample),
        "processes": "",
        "utilization/gpu_util": "0 %",
    }
    for element in _elements():
        path = element["path"]
        seen = states.get(path, {})
        state = next((name for name, ids in seen.items() if sample in ids), "absent")
        if element.get("of") == "document" or path.startswith(INSTANCES):
            continue
        if state == "absent" and "older_name" in element and "gpu_power" + "_readings" not in texts:
            # To 525 the block had another name, on all of these.
            older = re.match(r"[\w/]+", element["older_name"])
            if older and int(row["driver"][:3]) < 535:
                path, state = older[0], "N/A" if "gt730" in sample else "value"
        if path in BLOCKS or state == "absent":
            continue
        texts[path] = STATES.get(state) or value(path)
    if not any(path.startswith("remapped_rows/") for path in texts) and sample in (
        states["remapped_rows"].get("N/A", ())
    ):
        texts["remapped_rows"] = "N/A"
    counted = any(
        texts.get(f"ecc_errors/volatile/{name}") == "0"
        for name in ("double_bit/total", "dram_uncorrectable")
    )
    for name in ("current", "pending"):
        if texts.get(f"ecc_mode/{name}_ecc") == "0":
            texts[f"ecc_mode/{name}_ecc"] = "Enabled" if counted or "+mig" in sample else "Disabled"
    if texts.get("c2c_mode") == "0":
        texts["c2c_mode"] = "Enabled" if sample.startswith("gb") else "Disabled"
    if "+mig" in sample:
        texts.update(
            {
                "mig_mode/current_mig": "Enabled",
                "mig_mode/pending_mig": "Enabled",
                "utilization/gpu_util": "N/A",
                "mig_devices": "".join(instance(at) for at in range(2)),
            }
        )
    elif "mig_mode/current_mig" in texts:
        texts["mig_devices"] = "None"
    return texts


def instance(at: int, errors: str | None = "0") -> str:
    """A MIG instance as nvidia-smi prints it."""
    count = (
        ""
        if errors is None
        else (
            "<ecc_error_count><volatile_count><sram_uncorrectable>"
            + errors
            + "</sram_uncorrectable></volatile_count></ecc_error_count>"
        )
    )
    return (
        f"<mig_device><index>{at}</index><gpu_instance_id>{at + 1}</gpu_instance_id>"
        f"<compute_instance_id>0</compute_instance_id>{count}</mig_device>"
    )


def document(sample: str, *changes: Texts) -> str:
    """The document of a host with such cards, each changed so."""
    row = samples()[sample]
    text = smi_text(
        [{**card(sample), **texts} for texts in changes], driver=row["driver"], healthy={}
    )
    return text.replace("_v12.dtd", f"_v{row['dtd']}.dtd") if row["dtd"] != "none" else text
