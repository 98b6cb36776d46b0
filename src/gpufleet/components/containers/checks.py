"""GPUs in containers: engine and toolkit as declared, and what a container can use.

What the engine lacks comes from `judge`, which `provision` uses to repair it; what
a container can use comes from one that the probe started and removed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufleet.components.base import expectation, subjects
from gpufleet.components.base.holders import busy_finding
from gpufleet.components.base.host import Host
from gpufleet.components.base.registry import (
    INVENTORY,
    PROVISION,
    READS,
    Evidence,
    Finding,
    check,
    mig_layout,
    required,
    shortened,
    wrong_gpu_count,
)
from gpufleet.components.base.remedies import (
    CONTAINERS,
    Component,
    Remedy,
    person,
    provision,
    see,
    then,
)
from gpufleet.components.base.sections import Sections
from gpufleet.components.containers import judge as wanted
from gpufleet.components.stacks.products import products
from gpufleet.documents.plan import Plan, PlannedContainers
from gpufleet.documents.sections.stacks import (
    ContainerNode,
    ContainerRun,
    Containers,
    ContainerStart,
    ContainerUnit,
    Framework,
    Reload,
)
from gpufleet.documents.text import quantity, quoted
from gpufleet.documents.verdict import Verdict
from gpufleet.frameworks import FRAMEWORKS, framework_id

# Modes of NVIDIA's runtime with which `docker run --gpus` works; None: the default is used.
MODES = (None, "", "auto", "legacy", "jit-cdi")
# Docker's words where the kernel has AppArmor, and the host has not its parser.
NO_PROFILE = re.compile(r"AppArmor enabled on system but the \S+ profile could not be loaded")
# runc's words where something is mounted over a part of /proc: the kernel gives mapped accounts no
# /proc that would show what is below.
NO_PROC = re.compile(r'mounting "proc" to rootfs at "/proc": .*operation not permitted')
# The toolkit's words for a host whose driver does not run.
NO_DRIVER = re.compile(r"nvml error|driver not loaded|libnvidia-ml|libcuda\.so", re.IGNORECASE)


def not_declared(plan: Plan) -> str | None:
    """The skip reason where containers are not managed."""
    return None if plan.get("containers") else "gpu_containers: not set"


def _declared(plan: Plan) -> PlannedContainers:
    return required(plan["containers"], "the plan's containers")


def no_cards(plan: Plan) -> str | None:
    """The skip reason where no GPU is declared, or containers are not managed."""
    skip_reason = not_declared(plan)
    if skip_reason:
        return skip_reason
    count = _declared(plan)["gpus"]
    if count is None:
        return "gpu_expect: not set"
    return "gpu_expect: {count: 0}" if count == 0 else None


@check("containers.runtime", reads=("containers", "receipts"), skip_reason=not_declared)
def runtime(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The engine runs with NVIDIA's runtime and live restore, and the toolkit is held."""
    section = observed.data["containers"]
    damaged = section["daemon"]["error"] if _declared(plan)["engine"] == "docker" else None
    if damaged:
        yield Finding(
            f"{section['daemon']['path']} cannot be read: {damaged}",
            then(
                person(f"on the host: correct {quoted(section['daemon']['path'])}"),
                provision(plan, CONTAINERS),
            ),
        )
    else:
        other = wanted.toolkit_differs(_declared(plan), section["toolkit"])
        entails = (subjects.CONTAINER_TOOLKIT,) if other else ()
        for cause in wanted.lacking(_declared(plan), Host(observed.snapshot)):
            yield Finding(
                cause[0].upper() + cause[1:], provision(plan, CONTAINERS), entails=entails
            )
    if section["run"] and section["run"]["state"] != "ok":
        yield _failed_run(plan, section, section["run"])
    engine, toolkit = section["engine"], section["toolkit"]
    described = (
        f"{engine['name']} {engine['version']}, storage {engine['storage']}, cgroups by"
        f" {engine['cgroup_driver']}; runtimes {', '.join(engine['runtimes']) or 'none'}"
        if engine
        else "None None, storage None, cgroups by None; runtimes none"
    )
    yield Evidence(f"{described}; toolkit {toolkit['version'] if toolkit else None}")
    for own in section.get("rootless", []):
        yield Evidence(
            f"The rootless {own['engine']} of {own['account']} was not tried: only that account"
            " can ask it, and gpu_containers declares root's engine"
        )


