"""GPUs in containers: engine and toolkit as declared, and what a container can use.

What the engine lacks comes from `host_state.containers`, which `provision` uses to repair it; what
a container can use comes from one that the probe started and removed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpufleet.host_state import containers as wanted
from gpufleet.host_state.host import Host
from gpufleet.model.verdict import Verdict
from gpufleet.spec import expectation

from .holders import busy_finding
from .registry import (
    INVENTORY,
    REBOOT,
    Document,
    Evidence,
    Finding,
    Sections,
    check,
    mig_layout,
    provision,
    shortened,
    wrong_gpu_count,
)
from .stack_run import products


def not_declared(plan: Document) -> str | None:
    """The skip reason where containers are not managed."""
    return None if plan.get("containers") else "gpu_containers: not set"


def no_cards(plan: Document) -> str | None:
    """The skip reason where no GPU is declared, or containers are not managed."""
    skip_reason = not_declared(plan)
    if skip_reason:
        return skip_reason
    count = plan["containers"]["gpus"]
    if count is None:
        return "gpu_expect: not set"
    return "gpu_expect: {count: 0}" if count == 0 else None


@check("containers.runtime", reads=("containers", "receipts"), skip_reason=not_declared)
def runtime(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """The engine runs with NVIDIA's runtime and live restore, and the toolkit is held."""
    section = observed["containers"]
    damaged = section["daemon"]["error"] if plan["containers"]["engine"] == "docker" else None
    if damaged:
        yield Finding(f"{section['daemon']['path']} cannot be read: {damaged}",
                      f"on the host: correct {section['daemon']['path']}; then {provision(plan)}")
    else:
        for cause in wanted.lacking(plan["containers"], Host(observed.snapshot)):
            yield Finding(cause[0].upper() + cause[1:], provision(plan))
    if section["run"] and section["run"]["state"] != "ok":
        yield _failed_run(plan, section["run"])
    engine, toolkit = section["engine"] or {}, section["toolkit"] or {}
    yield Evidence(f"{engine.get('name')} {engine.get('version')}, storage {engine.get('storage')},"
               f" cgroups by {engine.get('cgroup_driver')}; runtimes"
               f" {', '.join(engine.get('runtimes') or []) or 'none'}; toolkit"
               f" {toolkit.get('version')}")


