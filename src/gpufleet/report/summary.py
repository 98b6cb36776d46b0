"""The plain words: what was proven, what could not be and why. For terminal and page alike."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpufleet.model.verdict import Verdict
from gpufleet.verification.session import HostRun, Session

TITLES = {
    Verdict.PASS: "healthy",
    Verdict.FAIL: "not healthy",
    Verdict.HUNG: "hanging",
    Verdict.UNREACHABLE: "not reached",
    Verdict.INCONCLUSIVE: "not fully judged",
    Verdict.NOT_DECLARED: "nothing declared",
}


HEALTHY = {Verdict.PASS, Verdict.NOT_DECLARED}
# In a text, where the host's own name stood. For private use, so that no text has it.
OWN_NAME = "\ue000"
# Hosts that a command names one by one.
MOST_NAMED = 24


@dataclass(frozen=True)
class Issue:
    """One thing that is wrong: the checks that say so, and all hosts where they do."""

    verdict: Verdict
    cause: str
    remedy: str
    # As the first of the hosts has it.
    evidence: str
    # {id: statement}
    checks: Mapping[str, str]
    hosts: tuple[str, ...]


class ProvisionReasons(NamedTuple):
    """Why Ansible ran, and on which hosts."""

    reasons: list[str]
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class SkippedChecks:
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


def worst_first(session: Session) -> list[HostRun]:
    """The hosts as people should read them: by verdict, by how much is wrong, by name."""
    order = list(Verdict)

    def rank(host: HostRun) -> tuple[int, int, list[tuple[int, str]]]:
        wrongs = sum(check["verdict"] not in HEALTHY for check in host.result["checks"])
        # gpu2 before gpu10.
        name = [(int(part), "") if part.isdigit() and part.isascii() else (-1, part)
                for part in re.split(r"([0-9]{1,18})", host.name)]
        return order.index(Verdict(host.result["verdict"])), -wrongs, name

    return sorted(session.hosts, key=rank)


def issues(session: Session) -> list[Issue]:
    """What is neither healthy nor excused, the worst first: of one cause once, with all hosts."""
    found: dict[tuple[Any, ...], list[HostRun]] = defaultdict(list)
    evidence: dict[tuple[Any, ...], str] = {}
    for host in worst_first(session):
        causes: dict[tuple[str, ...], list[Mapping[str, str]]] = defaultdict(list)
        for check in host.result["checks"]:
            if check["verdict"] not in HEALTHY:
                said = [mask_name(check[part], host.name) for part in ("cause", "remedy")]
                causes[check["verdict"], *said].append(check)
        for said_of, checks in causes.items():
            key = *said_of, tuple((check["id"], check["statement"]) for check in checks)
            found[key].append(host)
            evidence.setdefault(key, checks[0]["evidence"])
    order = list(Verdict)
    return sorted(
        (Issue(Verdict(verdict), insert_names(cause, names, "HOST"), insert_names(remedy, names),
               evidence[key], dict(checks), names)
         for key, hosts in found.items()
         for verdict, cause, remedy, checks in [key]
         for names in [tuple(host.name for host in hosts)]),
        key=lambda each: (order.index(each.verdict), -len(each.hosts)))


def mask_name(text: str, host: str) -> str:
    """A text about a host, with a stand-in for its name: the same for all to whom it happened."""
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", OWN_NAME, text) \
        if host in text else text


def insert_names(text: str, hosts: Collection[str], many: str = "") -> str:
    """The reverse: the one host's name, or all of them as `--limit` takes them, or `many`."""
    several = many or (",".join(hosts) if len(hosts) <= MOST_NAMED else "HOST")
    return text.replace(OWN_NAME, next(iter(hosts)) if len(hosts) == 1 else several)


def verified_statements(session: Session) -> list[str]:
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


def provision_reasons(session: Session) -> list[ProvisionReasons]:
    """Where Ansible ran; what befell most hosts first."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host, reasons in (session.provisioned or {}).items():
        found[tuple(mask_name(reason, host) for reason in reasons)].append(host)
    return sorted((
        ProvisionReasons([insert_names(reason, hosts, "HOST") for reason in reasons], tuple(hosts))
        for reasons, hosts in found.items()), key=lambda each: -len(each.hosts))


def skipped_checks(session: Session) -> list[SkippedChecks]:
    """What could not be proven because of a declaration, grouped by it."""
    hosts: dict[str, dict[str, None]] = defaultdict(dict)
    checks: dict[str, dict[str, str]] = defaultdict(dict)
    for host in session.hosts:
        for check in host.result["checks"]:
            if check["verdict"] == Verdict.NOT_DECLARED:
                hosts[check["cause"]][host.name] = None
                checks[check["cause"]][check["id"]] = check["statement"]
    return [
        SkippedChecks(cause, tuple(found.values()), tuple(found), tuple(hosts[cause]))
        for cause, found in checks.items()
    ]


def _named(names: list[str], hosts: list[HostRun]) -> str:
    if len(names) == len(hosts):
        return names[0] if len(names) == 1 else f"all {len(names)} hosts"
    return ", ".join(names) if len(names) <= 5 else f"{len(names)} of {len(hosts)} hosts"


def counts(result: Mapping[str, Any]) -> dict[Verdict, int]:
    """How many checks of a host have each verdict."""
    found = [Verdict(check["verdict"]) for check in result["checks"]]
    return {verdict: found.count(verdict) for verdict in Verdict if verdict in found}
