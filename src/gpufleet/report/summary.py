"""The summary of a verification for terminal and page: headline, issues, passed and skipped checks.

Pure: verdicts in, sentences out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpufleet.documents.pairs import PlannedMeeting
from gpufleet.documents.text import natural
from gpufleet.documents.verdict import (
    HEALTHY_VERDICTS,
    CheckResult,
    HostResult,
    Verdict,
    consequences,
    silence_text,
)
from gpufleet.fleet.session import HostRun, Session
from gpufleet.frameworks import FRAMEWORKS, framework_id

TITLES = {
    Verdict.PASS: "healthy",
    Verdict.FAIL: "failed",
    Verdict.HUNG: "hung",
    Verdict.UNREACHABLE: "unreachable",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.NOT_DECLARED: "not declared",
}


# Replaces a host's own name in a text. A private-use character, which no text contains.
OWN_NAME = "\ue000"
# A command lists at most this many hosts.
MOST_NAMED = 24


@dataclass(frozen=True)
class Issue:
    """One issue: its checks, and all hosts that have it."""

    verdict: Verdict
    cause: str
    remedy: str
    # The first host's evidence.
    evidence: str
    # {id: statement}
    checks: Mapping[str, str]
    hosts: tuple[str, ...]
    # The verdicts of the checks that it explains, on any of the hosts.
    explains: Mapping[str, str]
    # The silence that covers it, as people read it; empty where none does.
    silenced: str = ""


class ProvisionReasons(NamedTuple):
    """Why Ansible ran, and on which hosts."""

    reasons: list[str]
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class SkippedChecks:
    """Checks that are skipped because of one declaration, and on which hosts.

    `remedy`: how they are verified all the same; empty where that takes a declaration alone.
    """

    declaration: str
    remedy: str
    statements: tuple[str, ...]
    check_ids: tuple[str, ...]
    hosts: tuple[str, ...]


def headline(session: Session) -> str:
    """One sentence about the verdicts of all hosts."""
    verdicts = [Verdict(host.result["verdict"]) for host in session.hosts]
    healthy = verdicts.count(Verdict.PASS)
    if healthy == len(verdicts):
        return f"{_hosts(healthy)} healthy: all declared checks pass."
    others = [
        f"{verdicts.count(verdict)} {TITLES[verdict]}"
        for verdict in Verdict
        if verdict in verdicts and verdict is not Verdict.PASS
    ]
    return f"{healthy} of {_hosts(len(verdicts))} healthy; {', '.join(others)}."


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


def worst_first(session: Session) -> list[HostRun]:
    """The hosts by verdict, number of issues and name."""
    order = list(Verdict)

    def rank(host: HostRun) -> tuple[int, int, list[tuple[int, str]]]:
        issue_count = sum(check["verdict"] not in HEALTHY_VERDICTS for check in causes(host.result))
        return order.index(Verdict(host.result["verdict"])), -issue_count, natural(host.name)

    return sorted(session.hosts, key=rank)


def causes(result: HostResult) -> list[CheckResult]:
    """The checks of a host without those that another check's finding explains."""
    folded = {check["id"] for found in consequences(result["checks"]).values() for check in found}
    return [check for check in result["checks"] if check["id"] not in folded]


def count_checks(count: int) -> str:
    """`2 checks`."""
    return f"{count} check{'' if count == 1 else 's'}"


def count_consequences(count: int) -> str:
    """`+9 consequences`."""
    return f"+{count} consequence{'' if count == 1 else 's'}"


