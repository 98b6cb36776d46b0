"""The cards of public reports (tests/field): what nvidia-smi and all others say of them."""

from __future__ import annotations

import re
from functools import cache

from gpufleet.catalog import facts
from gpufleet.on_host.smi_document import parse_smi
from lab.gpus.smi_text import DRIVER, HEALTHY, smi_text
from tests.support.field_cards import lost_a_card, product
from tests.support.healthy_host import Document, data
from tests.support.host_parts import held_by_ann, no_gpu_for_programs
from tests.support.planted_gpu_host import CARDS

MIG_DEVICE = {
    "mig_devices/mig_device/gpu_instance_id": "1",
    "mig_devices/mig_device/ecc_error_count/volatile_count/sram_uncorrectable": "0",
}


def texts_of(given: Document, changes: Document) -> list[Document]:
    """The elements of nvidia-smi's document that the report changes, of each card."""
    cards: list[Document] = [{} for _ in CARDS]
    for path, text in (given.get("smi") or {}).items():
        found = re.fullmatch(r"(?:gpu(\d+):)?(.*)", path)
        assert found
        numbers = range(len(CARDS)) if found[1] is None else [min(int(found[1]), len(CARDS) - 1)]
        for number in numbers if found[2] != "pci/pci_bus_id" else ():
            cards[number][found[2]] = text
    return cards


def name(plan: Document, snapshot: Document, texts: list[Document]) -> None:
    """Another product than the healthy host's: by all who name it."""
    name = texts[0].get("product_name")
    if name is None:
        return
    plan["expect"].update(model=name, memory_mib=None)
    for run in data(snapshot, "compute")["runs"]:
        for device in run["devices"]:
            device["name"] = name
    if found := product(name):
        device, capability = found
        # The saved figures and links are those of the healthy host's product.
        for row in data(snapshot, "smi")["nvlink"]:
            if "SXM" not in name and device not in facts.document("pci.yml")["fabric"]:
                row["links"] = []
        for run in data(snapshot, "compute")["runs"]:
            run.update(bandwidth=[], sustained=[])
        data(snapshot, "compute")["deep"] = False
        for row in data(snapshot, "gpus")["pci"]:
            row["device"] = f"0x{device}"
        for card in texts:
            card.setdefault("pci/pci_device_id", f"{device.upper()}10DE")
        for run in data(snapshot, "compute")["runs"]:
            for row in run["devices"]:
                row["compute_capability"] = capability


def show(snapshot: Document, texts: list[Document], given: Document) -> None:
    """The document of nvidia-smi, of the cards that it lists, with their MIG instances."""
    gpus, driver = data(snapshot, "gpus"), data(snapshot, "driver")
    rows = gpus["mig"] or []
    if len(rows) > 1 and all(card.get("mig_mode/current_mig") == "Enabled" for card in texts):
        rows[1] = {**rows[0], "gpu": 1}
    for card, row in zip(texts, rows, strict=False):
        if row["instances"]:
            card.update({"mig_devices": None, **MIG_DEVICE})
            for cdi in data(snapshot, "containers")["cdi"]:
                names = [f"{row['gpu']}:{number}" for number in range(len(row["instances"]))]
                cdi["devices"] = [*names, *(e for e in cdi["devices"] if e != str(row["gpu"]))]
            card.setdefault("mig_mode/current_mig", "Enabled")
            card.setdefault("mig_mode/pending_mig", "Enabled")
    own = [
        {"pci/pci_bus_id": f"0000{address}", **c} for c, address in zip(texts, CARDS, strict=True)
    ]
    listed = own[:1] if lost_a_card(given) else own
    if any(re.match(r"[1-9]\d", card.get("utilization/gpu_util", "")) for card in texts):
        held_by_ann(snapshot)
    if (driver["loaded"] or DRIVER) > DRIVER:
        listed = [{**_newer_elements(), **card} for card in listed]
    document = parse_smi(smi_text(listed, driver["loaded"] or DRIVER, driver["cuda_version"]))
    data(snapshot, "smi").update(document)
    if len(listed) < len(CARDS):
        data(snapshot, "smi")["nvml"]["count"] = len(listed)
        data(snapshot, "smi")["nvlink"] = data(snapshot, "smi")["nvlink"][: len(listed)]
        no_gpu_for_programs(snapshot, len(listed))


@cache
def _newer_elements() -> Document:
    """The elements that newer drivers print of a healthy card beyond the healthy host's."""
    rules = facts.document("smi_rules.yml")["rules"]
    return {
        row["paths"][0]: str(row["good"][0])
        for row in rules
        if row.get("good")
        and "each" not in row
        and not row["paths"][0].startswith("mig_mode/")
        and not {*row["paths"]} & {*HEALTHY}
    }