@check("containers.cdi", reads=("containers", "driver", "gpus"), skip_reason=no_cards, effect=READS)
def cdi(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The CDI specification matches the driver, and systemd finds each GPU's device file."""
    if observed.data["driver"]["loaded"] is None:
        yield Finding(
            "No driver is loaded to compare the CDI specification with",
            "see driver.loaded",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.DRIVER,),
        )
    for cause in wanted.stale(_declared(plan), Host(observed.snapshot)):
        yield Finding(cause[0].upper() + cause[1:], provision(plan, CONTAINERS))
    for spec in observed.data["containers"]["cdi"]:
        yield Evidence(
            f"{spec['path']}: driver {spec['driver_version']}, devices {shortened(spec['devices'])}"
        )


def container_run(observed: Sections) -> ContainerRun | Finding:
    """The run of a container, or a finding that says why there is no run to judge."""
    run = observed.data["containers"]["run"]
    if run is None and observed.snapshot["mode"] != "full":
        return Finding(
            f"No container was started: the snapshot has mode '{observed.snapshot['mode']}'",
            "./gpufleet verify (it probes in mode 'full')",
            verdict=Verdict.INCONCLUSIVE,
        )
    if run is None:
        return Finding(
            "No container was started: the engine does not answer",
            "see containers.runtime",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.CONTAINER,),
        )
    return run


def _failed_run(
    plan: Plan, section: Containers, run: ContainerRun | ContainerStart, by: str = ""
) -> Finding:
    """Why a container did not run to its end."""
    hung = run["state"] == "hung"
    if NO_PROFILE.search(run["error"] or ""):
        # The engine starts no container at all, whatever else confines them.
        return Finding(
            "The engine starts no container: it cannot load its AppArmor profile",
            person(
                "on the host: install the package apparmor, which has apparmor_parser, and restart"
                " the engine when nobody needs its containers"
            ),
            run["error"] or "",
            about=(subjects.CONTAINER,),
        )
    if NO_PROC.search(run["error"] or ""):
        return Finding(
            "The engine starts no container of mapped accounts: something is mounted over a part of"
            " the host's /proc",
            person(
                "on the host: findmnt --submounts /proc shows it; unmount what is over a file or a"
                " directory that is not empty; or start containers with --userns=host"
            ),
            run["error"] or "",
            about=(subjects.CONTAINER,),
        )
    cause = f"A container {by}{'hung' if hung else 'could not be run'}: {run['error']}"
    # The first container has no SELinux labels; those that are started as people do have them.
    closing = ("rootless", "userns", "selinux") if by else ("rootless", "userns")
    confined = [name for name in closing if name in _security(section)]
    if confined and not hung and not _mode_remedy(section):
        return Finding(
            f"{cause}. The engine confines containers ({', '.join(confined)}), which may close the"
            " trial's own directories to it",
            person("on the host: start an image of yours by hand, such as nvidia-docker run IMAGE"),
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.CONTAINER,),
        )
    return Finding(
        cause,
        _mode_remedy(section)
        or then(
            person("on the host: try nvidia-docker run by hand, and read journalctl -u docker"),
            provision(plan, CONTAINERS),
        ),
        verdict=Verdict.HUNG if hung else Verdict.FAIL,
        about=(subjects.DRIVER if NO_DRIVER.search(run["error"] or "") else subjects.CONTAINER,),
    )


def _security(section: Containers) -> list[str]:
    """The mechanisms by which the engine confines containers."""
    engine = section["engine"]
    return engine.get("security", []) if engine else []


def _mode_remedy(section: Containers) -> Remedy | None:
    """The toolkit's setting with which `docker run --gpus` starts no container, if it is set."""
    configuration = section.get("configuration")
    if not configuration or configuration["mode"] in MODES:
        return None
    return person(
        f'on the host: in {quoted(configuration["path"])} set mode = "auto" below'
        f" [nvidia-container-runtime]: with {quoted(configuration['mode'] or '')} docker run --gpus"
        " starts no container"
    )


def _denied_remedy(plan: Plan, section: Containers, gpus: list[ContainerNode]) -> Remedy:
    """The remedy that lets a container open the GPUs that it has and may not open."""
    configuration = section.get("configuration")
    if configuration and configuration["no_cgroups"]:
        return then(
            person(
                f"on the host: in {quoted(configuration['path'])} set no-cgroups = false below"
                " [nvidia-container-cli]: with true no container is allowed its GPUs"
                + (
                    " (rootless engines need no such setting where they start containers with"
                    " --device nvidia.com/gpu=all)"
                    if section.get("rootless")
                    else ""
                )
            ),
            person("restart the containers"),
        )
    closed = any(card.get("code") == "EACCES" for card in gpus)
    mapped = {"userns", "rootless"} & {*_security(section)}
    if closed and mapped and "selinux" not in _security(section):
        return person(
            "on the host: set NVreg_DeviceFileMode=0666 (options nvidia, in /etc/modprobe.d) and"
            " reboot: the accounts of its containers are in no group of the host; or start"
            " containers with GPUs with --userns=host"
        )
    if "selinux" in _security(section) and closed:
        return person(
            "on the host: setsebool -P container_use_devices on; or start containers with"
            " nvidia-docker, or with --security-opt label=disable"
        )
    return then(provision(plan, CONTAINERS), person("restart the containers"))


