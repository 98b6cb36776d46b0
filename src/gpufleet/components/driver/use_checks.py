"""The driver as programs use it: CUDA starts, is new enough, and device files can be opened."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.driver_state import without_card
from gpufleet.components.base.host import Host
from gpufleet.components.base.registry import (
    AS_ROOT,
    INSPECT,
    REBOOT,
    Evidence,
    Finding,
    check,
    numbers,
    required,
)
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.verdict import Verdict
from gpufleet.frameworks import DEFAULT, FRAMEWORKS, framework_id

from . import cuda_status
from .installed_checks import card_not_expected


@check("driver.cuda", reads=("driver", "gpus"), repair=REBOOT, skip_reason=card_not_expected)
def cuda(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """CUDA starts, and the driver is new enough for every toolkit and stack."""
    if without_card(plan, Host(observed.snapshot)):
        yield Evidence("no GPU is declared, and none is installed")
        return
    section = observed.data["driver"]
    status, known = section["cuinit"], section["cuda_version"]
    if status:
        found = cuda_status.refusal(plan, observed, status)
        path = section["library_path"] if status == cuda_status.STUB else None
        yield Finding(
            f"CUDA does not start: cuInit returned {status} ({found.meaning})"
            + (f": {path}" if path else ""),
            found.remedy,
            about=found.about,
            entails=(subjects.GPUS,),
        )
    elif status is None or known is None:
        yield Finding(
            "It is unknown whether CUDA starts: libcuda.so.1 could not be queried",
            "see driver.loaded; on the host: ldconfig -p | grep libcuda",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.GPUS,),
        )
    driver = plan["driver"]
    minimum = driver["minimum"] if driver else None
    if section["loaded"] and driver and minimum and numbers(section["loaded"]) < numbers(minimum):
        yield Finding(
            f"The driver is {section['loaded']}; {driver['because']} needs {minimum} or newer",
            f"install a newer driver branch, or declare an older {_older(plan)}",
        )
    elif known:
        for what, needed in _required_cuda(plan):
            if numbers(known) < _minimum_cuda(needed):
                yield Finding(
                    f"libcuda.so.1 supports CUDA {known}, too old for {what} (CUDA {needed})",
                    f"install a newer driver branch, or declare an older {_older(plan)}; on the"
                    " host: ldconfig -p | grep libcuda shows its path",
                )
    yield Evidence(f"cuInit {status}, CUDA {known}, driver {section['loaded']}")


def _older(plan: Plan) -> str:
    """The titles of the declared frameworks, which may need an older driver."""
    declared = [FRAMEWORKS[framework_id(stack)].title for stack in plan["stacks"]]
    return " or ".join(dict.fromkeys(declared or [DEFAULT.title]))


def _required_cuda(plan: Plan) -> Iterator[tuple[str, str]]:
    for toolkit in plan["toolkits"]:
        yield f"toolkit {toolkit['short']}", toolkit["short"]
    for stack in plan["stacks"]:
        if stack["cuda_source"] == "pip":
            yield f"stack {stack['name']}", stack["cuda"]


def _minimum_cuda(version: str) -> tuple[int, ...]:
    """From CUDA 11 on a driver of the same major version will do (minor-version compatibility)."""
    short = numbers(version)[:2]
    return (short[0], 0) if short[0] >= 11 else short


@check("driver.access", reads=("gpus",), repair=INSPECT, skip_reason=card_not_expected)
def access(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The account that uses the GPUs can open their device files."""
    if without_card(plan, Host(observed.snapshot)):
        yield Evidence("no GPU is declared, and none is installed")
        return
    user, rows = plan.get("service_user"), observed.data["gpus"]["node_access"]
    denied = [row for row in rows if row["error"]]
    listing = ", ".join(
        f"{row['path']} (mode {row['mode']}, {row['uid']}:{row['gid']})" for row in denied
    )
    if (
        denied
        and not user
        and all(
            row["gid"] and int(required(row["mode"], "a device file's mode"), 8) & 0o060 == 0o060
            for row in denied
        )
    ):
        yield Finding(
            f"Only a group may open {listing}, and the account that uses the GPUs is not declared",
            "declare gpu_service_user: the account of jobs or services",
            verdict=Verdict.INCONCLUSIVE,
        )
    elif denied:
        yield Finding(
            f"{'Account ' + user if user else 'An ordinary account'} cannot open {listing}:"
            f" {denied[0]['error']}",
            "add the account to the group of the device files, or set NVreg_DeviceFileMode=0666"
            " (options nvidia, in /etc/modprobe.d) and reboot"
            if denied[0].get("kind") != "no-account"
            else "correct gpu_service_user, or create the account",
        )
    if rows and not all(row["tried"] for row in rows):
        yield Finding(
            "It was not tested whether the account that uses the GPUs can open their device files",
            AS_ROOT,
            verdict=Verdict.INCONCLUSIVE,
        )
    elif not rows:
        yield Finding(
            "There is no device file to open",
            "see driver.nodes and driver.loaded",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.NODES,),
        )
    yield Evidence(f"{len(rows)} device files, as {user or 'an account without groups'}")
