"""The plain words: what was proven, what could not be and why. For terminal and page alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .session import HostRun, Session
from .verdict import Verdict

TITLES = {
    Verdict.PASS: "healthy",
    Verdict.FAIL: "not healthy",
    Verdict.HUNG: "hanging",
    Verdict.UNREACHABLE: "not reached",
    Verdict.INCONCLUSIVE: "not fully judged",
    Verdict.NOT_DECLARED: "nothing declared",
}


@dataclass(frozen=True)
class Unproven:
    """Checks that a declaration excuses, and where."""

    declaration: str
    statements: tuple[str, ...]
    check_ids: tuple[str, ...]
    hosts: tuple[str, ...]


def headline(session: Session) -> str:
    """One sentence about all hosts."""
    verdicts = [Verdict(host.result["verdict"]) for host in session.hosts]
    healthy = verdicts.count(Verdict.PASS)
    if healthy == len(verdicts):
        return f"{_hosts(healthy).capitalize()}: everything that is declared holds."
    rest = [f"{verdicts.count(verdict)} {TITLES[verdict]}" for verdict in Verdict
            if verdict in verdicts and verdict is not Verdict.PASS]
    return f"{healthy} of {_hosts(len(verdicts))} healthy; {', '.join(rest)}."


def _hosts(count: int) -> str:
    return "one host" if count == 1 else f"{count} hosts"


def wrong(session: Session) -> list[tuple[HostRun, Mapping[str, str]]]:
    """Every check that is neither healthy nor excused, the worst first."""
    order = list(Verdict)
    found = [
        (host, check)
        for host in session.hosts
        for check in host.result["checks"]
        if check["verdict"] not in {Verdict.PASS, Verdict.NOT_DECLARED}
    ]
    return sorted(found, key=lambda pair: order.index(Verdict(pair[1]["verdict"])))


def proven(session: Session) -> list[str]:
    """What holds, in words, for each thing that is planned somewhere."""
    found: dict[str, list[str]] = defaultdict(list)
    for host in session.hosts:
        for sentence in _proven_on(host):
            found[sentence].append(host.name)
    return [f"{sentence} ({_named(names, session.hosts)})" for sentence, names in found.items()]


def _proven_on(host: HostRun) -> Iterable[str]:
    verdicts = {check["id"]: check["verdict"] for check in host.result["checks"]}

    def hold(*check_ids: str) -> bool:
        return all(verdicts.get(check_id) == Verdict.PASS for check_id in check_ids)

    if hold("driver.packages", "driver.held", "driver.modules"):
        driver = host.plan["driver"]
        runs = hold("driver.loaded", "driver.pending")
        yield (f"Driver branch {driver['branch']} is whole and held, its {driver['module']} modules"
               f" stand for every kernel, {'and runs' if runs else 'not run without a GPU'}")
    if hold("toolkit.present", "toolkit.files"):
        for toolkit in host.plan["toolkits"]:
            yield f"CUDA {toolkit['short']} stands in {toolkit['path']}, each file as installed"
    if hold("toolkit.files", "toolkit.cublas", "toolkit.nvrtc"):
        fast = ", as fast as its model should" if hold("gpu.throughput") else ""
        for toolkit in host.plan["toolkits"]:
            yield (f"CUDA {toolkit['short']} compiles and multiplies exactly on every declared GPU"
                   f"{fast}")
    elif hold("toolkit.files", "toolkit.nvrtc"):
        for toolkit in host.plan["toolkits"]:
            yield f"CUDA {toolkit['short']} compiles for GPUs"
    if hold("cudnn.present", "cudnn.files", "cudnn.links"):
        for cudnn in host.plan["cudnn"]:
            yield (f"cuDNN {cudnn['short']} in CUDA {cudnn['toolkit']}: header, library and links"
                   " agree")
    if hold("stack.release", "stack.libraries", "stack.mapped"):
        for stack in host.plan["stacks"]:
            yield (f"{stack['name']} opens every CUDA and cuDNN library of its build, and maps no"
                   " file but its own toolkit's")
    if hold("stack.matmul"):
        where = "on every declared GPU" if hold("stack.gpu") else "on the CPU, not on a GPU"
        for stack in host.plan["stacks"]:
            yield f"{stack['name']} multiplies matrices exactly {where}"
    if hold("pair.parameter-server"):
        for pair in host.plan["pairs"]:
            releases = " and ".join(stack["release"] for stack in pair["stacks"])
            yield f"TensorFlow {releases} computes exactly together with {pair['with']}"
    if hold("containers.runtime"):
        engine = host.plan["containers"]["engine"]
        cards = ", and each declared GPU computes there" if hold(
            "containers.gpus", "containers.reload", "containers.matmul") else ""
        yield f"{engine} knows NVIDIA's runtime and keeps containers alive{cards}"


def unproven(session: Session) -> list[Unproven]:
    """What could not be proven because of a declaration, grouped by it."""
    hosts: dict[str, dict[str, None]] = defaultdict(dict)
    checks: dict[str, dict[str, str]] = defaultdict(dict)
    for host in session.hosts:
        for check in host.result["checks"]:
            if check["verdict"] == Verdict.NOT_DECLARED:
                hosts[check["cause"]][host.name] = None
                checks[check["cause"]][check["id"]] = check["statement"]
    return [
        Unproven(cause, tuple(found.values()), tuple(found), tuple(hosts[cause]))
        for cause, found in checks.items()
    ]


def _named(names: list[str], hosts: list[HostRun]) -> str:
    if len(names) == len(hosts):
        return names[0] if len(names) == 1 else f"all {len(names)} hosts"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def counts(result: Mapping[str, Any]) -> dict[Verdict, int]:
    """How many checks of a host have each verdict."""
    found = [Verdict(check["verdict"]) for check in result["checks"]]
    return {verdict: found.count(verdict) for verdict in Verdict if verdict in found}