def issues(session: Session) -> list[Issue]:
    """The checks that did not pass: each cause once, with all of its hosts.

    The worst are first, and silenced ones last.
    """
    found: dict[tuple[Any, ...], list[HostRun]] = defaultdict(list)
    evidence: dict[tuple[Any, ...], str] = {}
    explains: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for host in worst_first(session):
        grouped: dict[tuple[str, ...], list[CheckResult]] = defaultdict(list)
        folded = consequences(host.result["checks"])
        for check in causes(host.result):
            if check["verdict"] not in HEALTHY_VERDICTS:
                texts = [mask_name(check[part], host.name) for part in ("cause", "remedy")]
                silenced = silence_text(check["silenced"]) if "silenced" in check else ""
                grouped[check["verdict"], *texts, silenced].append(check)
        for cause_key, checks in grouped.items():
            key = *cause_key, tuple((check["id"], check["statement"]) for check in checks)
            found[key].append(host)
            evidence.setdefault(key, checks[0]["evidence"])
            explains[key] |= {
                each["id"]: each["statement"]
                for check in checks
                for each in folded.get(check["id"], ())
            }
    order = list(Verdict)
    return sorted(
        (
            Issue(
                Verdict(verdict),
                insert_names(cause, names, "HOST"),
                insert_names(remedy, names),
                evidence[key],
                dict(checks),
                names,
                explains[key],
                silenced,
            )
            for key, hosts in found.items()
            for verdict, cause, remedy, silenced, checks in [key]
            for names in [tuple(host.name for host in hosts)]
        ),
        key=lambda issue: (bool(issue.silenced), order.index(issue.verdict), -len(issue.hosts)),
    )


def mask_name(text: str, host: str) -> str:
    """Replace the host's own name in a text: hosts with the same issue then have the same text."""
    return (
        re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", OWN_NAME, text)
        if host in text
        else text
    )


def insert_names(text: str, hosts: Collection[str], many: str = "") -> str:
    """The reverse: insert the one host's name, or `many`, or all names as for `--limit`."""
    several = many or (",".join(hosts) if len(hosts) <= MOST_NAMED else "HOST")
    return text.replace(OWN_NAME, next(iter(hosts)) if len(hosts) == 1 else several)


def verified_statements(session: Session) -> list[str]:
    """A sentence, with its hosts, for each planned component whose checks pass."""
    found: dict[str, list[str]] = defaultdict(list)
    for host in session.hosts:
        for sentence in _verified_on(host):
            found[sentence].append(host.name)
    return [f"{sentence} ({_named(names, session.hosts)})" for sentence, names in found.items()]


def _verified_on(host: HostRun) -> Iterable[str]:
    verdicts = {check["id"]: check["verdict"] for check in host.result["checks"]}

    def passed(*check_ids: str) -> bool:
        return all(verdicts.get(check_id) == Verdict.PASS for check_id in check_ids)

    driver, containers = host.plan.get("driver"), host.plan.get("containers")
    if driver and passed("driver.packages", "driver.held", "driver.modules"):
        runs = passed("driver.loaded", "driver.pending")
        yield (
            f"Driver branch {driver['branch']} is complete and held, its {driver['module']}"
            " modules are built for every kernel, and it"
            f" {'is running' if runs else 'is not loaded, without a GPU'}"
        )
    if passed("toolkit.present", "toolkit.files"):
        for toolkit in host.plan["toolkits"]:
            yield f"CUDA {toolkit['short']} is installed in {toolkit['path']}, every file unchanged"
    # A toolkit that was found and not declared has no files to be compared with.
    found = any(toolkit.get("found") for toolkit in host.plan.get("toolkits") or ())
    if passed("toolkit.cublas", "toolkit.nvrtc") and (found or passed("toolkit.files")):
        fast = ", not slower than its model's minimum" if passed("gpu.throughput") else ""
        for toolkit in host.plan["toolkits"]:
            yield (
                f"CUDA {toolkit['short']} compiles, and multiplies matrices exactly on every"
                f" {'GPU that was found' if found else 'declared GPU'}{fast}"
            )
        if passed("gpu.formats", "gpu.consensus"):
            yield "Every GPU is exact in each number format, and random products come out the same"
        if passed("gpu.sustained", "gpu.bandwidth"):
            yield (
                "Every GPU keeps its speed and its results under load, and its memory what is"
                " written to it"
            )
    elif passed("toolkit.files", "toolkit.nvrtc"):
        for toolkit in host.plan["toolkits"]:
            yield f"CUDA {toolkit['short']} compiles GPU code"
    if passed("cudnn.present", "cudnn.files", "cudnn.links"):
        for cudnn in host.plan["cudnn"]:
            yield (
                f"cuDNN {cudnn['short']} in CUDA {cudnn['toolkit']}: header, library and links"
                " match"
            )
    if passed("stack.release", "stack.libraries", "stack.mapped"):
        for stack in host.plan["stacks"]:
            own = "toolkit" if stack["cuda_source"] == "toolkit" else "wheels"
            yield (
                f"{stack['name']} loads every CUDA and cuDNN library of its build, only from its"
                f" own {own}"
            )
    if passed("stack.matmul"):
        expect = host.plan["expect"]
        where = (
            "on every declared GPU"
            if passed("stack.gpu")
            else (
                "on the CPU, not on a GPU"
                if expect and expect["count"] == 0
                else "on the devices that it lists, of which none is declared"
            )
        )
        for stack in host.plan["stacks"]:
            yield f"{stack['name']} multiplies matrices exactly {where}"
    yield from _distributed(host.plan.get("pairs") or (), passed)
    if containers and passed("containers.runtime"):
        gpus = (
            ", and every declared GPU computes in a container"
            if passed("containers.gpus", "containers.reload", "containers.matmul")
            else ""
        )
        yield f"{containers['engine']} has NVIDIA's runtime and keeps containers running{gpus}"


