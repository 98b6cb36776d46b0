"""The clock of a host: right by the control machine's, and set by something."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.registry import Finding
from gpufleet.components.base.sections import Sections
from gpufleet.documents.clock import REMEDY, described
from gpufleet.documents.verdict import Verdict


def clock(observed: Sections) -> Iterator[Finding]:
    """Findings about the host's clock: jobs, certificates and logs have its time.

    A saved snapshot has the comparison of the run that took it; what the host wrote itself (`pull`)
    is compared when it is collected.
    """
    if off := observed.snapshot.get("clock_offset_s"):
        yield Finding(
            f"{described(off)}, which the times of this probe are taken from",
            REMEDY,
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.CLOCK,),
        )
    yield from _unset(observed)


def _unset(observed: Sections) -> Iterator[Finding]:
    """A clock that nothing sets: it is wrong, or will be, and so are the times that are reported.

    In a container it is the machine's, whose services are not seen.
    """
    every = observed.read_elsewhere()
    if "machine" not in every or "kernel" not in every or every["kernel"].get("container"):
        return
    clock = every["machine"]["clock"]
    # A service may set the clock without the kernel's flag, as chrony does without `rtcsync`.
    if not clock["unsynchronised"] or clock["services"]:
        return
    error = clock["max_error_us"]
    off = f", and may be off by {error / 1e6:.3g} s" if error else ""
    yield Finding(
        f"The clock of the host is not synchronised{off}: no service that sets it runs",
        "on the host: start one (systemctl enable --now chronyd, or systemd-timesyncd), and check"
        " that it reaches its servers (chronyc tracking, or timedatectl)",
        verdict=Verdict.INCONCLUSIVE,
    )
