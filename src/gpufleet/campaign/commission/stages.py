"""The stages of a commissioning, in their order: what each depends on, judges and takes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gpufleet.components.base.registry import READS
from gpufleet.components.checks import CHECKS
from gpufleet.documents.plan import Plan
from gpufleet.errors import ConfigurationError
from gpufleet.workload.consensus import NAMES
from gpufleet.workload.formats import FORMATS
from gpufleet.workload.toolkit_run import FORMAT_SHARE

from .identity import (
    BURN_IN,
    CARDS,
    DISKS,
    DRIVER,
    INSTALLED,
    KERNEL,
    LATER,
    MACHINE,
    MEMORY,
    PLAN,
    PORTS,
    PROCESSORS,
    SLOTS,
    STATE,
    UUIDS,
)

# The input of the collectives that no identity has: the siblings that were requested.
SIBLINGS = "siblings"
# Checks that can be judged before an installation. The ports are judged where their own software
# needs no provisioning.
BEFORE_PROVISIONING = (
    "host.probe",
    "host.plan",
    "host.disk",
    "host.temporary",
    "host.manifest",
    "host.nvme",
    "gpu.count",
    "network.ports",
)
# The names of a manifest that a host shows before its drivers and services are installed: firmware,
# BIOS settings, PCIe topology, memory, disks; and those of the ports.
OF_HARDWARE = ("system", "board", "bios", "bmc", "cpu.", "memory.", "numa.", "pci.", "nvme.")
OF_PORTS = ("network.adapters", "network.ports")
# Checks that must have computed: a host that declares none would pass with nothing proven.
COMPUTED = ("gpu.visible", "gpu.formats", "gpu.throughput")
LOADED = ("gpu.sustained", "gpu.bandwidth", "gpu.after-load", "kernel.after-load")
# The parts of a host that show before anything is installed; its ports may need their drivers.
BARE = (STATE, PLAN, MACHINE, PROCESSORS, MEMORY, SLOTS, DISKS)
INSTALLED_HOST = (*BARE, PORTS, KERNEL, DRIVER, INSTALLED)

# The seconds of a deep verification's load and of all that comes with it. An H100 took six seconds
# beside a load; several are waited for until they are cool.
DEEP_S, VERIFY_S = 480, 120
MINUTE, HOUR = 60, 3600
LEAST_BURN_IN_S, MOST_BURN_IN_S = 1, 7 * 24 * HOUR
# The part of a burn-in in which products in float32 are computed. Each other format, and the sums
# of each format, take a fixed share of that part in addition.
LOAD_SHARE = 1 / (1 + FORMAT_SHARE * (len(FORMATS) + len(NAMES)))


@dataclass(frozen=True)
class Stage:
    """A stage. `inputs`: the parts of a host's identity whose change makes it invalid.

    `judges`: the checks that decide it; empty: all. `required`: those of them that have to pass: a
    declaration does not excuse them. `estimate`: its seconds, by those of the burn-in.
    """

    name: str
    title: str
    inputs: tuple[str, ...]
    estimate: Callable[[float], float]
    judges: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    def announced(self, burn_in_s: float, about: str = "") -> str:
        """The time of the stage as people read it, after that of the load itself in a burn-in."""
        load = f"{duration(burn_in_s)} of load, " if BURN_IN in self.inputs else ""
        return f"{load}{about}{duration(self.estimate(burn_in_s))}"

    def decides(self, check: str) -> bool:
        """Return whether a check decides this stage."""
        return not self.judges or check in self.judges


PREFLIGHT = Stage(
    "preflight",
    "cards, ports, memory and disks as declared, before anything is installed",
    BARE,
    lambda burn_in_s: 30,
    BEFORE_PROVISIONING,
    ("gpu.count",),
)
# The preflight of a host on which all is installed: every check that needs no computing. What was
# computed before stands for the host of now only where the host of now shows nothing against it.
READING = replace(
    PREFLIGHT, judges=tuple(each.id for each in CHECKS.values() if each.effect == READS)
)
PROVISION = Stage(
    "provision",
    "driver, CUDA and stacks",
    INSTALLED_HOST,
    lambda burn_in_s: 15 * MINUTE,
)
VERIFY = Stage(
    "verify",
    "all checks, each GPU computes",
    (*INSTALLED_HOST, CARDS, UUIDS),
    lambda burn_in_s: VERIFY_S,
    required=COMPUTED,
)
DEEP = Stage(
    "deep",
    "minutes of load, memory, copies between GPUs, contents of files",
    (*INSTALLED_HOST, CARDS, UUIDS),
    lambda burn_in_s: DEEP_S,
    required=(*COMPUTED, *LOADED),
)
BURN = Stage(
    "burn-in",
    "all GPUs, in all formats, all links and a disk at once",
    (*INSTALLED_HOST, CARDS, UUIDS, BURN_IN),
    lambda burn_in_s: burn_in_s + VERIFY_S,
    required=(*COMPUTED, *LOADED),
)
COLLECTIVES = Stage(
    "collectives",
    "NCCL's collectives with the other hosts",
    (*INSTALLED_HOST, CARDS, UUIDS, SIBLINGS),
    lambda burn_in_s: 3 * MINUTE,
)
COOL_DOWN = Stage(
    "cool-down",
    "all checks once more; the baseline of the history",
    (*INSTALLED_HOST, CARDS, UUIDS),
    lambda burn_in_s: VERIFY_S,
    required=COMPUTED,
)
STAGES: Sequence[Stage] = (PREFLIGHT, PROVISION, VERIFY, DEEP, BURN, COLLECTIVES, COOL_DOWN)
# Each run begins with the preflight: that it has passed before makes no later stage valid.
RESUMED = STAGES[1:]


def contradicted(failed: str) -> tuple[str, ...]:
    """The names of the stages that prove nothing any more once a host has failed in a stage.

    The part that failed had passed them, so its fault may come and go. Only collectives prove the
    network of several hosts, and what is installed is read in each run.
    """
    names = [stage.name for stage in STAGES]
    first = failed if failed in {PROVISION.name, COLLECTIVES.name} else VERIFY.name
    return tuple(names[names.index(first) :])


def seconds_of(text: str, option: str = "--burn-in") -> float:
    """The seconds of `90s`, `30m` or `4h`. Raises `ConfigurationError`."""
    found = re.fullmatch(r"(\d{1,7})(s|m|h)", text.strip())
    seconds = int(found[1]) * {"s": 1, "m": MINUTE, "h": HOUR}[found[2]] if found else 0
    if not LEAST_BURN_IN_S <= seconds <= MOST_BURN_IN_S:
        raise ConfigurationError(
            f"{text!r} is no time for a burn-in.",
            option,
            "Write a number with s, m or h, up to a week: 30m, 4h.",
        )
    return float(seconds)


def duration(seconds: float) -> str:
    """A time as people write it: 40 s, 12 min, 4 h 5 min."""
    minutes = round(seconds / MINUTE)
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    return " ".join(filter(None, (f"{hours} h" * bool(hours), f"{minutes} min" * bool(minutes))))


def before_provisioning(plan: Plan, *, ports: bool) -> Plan:
    """The plan with the part of its manifest that holds before anything is installed."""
    names = (*OF_HARDWARE, *(OF_PORTS if ports else ()))
    found: Plan = {**plan}
    if manifest := plan.get("manifest"):
        found["manifest"] = {
            name: lines for name, lines in manifest.items() if name.startswith(names)
        }
    return found


def still_valid(
    passed: Mapping[str, dict[str, str]],
    identity: dict[str, str],
    burn_in_s: float,
    stages: Sequence[Stage] = RESUMED,
    siblings: Collection[str] = (),
) -> tuple[str, ...]:
    """The names of those of the stages that need not be repeated, in their order.

    `passed`: the inputs of each stage that has passed. A stage is valid if all earlier ones are,
    and nothing that it depends on is another. A burn-in that was longer than requested is valid;
    so are collectives for which more siblings were requested.
    """
    valid: list[str] = []
    for stage in stages:
        inputs = passed.get(stage.name)
        if inputs is None or is_short(stage, inputs, burn_in_s):
            break
        if lacking(stage, inputs, siblings):
            break
        if PLAN not in identity or changed_inputs(stage, inputs, identity):
            break
        valid.append(stage.name)
    return tuple(valid)


def burn_in_s(inputs: Mapping[str, str]) -> float:
    """The seconds of a burn-in by a stage's inputs, 0 without one. Raises `ValueError`."""
    seconds = float(inputs.get(BURN_IN, 0))
    if not 0 <= seconds <= MOST_BURN_IN_S:
        raise ValueError(f"a burn-in of {seconds} s")
    return seconds


def is_short(stage: Stage, inputs: Mapping[str, str], least_s: float) -> bool:
    """Return whether a stage is a burn-in that was shorter than requested."""
    return BURN_IN in stage.inputs and burn_in_s(inputs) < least_s


def lacking(stage: Stage, inputs: Mapping[str, str], siblings: Collection[str]) -> list[str]:
    """The siblings for which a stage's collectives were not requested; empty for other stages."""
    if SIBLINGS not in stage.inputs:
        return []
    known = inputs.get(SIBLINGS, "").split(",")
    return [name for name in siblings if name not in known]


def changed_inputs(stage: Stage, inputs: dict[str, str], identity: dict[str, str]) -> list[str]:
    """The inputs of a stage that are others now, by their names."""
    return [
        name
        for name in stage.inputs
        if name not in {BURN_IN, SIBLINGS}
        and not (name in LATER and name not in inputs)
        and inputs.get(name) != identity.get(name)
    ]