def _cards(
    plan: Plan, section: Containers, gpus: list[ContainerNode], when: str
) -> Iterator[Finding | Evidence]:
    count = _declared(plan)["gpus"]
    denied = [f"{card['node']} ({card['error']})" for card in gpus if card["error"]]
    if denied:
        yield Finding(
            f"{when} a container cannot open {shortened(denied)}",
            _denied_remedy(plan, section, gpus),
            "\n".join(denied),
        )
    if len(gpus) != count:
        yield Finding(
            f"{when} a container has {quantity(len(gpus), 'GPU')}, declared are {count}",
            "see gpu.count and driver.loaded; if the host has that many: correct gpu_expect in"
            " the inventory",
            about=subjects.missing_gpus(len(gpus), count, subjects.CONTAINER),
        )
    yield Evidence(f"{when} a container opens {len(gpus) - len(denied)} of {count} GPUs")


@check("containers.gpus", reads=("containers",), skip_reason=no_cards)
def gpus(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """A container with all GPUs opens exactly as many as declared, however it is started."""
    section = observed.data["containers"]
    run = container_run(observed)
    if isinstance(run, Finding):
        yield run
    elif run["state"] != "ok" and not run["gpus"]:
        yield _failed_run(plan, section, run)
    else:
        yield from _cards(plan, section, run["gpus"], "After its start")
        yield from _starts(plan, section, run)


def _starts(plan: Plan, section: Containers, run: ContainerRun) -> Iterator[Finding | Evidence]:
    """The ways to start a container that differ from the first one, which names the devices."""
    starts = run.get("starts")
    if starts is None or (not starts and run["gpus"]):
        yield Finding(
            "No container was started by --gpus or a CDI device alone: what it can open is unknown",
            "./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
        )
        return
    others: list[ContainerStart] = []
    for start in starts:
        if start["state"] != "ok":
            yield _failed_run(plan, section, start, f"started by {start['by']} ")
        elif start["gpus"] == run["gpus"]:
            yield Evidence(f"Started by {start['by']}, a container opens the same GPUs")
        else:
            others.append(start)
    # A fault that several ways have in common has one cause.
    while others:
        gpus = others[0]["gpus"]
        names = [start["by"] for start in others if start["gpus"] == gpus]
        others = [start for start in others if start["gpus"] != gpus]
        yield from _cards(plan, section, gpus, f"Started by {' or '.join(names)},")


@check("containers.reload", reads=("containers",), repair=PROVISION, skip_reason=no_cards)
def reload(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """A running container would keep its GPUs if systemd reloaded its units (read, not tried)."""
    section = observed.data["containers"]
    yield from _others(section)
    run = container_run(observed)
    if isinstance(run, Finding):
        yield run
        return
    missing = section["dev_char"]["missing"]
    if missing:
        yield Finding(
            f"{shortened(missing)} missing: {wanted.WITHOUT_LINK}",
            provision(plan, CONTAINERS, note="it creates the links"),
        )
    if run["reload"]:
        yield from _reloaded(plan, section, run["reload"])
    elif (unit := run.get("unit")) and unit["nodes"]:
        yield from _own_unit(plan, unit, section.get("majors") or {})
    elif run["state"] != "ok" or not run["gpus"]:
        yield Finding(
            "What a daemon-reload leaves to a container is unknown: none ran with GPUs",
            "see containers.gpus",
            verdict=Verdict.INCONCLUSIVE,
            about=(
                subjects.missing_gpus(0, _declared(plan)["gpus"], subjects.CONTAINER)
                if run["state"] == "ok"
                else _failed_run(plan, section, run).about
            ),
        )
    elif section["engine"] and section["engine"]["cgroup_driver"] == "cgroupfs":
        yield Evidence("systemd does not manage this engine's containers: a reload leaves them be")
    else:
        yield Finding(
            "What a daemon-reload leaves to a container is unknown: systemd has no unit for it",
            "on the host: systemctl list-units '*.scope'",
            verdict=Verdict.INCONCLUSIVE,
        )


def needed(nodes: list[str]) -> list[str]:
    """The device files without which a container does not compute."""
    return [node for node in nodes if node not in wanted.UNNEEDED_NODES]


def _own_unit(
    plan: Plan, unit: ContainerUnit, majors: dict[str, int]
) -> Iterator[Finding | Evidence]:
    """Findings about the devices that systemd would take from the probe's container."""
    lost = wanted.lost_at_reload(unit, majors)
    if needed(lost):
        yield Finding(
            f"A container loses {shortened(needed(lost))} at the next systemctl daemon-reload:"
            " systemd's rules for it do not allow them",
            provision(plan, CONTAINERS, note="its nvidia-docker names the devices to the engine"),
            "\n".join([unit["unit"], *unit["allow"]]),
        )
    kept = len(unit["nodes"]) - len(lost)
    yield Evidence(f"systemd allows a container {kept} of its {len(unit['nodes'])} devices")


def _others(section: Containers) -> Iterator[Evidence]:
    """The effect of a reload on the containers of others, who choose how these start."""
    running = section.get("running")
    if running is None:
        yield Evidence("Running containers: not read")
    for unit in running or []:
        lost = wanted.lost_at_reload(unit, section.get("majors") or {})
        keeps = "" if needed(lost) else "keeps its GPUs"
        loses = f"loses {shortened(lost)}" if lost else ""
        yield Evidence(
            f"Container {unit['name'] or unit['unit']}"
            f" {' and '.join(filter(None, (keeps, loses)))} at a systemctl daemon-reload, as"
            " package upgrades run it"
        )


def _reloaded(plan: Plan, section: Containers, tried: Reload) -> Iterator[Finding | Evidence]:
    """Findings about a real reload, which probes of earlier releases did."""
    if tried["error"]:
        yield Finding(
            f"systemctl daemon-reload failed: {tried['error']}",
            "on the host: systemctl daemon-reload",
            verdict=Verdict.INCONCLUSIVE,
        )
    else:
        yield from _cards(plan, section, tried["gpus"], "After a daemon-reload")


def no_framework(plan: Plan) -> str | None:
    """The skip reason where no stack or image is declared to run in a container."""
    skip_reason = not_declared(plan)
    if skip_reason or plan["stacks"] or _declared(plan)["image"]:
        return skip_reason
    return "gpu_stacks: [], and gpu_containers has no image"


@check("containers.matmul", reads=("containers",), repair=INVENTORY, skip_reason=no_framework)
def matmul(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """A framework multiplies matrices in a container, on each declared GPU, with exact results."""
    run = container_run(observed)
    if isinstance(run, Finding):
        yield run
        return
    if run["state"] != "ok":
        yield _failed_run(plan, observed.data["containers"], run)
        return
    if plan["stacks"]:
        yield from _computed(plan, observed, run["stack"] or "a stack", run["framework"])
    image = _declared(plan)["image"]
    tried = run["image"]
    if image and not (tried and tried["present"]):
        yield Finding(
            f"The image {image} is not on the host: it was not tested",
            f"on the host: {_declared(plan)['engine']} pull {image}",
            verdict=Verdict.INCONCLUSIVE,
        )
    elif image and tried:
        yield from _computed(plan, observed, image, tried["framework"])


def _computed(
    plan: Plan, observed: Sections, name: str, framework: Framework | None
) -> Iterator[Finding | Evidence]:
    """The products that a framework computed in a container, one for each device."""
    if framework is None:
        yield Finding(
            "No stack is installed that could run in a container",
            see(
                "stack.release",
                provision(plan, *(Component("stack", row["name"]) for row in plan["stacks"])),
            ),
            verdict=Verdict.INCONCLUSIVE,
            about=tuple(stack["venv"] for stack in plan["stacks"]),
        )
        return
    title = FRAMEWORKS[framework_id(framework)].title
    if framework["state"] != "ok":
        hung = framework["state"] == "hung"
        busy = busy_finding(f"{name} in a container", framework["error"], observed)
        yield (None if hung else busy) or Finding(
            f"{title} of {name} {'hangs' if hung else 'does not run'} in a container:"
            f" {framework['error']}",
            see(
                "stack.matmul, and containers.gpus",
                provision(
                    plan,
                    *(
                        Component("stack", row["name"])
                        for row in plan["stacks"]
                        if row["name"] == name
                    ),
                    CONTAINERS,
                ),
            ),
            verdict=Verdict.HUNG if hung else Verdict.FAIL,
        )
        return
    if not framework["matmul"]:
        yield Finding(
            f"{title} of {name} multiplied nothing in a container",
            "./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
        )
    yield from products(plan, observed, f"{name} in a container", framework["matmul"])
    cards = {
        entry["requested"] for entry in framework["matmul"] if "gpu" in entry["requested"].lower()
    }
    count = expectation.visible(_declared(plan)["gpus"], mig_layout(plan))
    if count is not None and wrong_gpu_count(plan, len(cards), count):
        yield Finding(
            f"In a container {name} computed on {quantity(len(cards), 'GPU')}, declared are"
            f" {count}",
            "see containers.gpus, and gpu.count",
            about=subjects.missing_gpus(len(cards), count, subjects.CONTAINER),
        )
