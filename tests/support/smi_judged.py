"""Hosts with cards of the corpus of `nvidia-smi -q -x`, judged by the checks of GPUs."""

from __future__ import annotations

from functools import cache
from typing import Any

from gpufleet.components.checks import CHECKS, Finding, Sections
from gpufleet.documents.verdict import Verdict, worst
from gpufleet.on_host.smi_document import parse_smi
from lab.gpus.smi_text import Texts
from tests.support import healthy_host, smi_corpus

GPU_CHECKS = (
    "gpu.smi",
    "gpu.visible",
    "gpu.recovery",
    "gpu.memory-errors",
    "gpu.pcie",
    "gpu.throttle",
    "gpu.fabric",
    "gpu.settings",
)
SECOND = "GPU 1 (0000:02:00.0)"


def host_of_cards() -> tuple[dict[str, Any], dict[str, Any]]:
    """Plan and snapshot of a healthy host whose GPUs are of no declared model and have no NVLink."""
    plan, snapshot = healthy_host.document("plan.json"), healthy_host.document("snapshot.json")
    healthy_host.with_cards(plan, snapshot)
    plan["expect"].update(model=None, memory_mib=None)
    healthy_host.data(snapshot, "smi")["nvlink"] = []
    return plan, snapshot


@cache
def parsed_card(sample: str, at: int, changes: tuple[tuple[str, str | None], ...]) -> Any:
    """The parsed data of one card of a document, and of its head."""
    address = f"00000000:{at + 1:02X}:00.0"
    text = smi_corpus.document(
        sample,
        {
            "pci/pci_bus_id": address,
            "uuid": f"GPU-00000000-1111-2222-3333-4444444444{at:02x}",
            **dict(changes),
        },
    )
    return parse_smi(text.replace('<gpu id="00000000:01:00.0"', f'<gpu id="{address}"'))


def parsed(sample: str, *cards: Texts) -> dict[str, Any]:
    """A document of such cards, each parsed once."""
    found = [parsed_card(sample, at, tuple(card.items())) for at, card in enumerate(cards)]
    return {
        **found[0],
        "attached": len(cards),
        "devices": [{**each["devices"][0], "index": at} for at, each in enumerate(found)],
    }


def judged(
    host: Any,
    sample: str,
    *cards: Texts,
    checks: tuple[str, ...] = GPU_CHECKS,
    text: str | None = None,
) -> dict[str, list[Finding]]:
    """The findings of each check on a host with such cards."""
    plan, base = host
    snapshot = {
        **base,
        "sections": {
            name: {**base["sections"][name], "data": {**base["sections"][name]["data"]}}
            for name in ("smi", "gpus", "driver")
        },
    }
    found = parse_smi(text) if text else parsed(sample, *cards)
    healthy_host.data(snapshot, "smi").update(
        found, nvml={"status": 0, "version": found["driver_version"], "count": len(cards)}
    )
    healthy_host.data(snapshot, "driver")["loaded"] = found["driver_version"]
    healthy_host.data(snapshot, "gpus")["pci"] = [
        {
            "address": f"0000:{at + 1:02x}:00.0",
            "vendor": "0x10de",
            "device": "0x2330",
            "class": "0x030200",
            "driver": "nvidia",
        }
        for at in range(len(cards))
    ]
    return {
        name: [
            item
            for item in CHECKS[name].function(plan, Sections(snapshot, CHECKS[name].reads))
            if isinstance(item, Finding)
        ]
        for name in checks
    }


def verdict(findings: list[Finding]) -> Verdict:
    return worst([finding.verdict for finding in findings] or [Verdict.PASS])