def _distributed(pairs: Iterable[PlannedMeeting], passed: Callable[..., bool]) -> Iterable[str]:
    """The frameworks that computed together with another host."""
    # A framework's run includes its parameter servers, if it has them.
    others = passed("pair.all-reduce") or passed("pair.nccl")
    for pair in pairs:
        for framework in FRAMEWORKS.values():
            releases = [
                stack["release"] for stack in pair["stacks"] if framework_id(stack) == framework.id
            ]
            if releases and (
                passed("pair.parameter-server")
                if framework.distributed.parameter_servers
                else others
            ):
                yield (
                    f"{framework.title} {' and '.join(releases)} computes exactly in a"
                    f" distributed run with {pair['with']}"
                )


def provision_reasons(session: Session) -> list[ProvisionReasons]:
    """Why Ansible ran and where; the reason of most hosts first."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host, reasons in (session.provisioned or {}).items():
        found[tuple(mask_name(reason, host) for reason in reasons)].append(host)
    return sorted(
        (
            ProvisionReasons(
                [insert_names(reason, hosts, "HOST") for reason in reasons], tuple(hosts)
            )
            for reasons, hosts in found.items()
        ),
        key=lambda entry: -len(entry.hosts),
    )


def skipped_checks(session: Session) -> list[SkippedChecks]:
    """The checks that are skipped because of a declaration, grouped by it."""
    hosts: dict[str, dict[str, None]] = defaultdict(dict)
    checks: dict[str, dict[str, str]] = defaultdict(dict)
    remedies: dict[str, str] = {}
    for host in session.hosts:
        for check in host.result["checks"]:
            if check["verdict"] == Verdict.NOT_DECLARED:
                remedies.setdefault(check["cause"], check["remedy"])
                hosts[check["cause"]][host.name] = None
                checks[check["cause"]][check["id"]] = check["statement"]
    return [
        SkippedChecks(
            cause, remedies[cause], tuple(found.values()), tuple(found), tuple(hosts[cause])
        )
        for cause, found in checks.items()
    ]


def _named(names: list[str], hosts: list[HostRun]) -> str:
    if len(names) == len(hosts):
        return names[0] if len(names) == 1 else f"all {len(names)} hosts"
    return ", ".join(names) if len(names) <= 5 else f"{len(names)} of {len(hosts)} hosts"


def counts(result: HostResult) -> dict[Verdict, int]:
    """How many checks of a host have each verdict."""
    found = [Verdict(check["verdict"]) for check in result["checks"]]
    return {verdict: found.count(verdict) for verdict in Verdict if verdict in found}
