"""Kernel modules that the kernel refuses: NVIDIA's own, and those around GPUs and adapters.

A module that is loaded now was refused at an earlier try, which is no fault of the host.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.catalog import kernel_messages
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import Evidence, Finding
from gpufleet.documents.sections.host import Event
from gpufleet.documents.verdict import Verdict

# The modules without which CUDA does not start.
NEEDED = ("nvidia", "nvidia_uvm")


def findings(event: Event) -> Iterator[Finding | Evidence]:
    """The finding of a module that the kernel refused, or could not compare with NVIDIA's."""
    module, kind = event["process"] or "", event["kind"]
    if kind not in {"module-refused", "module-unchecked"}:
        return
    about = (f"{subjects.MODULE}/{module}",)
    if kind == "module-unchecked":
        yield Finding(
            f"The module {module} was built without the symbol versions of NVIDIA's driver, so"
            " that the kernel could not check whether it fits the driver that runs",
            "on the host: build and install that module again beside this driver (dkms"
            " autoinstall, or the installer that it came with), and reboot: the line stays in the"
            " log until then",
            event["text"],
            Verdict.INCONCLUSIVE,
            about,
        )
    elif event.get("loaded"):
        yield Evidence(f"{event['text']}; {module} is loaded now")
    else:
        found = kernel_messages.refusal(module, event["text"])
        yield Finding(
            f"The kernel refused the module {module}: {found.reason}",
            f"on the host: {found.remedy}",
            event["text"],
            Verdict.FAIL if module.replace("-", "_") in NEEDED else Verdict.INCONCLUSIVE,
            about,
        )