@check("containers.cdi", reads=("containers", "driver"), skip_reason=no_cards)
def cdi(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """The CDI specification matches the driver, and systemd finds each GPU's device file."""
    if observed["driver"]["loaded"] is None:
        yield Finding("No driver is loaded to compare the CDI specification with",
                      "see driver.loaded", verdict=Verdict.INCONCLUSIVE)
    for cause in wanted.stale(plan["containers"], Host(observed.snapshot)):
        yield Finding(cause[0].upper() + cause[1:], provision(plan))
    for spec in observed["containers"]["cdi"]:
        yield Evidence(f"{spec['path']}: driver {spec['driver_version']}, devices"
                   f" {shortened(spec['devices'])}")


def container_run(plan: Document, observed: Sections) -> tuple[dict[str, Any], Finding | None]:
    """What a container observed, and why there is nothing to judge."""
    run = observed["containers"]["run"]
    if run is None and observed.snapshot["mode"] != "full":
        return {}, Finding(
            f"No container was started: the snapshot has mode '{observed.snapshot['mode']}'",
            "./gpufleet verify (it probes in mode 'full')", verdict=Verdict.INCONCLUSIVE)
    if run is None:
        return {}, Finding("No container was started: the engine does not answer",
                           "see containers.runtime", verdict=Verdict.INCONCLUSIVE)
    return run, None


def _failed_run(plan: Document, run: dict[str, Any]) -> Finding:
    """Why a container did not run to its end."""
    hung = run["state"] == "hung"
    return Finding(
        f"A container {'hung' if hung else 'could not be run'}: {run['error']}",
        "on the host: try nvidia-docker run by hand, and read journalctl -u docker;"
        f" then {provision(plan)}", verdict=Verdict.HUNG if hung else Verdict.FAIL)


def _cards(plan: Document, gpus: list[dict[str, Any]], when: str) -> Iterator[Finding | Evidence]:
    count = plan["containers"]["gpus"]
    denied = [f"{card['node']} ({card['error']})" for card in gpus if card["error"]]
    if denied:
        yield Finding(
            f"{when} a container cannot open {shortened(denied)}",
            f"{provision(plan)} (it creates the links in /dev/char); then restart the containers",
            "\n".join(denied))
    if len(gpus) != count:
        yield Finding(
            f"{when} a container has {len(gpus)} GPUs, declared are {count}",
            "see gpu.count and driver.loaded; if the host has that many: correct gpu_expect in"
            " the inventory")
    yield Evidence(f"{when} a container opens {len(gpus) - len(denied)} of {count} GPUs")


@check("containers.gpus", reads=("containers",), skip_reason=no_cards)
def gpus(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """A container with all GPUs opens exactly as many as declared."""
    run, problem = container_run(plan, observed)
    if problem:
        yield problem
    elif run["state"] != "ok" and not run["gpus"]:
        yield _failed_run(plan, run)
    else:
        yield from _cards(plan, run["gpus"], "After its start")


@check("containers.reload", reads=("containers",), repair=REBOOT, skip_reason=no_cards)
def reload(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """A running container keeps its GPUs when systemd reloads its units."""
    run, problem = container_run(plan, observed)
    missing = observed["containers"]["dev_char"]["missing"]
    if problem:
        yield problem
    elif missing:
        # Not tested: it would remove the GPUs from other containers.
        yield Finding(
            f"Without {shortened(missing)} running containers lose their GPUs at the next"
            " systemctl daemon-reload", f"{provision(plan)} (it creates the links)")
    elif run["reload"] is None:
        yield Finding("The reload was not tested: the container stopped before it",
                      "see containers.gpus", verdict=Verdict.INCONCLUSIVE)
    elif run["reload"]["error"]:
        yield Finding(f"systemctl daemon-reload failed: {run['reload']['error']}",
                      "on the host: systemctl daemon-reload", verdict=Verdict.INCONCLUSIVE)
    else:
        yield from _cards(plan, run["reload"]["gpus"], "After a daemon-reload")


def no_framework(plan: Document) -> str | None:
    """The skip reason where no stack or image is declared to run in a container."""
    skip_reason = not_declared(plan)
    if skip_reason or plan["stacks"] or plan["containers"]["image"]:
        return skip_reason
    return "gpu_stacks: [], and gpu_containers has no image"


@check("containers.matmul", reads=("containers",), repair=INVENTORY, skip_reason=no_framework)
def matmul(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """TensorFlow multiplies matrices in a container, on each declared GPU, with exact results."""
    run, problem = container_run(plan, observed)
    if problem:
        yield problem
        return
    if run["state"] != "ok":
        yield _failed_run(plan, run)
        return
    if plan["stacks"]:
        yield from _computed(plan, observed, run["stack"] or "a stack", run["framework"])
    image = plan["containers"]["image"]
    tried = run["image"] or {}
    if image and not tried.get("present"):
        yield Finding(f"The image {image} is not on the host: it was not tested",
                      f"on the host: {plan['containers']['engine']} pull {image}",
                      verdict=Verdict.INCONCLUSIVE)
    elif image:
        yield from _computed(plan, observed, image, tried["framework"])


def _computed(
    plan: Document, observed: Sections, name: str, framework: dict[str, Any] | None
) -> Iterator[Finding | Evidence]:
    """The products that TensorFlow computed in a container, one for each device."""
    if framework is None:
        yield Finding("No stack is installed that could run in a container",
                      f"see stack.release; {provision(plan)}", verdict=Verdict.INCONCLUSIVE)
        return
    if framework["state"] != "ok":
        hung = framework["state"] == "hung"
        busy = busy_finding(f"{name} in a container", {"error": framework["error"]}, observed)
        yield (None if hung else busy) or Finding(
            f"TensorFlow of {name} {'hangs' if hung else 'does not run'} in a container:"
            f" {framework['error']}", f"see stack.matmul, and containers.gpus; {provision(plan)}",
            verdict=Verdict.HUNG if hung else Verdict.FAIL)
        return
    if not framework["matmul"]:
        yield Finding(f"TensorFlow of {name} multiplied nothing in a container",
                      "./gpufleet verify", verdict=Verdict.INCONCLUSIVE)
    yield from products(plan, observed, {"name": f"{name} in a container"}, framework["matmul"])
    cards = [entry for entry in framework["matmul"] if "gpu" in entry["requested"].lower()]
    count = expectation.visible(plan["containers"]["gpus"], mig_layout(plan))
    if count is not None and wrong_gpu_count(plan, len(cards), count):
        yield Finding(f"In a container {name} computed on {len(cards)} GPUs, declared are {count}",
                      "see containers.gpus, and gpu.count")
