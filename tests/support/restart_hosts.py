"""A GPU host before and after a driver change, and its plan."""

from __future__ import annotations

from typing import Any

from gpufleet.components.base.host import Host
from tests.support.host_documents import snapshot

Row = dict[str, Any]
OLD, NEW = "535.261.03", "550.163.01"
BEFORE, NOW = "boot-1", "boot-2"
CARD = {"address": "0000:01:00.0", "vendor": "0x10de", "device": "0x2330", "driver": None}
HELD = [{"pid": 77, "user": "ada", "command": "python", "nodes": ["0"], "unit": "session-1.scope"}]
OURS = [
    {
        "pid": 5,
        "user": "root",
        "command": "nvidia-persiste",
        "nodes": ["ctl"],
        "unit": "nvidia-persistenced.service",
    }
]


def plan(count: int | None = 1, reboot: str = "auto", managed: bool = True) -> Row:
    return {
        "host": "gpu01",
        "expect": {"count": count},
        "driver": {"managed": managed, "reboot": reboot},
    }


def marker(tried: bool = False, boot_id: str = NOW, failed: Row | None = None) -> Row:
    because = "driver 550.163.01 is being installed"
    return {"boot_id": boot_id, "because": because, "tried": tried, "failed": failed}


def host(  # noqa: PLR0917 (in the order in which a driver is looked at)
    loaded: str | None = NEW,
    on_disk: str | None = NEW,
    library: str | None = NEW,
    cards: tuple[str | None, ...] = ("nvidia",),
    next_boot: str | None = "6.1",
    next_module: str | None = NEW,
    **driver: Any,
) -> Host:
    modules = [{"name": "nvidia-uvm", "version": "other"}]
    modules += [{"name": "nvidia-current", "version": next_module}] if next_module else []
    kernel = {"running": "6.1", "boot_id": NOW, "next_boot": next_boot}
    document = snapshot(
        driver={"loaded": loaded, "on_disk": on_disk, "library": library, "holders": [], **driver}
    )
    sections = {
        "kernel": {**kernel, "installed": [{"version": "6.2", "modules": modules}]},
        "gpus": {"pci": [{**CARD, "driver": each} for each in cards]},
    }
    for name, data in sections.items():
        document["sections"][name] = {"state": "ok", "data": data, "error": None}
    return Host(document)
